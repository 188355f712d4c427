// AgentSocket: one connection to an agent; a request and its reply at a time.
//
// Threading: call() by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/file.h"
#include "storage/mooncake/frames.h"

namespace hitide {

struct AgentRequest {
  AgentCall call;
  std::span<const std::byte> body = {};
  int fd = -1;                    // sent along
  UniqueFd* answer_fd = nullptr;  // gets the descriptor that comes with the reply, if any
};

class AgentSocket {
 public:
  // A connected, non-blocking stream socket.
  explicit AgentSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  // The body of the reply. deadline_exceeded: no reply by `limit`. unavailable: the other side is
  // gone. data_loss: what came is no reply to this. After any of the three the connection is of no
  // use any more. Else the agent's refusal: failed_precondition (no package, not set up),
  // invalid_argument (bad request), internal (the client raised).
  Result<FrameBytes> call(const AgentRequest& request, TimePoint limit);

  int fd() const { return fd_.get(); }
  bool broken() const { return broken_; }

 private:
  Status send_all(std::span<const std::byte> bytes, int fd, TimePoint limit);
  // `fd` gets a descriptor that comes along.
  Status receive_all(std::span<std::byte> bytes, TimePoint limit, UniqueFd& fd);
  Status wait_for(short events, TimePoint limit);
  Result<FrameBytes> exchange(const AgentRequest& request, TimePoint limit, AgentStatus& status);

  const UniqueFd fd_;
  std::uint64_t next_request_ = 1;
  bool broken_ = false;
};

}  // namespace hitide
