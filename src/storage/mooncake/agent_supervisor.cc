#include "storage/mooncake/agent_supervisor.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace hitide {
namespace {

constexpr Duration kPauseFirst = std::chrono::milliseconds(100);
constexpr Duration kPauseMax = std::chrono::seconds(5);
// Between two looks at a store that is away, each of which costs a connection.
constexpr Duration kAwayPauseFirst = std::chrono::milliseconds(100);
constexpr Duration kAwayPauseMax = std::chrono::milliseconds(500);
// An agent that ran this long did not fail at the start.
constexpr Duration kHealthyFor = std::chrono::seconds(10);

TimePoint now() { return SystemClock::instance().now(); }

}  // namespace

AgentSupervisor::AgentSupervisor(AgentConfig config, OnStart on_start, OnEnd on_end)
    : config_(std::move(config)),
      on_start_(std::move(on_start)),
      on_end_(std::move(on_end)),
      status_(StatusCode::unavailable, "the store agent is starting") {
  thread_.start([this] { run(); });
}

AgentSupervisor::~AgentSupervisor() { stop(); }

void AgentSupervisor::stop() {
  thread_.stop();
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void AgentSupervisor::publish(std::shared_ptr<AgentSession> session, Status status) {
  std::shared_ptr<AgentSession> last;  // its end may take a while: outside the lock
  {
    const MutexLock lock(mutex_);
    if (session) {
      ++starts_;
      ++tries_;
    } else if (!session_) {
      ++tries_;
    }
    last = std::exchange(session_, std::move(session));
    status_ = std::move(status);
  }
  changed_.notify_all();
}

void AgentSupervisor::watch(AgentSession& session) {
  std::array<pollfd, 3> fds = {
      {{.fd = thread_.wake_fd(), .events = POLLIN, .revents = 0},
       {.fd = session.control_fd(), .events = POLLRDHUP, .revents = 0},
       {.fd = session.process().error_fd(), .events = POLLIN, .revents = 0}}};
  while (session.alive() && !thread_.stopping()) {
    if (::poll(fds.data(), fds.size(), 1000) <= 0) continue;
    if ((fds[2].revents & POLLIN) != 0) session.process().drain_errors();
    if ((fds[2].revents & (POLLHUP | POLLERR)) != 0) fds[2].fd = -1;
    if ((fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return;
  }
}

// Until it is done, has failed, or stop() is called.
Status AgentSupervisor::set_up(AgentSession& session) {
  Duration pause = kAwayPauseFirst;
  for (;;) {
    bool away = false;
    Status status = session.set_up(config_, away);
    if (status.ok() || !away) return status;
    publish(nullptr, status);
    if (thread_.pause(pause)) return status;
    pause = std::min(pause * 2, kAwayPauseMax);
  }
}

Status AgentSupervisor::run_one(bool& was_ready) {
  Result<std::shared_ptr<AgentSession>> started = AgentSession::start(config_);
  if (!started.ok()) return started.status();
  const std::shared_ptr<AgentSession> session = *started;
  HITIDE_RETURN_IF_ERROR(set_up(*session));
  const Status status = on_start_(*session);
  if (!status.ok()) {
    session->kill(std::string(status.message()));
    return status;
  }
  was_ready = true;
  publish(session, {});
  watch(*session);
  if (thread_.stopping()) {
    // Politely first: the client may want to say goodbye to its master.
    session->control({.call = AgentCall::shutdown}).status().ignore();
  }
  session->kill("it ended by itself");
  session->process().drain_errors();
  const std::string said = session->process().error_tail();
  return Status(StatusCode::unavailable, "the store agent ended: " + session->death() +
                                             (said.empty() ? "" : " [" + said + "]"));
}

void AgentSupervisor::run() {
  Duration next_pause = Duration::zero();
  while (!thread_.stopping()) {
    const TimePoint start = now();
    bool was_ready = false;
    Status status = run_one(was_ready);
    if (was_ready && !thread_.stopping()) {
      log_warning("store_agent_ended", {{"reason", status.message()}});
    }
    publish(nullptr, std::move(status));
    on_end_();
    if (was_ready && now() - start >= kHealthyFor) next_pause = Duration::zero();
    if (thread_.pause(next_pause)) break;
    next_pause = std::min(std::max(next_pause * 2, kPauseFirst), kPauseMax);
  }
}

Result<std::shared_ptr<AgentSession>> AgentSupervisor::session() const {
  const MutexLock lock(mutex_);
  if (session_ && session_->alive()) return session_;
  if (session_)
    return Status(StatusCode::unavailable, "the store agent ended: " + session_->death());
  return status_;
}

Status AgentSupervisor::wait_until_ready(TimePoint deadline) const {
  MutexLock lock(mutex_);
  const auto ready = [this]() HITIDE_REQUIRES(mutex_) {
    return thread_.stopping() || (session_ && session_->alive()) ||
           status_.code() == StatusCode::failed_precondition;
  };
  // An agent that was just killed is replaced without a notice of its own until then.
  if (deadline == kNoDeadline) {
    changed_.wait(lock, ready);
  } else if (!changed_.wait_until(lock, deadline, ready)) {
    return Status(StatusCode::deadline_exceeded, std::string(status_.message()));
  }
  if (session_ && session_->alive()) return {};
  if (thread_.stopping()) return Status(StatusCode::failed_precondition, "the store is closed");
  return status_;
}

Status AgentSupervisor::first_try() const {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) { return tries_ > 0; });
  return session_ ? Status() : status_;
}

std::uint64_t AgentSupervisor::starts() const {
  const MutexLock lock(mutex_);
  return starts_;
}

}  // namespace hitide
