#include "server/intake.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "server/socket.h"

namespace hitide {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kAcceptedAtOnce = 64;
constexpr std::uint64_t kDrainedBytesMax = 64u << 20;
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr Duration kSendTimeAtEnd = std::chrono::seconds(1);
constexpr Duration kLogInterval = std::chrono::seconds(10);
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

TimePoint now() { return std::chrono::steady_clock::now(); }

ApiError intake_error(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  if (status >= 500) error.type = "server_error";
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError stopping_error() {
  return intake_error(503, "shutting_down", "the server is shutting down");
}

}  // namespace

IntakeLimits intake_limits(const ServerOptions& options) {
  IntakeLimits limits;
  limits.request.head_bytes_max = options.head_bytes_max;
  limits.request.line_bytes_max =
      std::min<std::size_t>(limits.request.line_bytes_max, options.head_bytes_max);
  limits.connections_max = options.connections_max;
  if (options.body_bytes_max != 0) limits.request.body_bytes_max = options.body_bytes_max;
  // Two of the largest fit, and one that comes in beside one that is read.
  limits.held_bytes_max =
      std::max<std::uint64_t>(limits.held_bytes_max, 2 * limits.request.body_bytes_max);
  return limits;
}

Intake::Intake(UniqueFd listening, const IntakeLimits& limits, Hooks hooks)
    : limits_(limits),
      hooks_(std::move(hooks)),
      body_bytes_max_(limits.request.body_bytes_max),
      handed_bytes_(std::make_shared<std::atomic<std::uint64_t>>(0)),
      listening_(std::move(listening)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Intake::~Intake() { stop(); }

bool Intake::start() {
  if (!wake_fd_.valid()) return false;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    log_error("server_thread_not_started", {{"error", error.what()}});
    return false;
  }
  return true;
}

void Intake::give_back(std::shared_ptr<Connection> connection, std::string answer, bool last) {
  connection->unsent_ = std::move(answer);
  connection->sent_ = 0;
  connection->last_answer_ = last;
  {
    const MutexLock lock(mutex_);
    returned_.push_back(std::move(connection));
  }
  wake();
}

void Intake::begin_stop() {
  if (!stopping_.exchange(true)) wake();
}

void Intake::stop() {
  begin_stop();
  if (!thread_.joinable()) return;
  ending_.store(true);
  wake();
  thread_.join();
}

void Intake::wake() {
  const std::uint64_t one = 1;
  while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Intake::run() {
  for (;;) {
    try {
      loop();
      return;
    } catch (const std::exception& error) {
      log_limited(LogLevel::error, "server_intake_failed", kLogInterval, {{"error", error.what()}});
    }
  }
}

void Intake::loop() {
  TimePoint end = kNoDeadline;
  for (;;) {
    if (stopping_.load() && !stop_begun_) close_for_stop();
    // Read before what was given back: nothing comes after it.
    const bool ending = ending_.load();
    take_returned();
    if (ending && end == kNoDeadline) end = now() + kSendTimeAtEnd;
    if (ending && (connections_.empty() || now() >= end)) {
      connections_.clear();
      return;
    }
    for (auto& [fd, connection] : connections_) {
      connection->deadline_ = std::min(connection->deadline_, end);
    }
    wait_and_handle();
    expire(now());
  }
}

void Intake::wait_and_handle() {
  std::vector<pollfd> entries = {{wake_fd_.get(), POLLIN, 0}};
  const TimePoint begin = now();
  TimePoint until = kNoDeadline;
  const bool accepting = listening_.valid() && begin >= accept_after_;
  if (accepting) entries.push_back({listening_.get(), POLLIN, 0});
  if (listening_.valid() && !accepting) until = accept_after_;
  std::vector<std::shared_ptr<Connection>> waiting;
  for (const auto& [fd, connection] : connections_) {
    const bool sends = connection->phase_ == Connection::Phase::sending;
    entries.push_back({fd, static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    waiting.push_back(connection);
    until = std::min(until, connection->deadline_);
  }
  timespec patience{};
  if (until != kNoDeadline && until > begin) {
    const auto left = (until - begin).count();
    patience = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  }
  const int ready =
      ppoll(entries.data(), entries.size(), until == kNoDeadline ? nullptr : &patience, nullptr);
  if (ready <= 0) return;
  if (entries[0].revents != 0) {
    std::uint64_t count = 0;
    while (::read(wake_fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
  }
  const std::size_t first = accepting ? 2 : 1;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (entries[first + i].revents != 0) handle(waiting[i]);
  }
  if (accepting && entries[1].revents != 0) accept_all();
}

void Intake::handle(const std::shared_ptr<Connection>& connection) {
  // It may have made room for another one in the meantime.
  const auto found = connections_.find(connection->fd());
  if (found == connections_.end() || found->second != connection) return;
  try {
    switch (connection->phase_) {
      case Connection::Phase::reading:
        return receive(connection);
      case Connection::Phase::sending:
        return send(connection);
      case Connection::Phase::draining:
        return drain(connection);
    }
  } catch (const std::exception& error) {
    // Out of memory, most likely: what this request holds is given back.
    log_limited(LogLevel::warning, "server_connection_dropped", kLogInterval,
                {{"error", error.what()}});
    forget(connection);
  }
}

void Intake::take_returned() {
  std::vector<std::shared_ptr<Connection>> returned;
  {
    const MutexLock lock(mutex_);
    returned.swap(returned_);
  }
  for (const std::shared_ptr<Connection>& connection : returned) {
    connections_[connection->fd()] = connection;
    connection->phase_ = Connection::Phase::sending;
    connection->since_ = now();
    connection->deadline_ = connection->since_ + limits_.send_time;
    connection->reader_.set_body_bytes_max(body_bytes_max_.load());
    handle(connection);
  }
}

void Intake::accept_all() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    UniqueFd fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      adopt(std::move(fd));
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR || errno == ECONNABORTED || errno == EPERM || errno == EPROTO) continue;
    const int error = errno;
    const std::string why = std::generic_category().message(error);
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      log_limited(LogLevel::warning, "server_connection_not_accepted", kLogInterval,
                  {{"connections", connections_.size()}, {"error", why}});
      make_room();
      accept_after_ = now() + kAcceptPause;
      return;
    }
    listening_.reset();
    hooks_.on_failure(why);
    return;
  }
}

void Intake::adopt(UniqueFd fd) {
  const int yes = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (connections_.size() >= limits_.connections_max) make_room();
  RequestReader::Limits request = limits_.request;
  request.body_bytes_max = body_bytes_max_.load();
  const std::shared_ptr<Connection> connection(new Connection(std::move(fd), request));
  connection->since_ = now();
  connection->deadline_ = connection->since_ + limits_.idle_time;
  connections_[connection->fd()] = connection;
  handle(connection);
}

// The connection whose end costs least: one that was refused, else one without a request, else the
// slowest request, else the slowest reader; of these the one that has waited longest.
void Intake::make_room() {
  const auto rank = [](const Connection& connection) {
    const bool idle = connection.reader_.state() == RequestReader::State::empty;
    const int kind = connection.phase_ == Connection::Phase::draining  ? 0
                     : connection.phase_ == Connection::Phase::sending ? 3
                     : idle                                            ? 1
                                                                       : 2;
    return std::pair(kind, connection.since_);
  };
  const auto victim = std::min_element(
      connections_.begin(), connections_.end(),
      [&](const auto& a, const auto& b) { return rank(*a.second) < rank(*b.second); });
  if (victim == connections_.end()) return;
  log_limited(LogLevel::warning, "server_connections_full", kLogInterval,
              {{"connections", connections_.size()}});
  connections_.erase(victim);
}

void Intake::receive(const std::shared_ptr<Connection>& connection) {
  std::array<char, kReadBytes> bytes;
  const ssize_t got = ::recv(connection->fd(), bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) return forget(connection);
  const bool empty = connection->reader_.state() == RequestReader::State::empty;
  const auto state = connection->reader_.feed({bytes.data(), static_cast<std::size_t>(got)});
  go_on(connection, empty && state != RequestReader::State::empty);
}

void Intake::go_on(const std::shared_ptr<Connection>& connection, bool began) {
  switch (connection->reader_.state()) {
    case RequestReader::State::empty:
      return;
    case RequestReader::State::whole:
      return hand_out(connection);
    case RequestReader::State::refused:
      return refuse(connection, connection->reader_.refusal());
    case RequestReader::State::reading:
      break;
  }
  if (began) {
    connection->since_ = now();
    connection->deadline_ = connection->since_ + limits_.request_time;
  }
  if (connection->reader_.take_continue()) send_some(connection->fd(), kContinue);
  bound_bytes();
}

void Intake::hand_out(const std::shared_ptr<Connection>& connection) {
  HttpRequest request = connection->reader_.take();
  const std::uint64_t bytes = request.body.size();
  std::shared_ptr<void> held(nullptr,
                             [count = handed_bytes_, bytes](void*) { count->fetch_sub(bytes); });
  handed_bytes_->fetch_add(bytes);
  std::shared_ptr<Connection> owner = connection;
  connections_.erase(owner->fd());
  hooks_.on_request(std::move(owner), std::move(request), std::move(held));
}

void Intake::refuse(const std::shared_ptr<Connection>& connection, const ApiError& error) {
  connection->unsent_ = hooks_.refuse(error);
  connection->sent_ = 0;
  connection->last_answer_ = true;
  connection->phase_ = Connection::Phase::sending;
  connection->since_ = now();
  connection->deadline_ = connection->since_ + limits_.send_time;
  send(connection);
}

void Intake::send(const std::shared_ptr<Connection>& connection) {
  const std::string_view left = std::string_view(connection->unsent_).substr(connection->sent_);
  const std::int64_t sent = left.empty() ? 0 : send_some(connection->fd(), left);
  if (sent < 0) return forget(connection);
  connection->sent_ += static_cast<std::size_t>(sent);
  if (sent > 0) connection->deadline_ = now() + limits_.send_time;
  if (connection->sent_ < connection->unsent_.size()) return;
  connection->unsent_ = {};
  connection->since_ = now();
  if (!connection->last_answer_) {
    connection->phase_ = Connection::Phase::reading;
    connection->deadline_ = connection->since_ + limits_.idle_time;
    if (stop_begun_) return forget(connection);
    return go_on(connection, connection->reader_.state() != RequestReader::State::empty);
  }
  // What the client still sends is read and dropped for a while: with bytes that nobody has read a
  // close would take the answer away from it.
  ::shutdown(connection->fd(), SHUT_WR);
  connection->phase_ = Connection::Phase::draining;
  const bool half_read = connection->reader_.state() != RequestReader::State::empty;
  if (!half_read) return forget(connection);
  connection->deadline_ = connection->since_ + limits_.request_time;
}

void Intake::drain(const std::shared_ptr<Connection>& connection) {
  std::array<char, kReadBytes> bytes;
  const ssize_t got = ::recv(connection->fd(), bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  connection->drained_ += got > 0 ? static_cast<std::uint64_t>(got) : 0;
  if (got <= 0 || connection->drained_ > kDrainedBytesMax) forget(connection);
}

void Intake::forget(const std::shared_ptr<Connection>& connection) {
  const auto found = connections_.find(connection->fd());
  if (found != connections_.end() && found->second == connection) connections_.erase(found);
}

void Intake::expire(TimePoint at) {
  std::vector<std::shared_ptr<Connection>> late;
  for (const auto& [fd, connection] : connections_) {
    if (connection->deadline_ <= at) late.push_back(connection);
  }
  for (const std::shared_ptr<Connection>& connection : late) {
    if (connection->phase_ == Connection::Phase::reading &&
        connection->reader_.state() == RequestReader::State::reading) {
      refuse(connection, intake_error(408, "request_timeout",
                                      fmt::format("the request did not come whole within {} s",
                                                  limits_.request_time / std::chrono::seconds(1))));
    } else {
      forget(connection);
    }
  }
}

void Intake::bound_bytes() {
  for (;;) {
    std::uint64_t held = handed_bytes_->load();
    std::shared_ptr<Connection> largest;
    for (const auto& [fd, connection] : connections_) {
      if (connection->phase_ != Connection::Phase::reading) continue;
      const std::size_t bytes = connection->reader_.buffered();
      held += bytes;
      if (bytes != 0 && (!largest || bytes > largest->reader_.buffered())) largest = connection;
    }
    if (held <= limits_.held_bytes_max || !largest) return;
    // Closed and not answered: to drain it would take more of what is short.
    log_limited(LogLevel::warning, "server_requests_too_large", kLogInterval,
                {{"held_bytes", held}, {"bytes_max", limits_.held_bytes_max}});
    forget(largest);
  }
}

void Intake::close_for_stop() {
  stop_begun_ = true;
  listening_.reset();
  std::vector<std::shared_ptr<Connection>> reading;
  for (const auto& [fd, connection] : connections_) {
    if (connection->phase_ == Connection::Phase::reading) reading.push_back(connection);
  }
  for (const std::shared_ptr<Connection>& connection : reading) {
    if (connection->reader_.state() == RequestReader::State::empty) {
      forget(connection);
    } else {
      refuse(connection, stopping_error());
    }
  }
}

}  // namespace hitide
