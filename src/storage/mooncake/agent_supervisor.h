// AgentSupervisor: keeps one agent running: starts it, watches it, and starts another when it has
// ended, with a pause that grows while agents keep ending soon. An agent whose store is away is
// kept, and set up as soon as the store is back.
//
// Threading: any thread. It has one of its own, from the constructor to stop().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/mutex.h"
#include "storage/mooncake/agent_session.h"
#include "storage/mooncake/stoppable_thread.h"

namespace hitide {

class AgentSupervisor {
 public:
  // Called on the supervisor's thread for each new agent before calls may use it; a failure ends
  // that agent.
  using OnStart = std::function<Status(AgentSession&)>;
  using OnEnd = std::function<void()>;

  AgentSupervisor(AgentConfig config, OnStart on_start, OnEnd on_end);
  ~AgentSupervisor();
  AgentSupervisor(const AgentSupervisor&) = delete;
  AgentSupervisor& operator=(const AgentSupervisor&) = delete;

  // The agent that calls may use now, or why there is none.
  Result<std::shared_ptr<AgentSession>> session() const;
  // ok as soon as there is an agent. failed_precondition: the last try failed for good;
  // deadline_exceeded: none by then, with the reason of the last try.
  Status wait_until_ready(TimePoint deadline) const;
  // Waits for the end of the first try: its outcome.
  Status first_try() const;
  // Agents that were ready once.
  std::uint64_t starts() const;

  // Ends the agent and the thread. Calls that are in flight end as unavailable.
  void stop();

 private:
  void run();
  Status run_one(bool& was_ready);
  void watch(AgentSession& session);
  void publish(std::shared_ptr<AgentSession> session, Status status);
  Status set_up(AgentSession& session);

  const AgentConfig config_;
  const OnStart on_start_;
  const OnEnd on_end_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::shared_ptr<AgentSession> session_ HITIDE_GUARDED_BY(mutex_);
  Status status_ HITIDE_GUARDED_BY(mutex_);  // why session_ is empty
  std::uint64_t starts_ HITIDE_GUARDED_BY(mutex_) = 0;
  std::uint64_t tries_ HITIDE_GUARDED_BY(mutex_) = 0;
  StoppableThread thread_;
};

}  // namespace hitide
