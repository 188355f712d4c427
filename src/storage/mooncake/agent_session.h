// AgentSession: one running agent, set up and ready: its process, its control connection and its
// lanes. A call that is not answered by its limit, or answered with nonsense, ends the agent: it is
// killed and waited for before the call returns, so that nothing writes to the call's buffers any
// more.
//
// Threading: any thread, but start(), which belongs on a thread that outlives the session.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/mutex.h"
#include "storage/mooncake/agent_socket.h"
#include "storage/mooncake/child_process.h"

namespace hitide {

enum class AgentLane : std::uint8_t { query = 0, read, write };
inline constexpr std::size_t kAgentLaneCount = 3;

struct AgentConfig {
  ChildCommand command;
  FramePairs setup;
  std::array<std::uint32_t, kAgentLaneCount> lanes = {1, 1, 1};
  Duration start_limit = std::chrono::seconds(10);
  Duration control_limit = std::chrono::seconds(3);
};

class AgentSession {
 public:
  // Not set up yet. failed_precondition: the program, the package or a library is missing (do not
  // just retry).
  static Result<std::shared_ptr<AgentSession>> start(const AgentConfig& config);
  // Before anything else. unavailable: the store did not let the client in. `away`: nobody answers
  // where it should be; the agent goes on, and may be asked again. After any other failure it is
  // gone.
  Status set_up(const AgentConfig& config, bool& away);
  ~AgentSession();
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;

  // Waits for a lane until `lane_deadline` (deadline_exceeded then, and the agent goes on), then
  // calls. deadline_exceeded: `limit` passed and the agent was killed. unavailable: the agent
  // ended, or was killed for another call's sake. Else as AgentSocket::call().
  Result<FrameBytes> call(AgentLane lane, const AgentRequest& request, TimePoint lane_deadline,
                          Duration limit);
  // The same over the control connection; control_limit of the configuration, and `more`.
  Result<FrameBytes> control(const AgentRequest& request, Duration more = Duration::zero());

  // Kills the agent and waits until it is gone. `why` is kept if it is the first reason.
  void kill(const std::string& why);
  bool alive() const { return !dead_.load(); }
  std::string death() const;

  // For the one who watches it.
  int control_fd() const { return control_.fd(); }
  ChildProcess& process() { return *process_; }

 private:
  struct Pool {
    std::vector<AgentSocket*> free;  // guarded by lanes_mutex_
    std::vector<std::unique_ptr<AgentSocket>> all;
  };

  AgentSession(std::unique_ptr<ChildProcess> process, Duration control_limit);
  Status say_hello(TimePoint deadline);
  Status call_set_up(const AgentConfig& config, TimePoint deadline, bool& away);
  Status add_lanes(const AgentConfig& config, TimePoint deadline);
  Result<FrameBytes> judge(Result<FrameBytes> answer, const AgentSocket& socket, Duration limit);

  const std::unique_ptr<ChildProcess> process_;
  const Duration control_limit_;
  AgentSocket control_;  // used by whoever has set control_busy_
  std::atomic<bool> dead_ = false;
  mutable Mutex death_mutex_;
  std::string death_ HITIDE_GUARDED_BY(death_mutex_);

  Mutex lanes_mutex_;
  CondVar lane_free_;
  bool control_busy_ HITIDE_GUARDED_BY(lanes_mutex_) = false;
  std::array<Pool, kAgentLaneCount> pools_;
};

}  // namespace hitide
