#include "storage/mooncake/agent_session.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "storage/mooncake/codes.h"

namespace hitide {
namespace {

constexpr Duration kDeathWait = std::chrono::seconds(10);

TimePoint now() { return SystemClock::instance().now(); }

// A stop of the agent that the agent itself has told of, or a child that ended before a word.
Status not_started(ChildProcess& process, const Status& status) {
  process.signal(SIGKILL);
  process.wait(now() + kDeathWait);
  process.drain_errors();
  const std::string said = process.error_tail();
  return said.empty() ? status : status.with_context(fmt::format("[{}]", said));
}

}  // namespace

AgentSession::AgentSession(std::unique_ptr<ChildProcess> process, Duration control_limit)
    : process_(std::move(process)),
      control_limit_(control_limit),
      control_(process_->take_socket()) {}

AgentSession::~AgentSession() = default;

Result<std::shared_ptr<AgentSession>> AgentSession::start(const AgentConfig& config) {
  HITIDE_ASSIGN_OR_RETURN(auto process, ChildProcess::start(config.command));
  std::shared_ptr<AgentSession> session(new AgentSession(std::move(process), config.control_limit));
  const Status status = session->say_hello(now() + config.start_limit);
  if (!status.ok()) return not_started(*session->process_, status);
  return session;
}

Status AgentSession::say_hello(TimePoint deadline) {
  const Result<FrameBytes> hello = control_.call({.call = AgentCall::hello}, deadline);
  if (hello.ok()) return {};
  const StatusCode code = hello.status().code();
  // An interpreter that ends before it has said anything will do so again.
  const bool hopeless = code == StatusCode::unavailable || code == StatusCode::data_loss;
  return Status(hopeless ? StatusCode::failed_precondition : code,
                std::string(hello.status().message()));
}

Status AgentSession::set_up(const AgentConfig& config, bool& away) {
  const TimePoint deadline = now() + config.start_limit;
  Status status = call_set_up(config, deadline, away);
  if (away) return status;
  if (status.ok()) status = add_lanes(config, deadline);
  if (!status.ok()) return not_started(*process_, status);
  // The client grumbles while it starts; what it says from now on may be a reason.
  process_->drain_errors();
  process_->forget_errors();
  return {};
}

Status AgentSession::call_set_up(const AgentConfig& config, TimePoint deadline, bool& away) {
  const FrameBytes body = encode_pairs(config.setup);
  HITIDE_ASSIGN_OR_RETURN(const FrameBytes answer,
                          control_.call({.call = AgentCall::setup, .body = body}, deadline));
  HITIDE_ASSIGN_OR_RETURN(const auto codes, decode_results(answer, 1));
  if (codes[0] == 0) return {};
  away = codes[0] == kStoreAway;
  return Status(
      StatusCode::unavailable,
      away ? std::string("nobody answers where the store should be: is it up?")
           : fmt::format("set-up of the store's client answered {}: is the master up?", codes[0]));
}

Status AgentSession::add_lanes(const AgentConfig& config, TimePoint deadline) {
  for (std::size_t kind = 0; kind < kAgentLaneCount; ++kind) {
    for (std::uint32_t i = 0; i < config.lanes[kind]; ++i) {
      std::array<int, 2> ends{};
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        return errno_status(errno, "make a socket pair for", "the store agent");
      }
      UniqueFd near(ends[0]);
      const UniqueFd far(ends[1]);
      ::fcntl(near.get(), F_SETFL, O_NONBLOCK);
      HITIDE_RETURN_IF_ERROR(
          control_.call({.call = AgentCall::add_lane, .fd = far.get()}, deadline).status());
      Pool& pool = pools_[kind];
      pool.all.push_back(std::make_unique<AgentSocket>(std::move(near)));
      pool.free.push_back(pool.all.back().get());
    }
  }
  return {};
}

Result<FrameBytes> AgentSession::judge(Result<FrameBytes> answer, const AgentSocket& socket,
                                       Duration limit) {
  if (answer.ok() || !socket.broken()) return answer;
  if (answer.status().code() == StatusCode::deadline_exceeded) {
    const std::string why = fmt::format("{} (limit {:.3g} s): the agent was killed",
                                        answer.status().message(), to_seconds(limit));
    kill(why);
    return Status(StatusCode::deadline_exceeded, why);
  }
  kill(std::string(answer.status().message()));
  return Status(StatusCode::unavailable, "the store agent ended: " + death());
}

Result<FrameBytes> AgentSession::call(AgentLane lane, const AgentRequest& request,
                                      TimePoint lane_deadline, Duration limit) {
  Pool& pool = pools_[static_cast<std::size_t>(lane)];
  AgentSocket* socket = nullptr;
  {
    MutexLock lock(lanes_mutex_);
    const auto ready = [&]() HITIDE_REQUIRES(lanes_mutex_) { return dead_ || !pool.free.empty(); };
    if (lane_deadline == kNoDeadline) {
      lane_free_.wait(lock, ready);
    } else if (!lane_free_.wait_until(lock, lane_deadline, ready)) {
      return Status(
          StatusCode::deadline_exceeded,
          fmt::format("{}: every lane to the store agent is busy", to_string(request.call)));
    }
    if (dead_) return Status(StatusCode::unavailable, "the store agent ended: " + death());
    socket = pool.free.back();
    pool.free.pop_back();
  }
  Result<FrameBytes> answer = judge(socket->call(request, now() + limit), *socket, limit);
  {
    const MutexLock lock(lanes_mutex_);
    pool.free.push_back(socket);
  }
  lane_free_.notify_all();
  return answer;
}

Result<FrameBytes> AgentSession::control(const AgentRequest& request, Duration more) {
  const TimePoint limit = now() + control_limit_ + more;
  {
    MutexLock lock(lanes_mutex_);
    const auto ready = [&]() HITIDE_REQUIRES(lanes_mutex_) { return dead_ || !control_busy_; };
    if (!lane_free_.wait_until(lock, limit, ready)) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("{}: the control connection to the store agent is busy",
                                to_string(request.call)));
    }
    if (dead_) return Status(StatusCode::unavailable, "the store agent ended: " + death());
    control_busy_ = true;
  }
  Result<FrameBytes> answer = judge(control_.call(request, limit), control_, control_limit_ + more);
  {
    const MutexLock lock(lanes_mutex_);
    control_busy_ = false;
  }
  lane_free_.notify_all();
  return answer;
}

void AgentSession::kill(const std::string& why) {
  {
    const MutexLock lock(death_mutex_);
    if (death_.empty()) death_ = why;
  }
  process_->signal(SIGKILL);
  process_->wait(now() + kDeathWait);
  {
    const MutexLock lock(lanes_mutex_);
    dead_ = true;
  }
  lane_free_.notify_all();
}

std::string AgentSession::death() const {
  const MutexLock lock(death_mutex_);
  return death_;
}

}  // namespace hitide
