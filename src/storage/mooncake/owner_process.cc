#include "storage/mooncake/owner_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace hitide {
namespace {

// Unmounting takes one to four seconds; one that hangs must not hold up the end of a server.
constexpr Duration kStopWait = std::chrono::seconds(5);
constexpr Duration kPauseFirst = std::chrono::seconds(1);
constexpr Duration kPauseMax = std::chrono::seconds(30);
constexpr Duration kHealthyFor = std::chrono::seconds(60);

TimePoint now() { return SystemClock::instance().now(); }

}  // namespace

OwnerProcess::OwnerProcess(ChildCommand command, FramePairs settings)
    : command_(std::move(command)), settings_(std::move(settings)) {
  thread_.start([this] { run(); });
}

OwnerProcess::~OwnerProcess() { stop(); }

bool OwnerProcess::mounted() const {
  const MutexLock lock(mutex_);
  return mounted_;
}

int OwnerProcess::pid() const {
  const MutexLock lock(mutex_);
  return pid_;
}

void OwnerProcess::take_line(const std::string& line) {
  if (line.starts_with("ready")) {
    log_info("segment_mounted", {{"owner", line.substr(std::min<std::size_t>(6, line.size()))}});
    const MutexLock lock(mutex_);
    mounted_ = true;
  } else if (line.starts_with("unsupported ")) {
    log_warning("segment_owner_settings", {{"ignored", line.substr(12)},
                                           {"reason",
                                            "this release of the store's client does "
                                            "not know them"}});
  } else {
    log_limited(LogLevel::warning, "segment_not_mounted", std::chrono::seconds(30),
                {{"owner", line}});
  }
}

void OwnerProcess::follow(ChildProcess& child, int socket) {
  std::array<pollfd, 3> fds = {{{.fd = thread_.wake_fd(), .events = POLLIN, .revents = 0},
                                {.fd = socket, .events = POLLIN, .revents = 0},
                                {.fd = child.error_fd(), .events = POLLIN, .revents = 0}}};
  std::string text;
  while (!thread_.stopping()) {
    if (::poll(fds.data(), fds.size(), -1) <= 0) continue;
    if ((fds[2].revents & POLLIN) != 0) child.drain_errors();
    if ((fds[2].revents & (POLLHUP | POLLERR)) != 0) fds[2].fd = -1;
    if (fds[1].revents == 0) continue;
    std::array<char, 256> buffer{};
    const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
    text.append(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      take_line(text.substr(0, end));
      text.erase(0, end + 1);
    }
  }
}

void OwnerProcess::run_one() {
  auto child = ChildProcess::start(command_);
  if (!child.ok()) {
    log_warning("segment_owner_failed", {{"reason", child.status().to_string()}});
    return;
  }
  {
    const MutexLock lock(mutex_);
    pid_ = (*child)->pid();
  }
  {
    UniqueFd socket = (*child)->take_socket();
    std::string text;
    for (const auto& [name, value] : settings_) text += fmt::format("{}={}\n", name, value);
    text += "\n";
    // A few hundred bytes into an empty socket: all or an error.
    if (::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(text.size())) {
      follow(**child, socket.get());
    }
  }  // closing the socket is what tells it to unmount
  if (!(*child)->wait(now() + kStopWait)) log_warning("segment_owner_killed");
  (*child)->signal(SIGKILL);
  (*child)->wait(kNoDeadline);
  (*child)->drain_errors();
  const MutexLock lock(mutex_);
  if (!thread_.stopping()) log_warning("segment_owner_ended", {{"said", (*child)->error_tail()}});
  mounted_ = false;
  pid_ = -1;
}

void OwnerProcess::run() {
  Duration next_pause = kPauseFirst;
  while (!thread_.stopping()) {
    const TimePoint start = now();
    run_one();
    if (now() - start >= kHealthyFor) next_pause = kPauseFirst;
    if (thread_.pause(next_pause)) return;
    next_pause = std::min(next_pause * 2, kPauseMax);
  }
}

}  // namespace hitide
