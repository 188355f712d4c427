#include "storage/mooncake/agent_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "base/clock.h"

namespace hitide {
namespace {

Status gone() { return Status(StatusCode::unavailable, "the store agent closed its connection"); }

StatusCode code_of(AgentStatus status) {
  switch (status) {
    case AgentStatus::not_ready:
    case AgentStatus::package_missing:
      return StatusCode::failed_precondition;
    case AgentStatus::bad_request:
      return StatusCode::invalid_argument;
    case AgentStatus::bad_frame:
    case AgentStatus::bad_version:
      return StatusCode::data_loss;
    default:
      return StatusCode::internal;
  }
}

// One descriptor as a control message.
class FdMessage {
 public:
  FdMessage(msghdr& message, int fd) {
    if (fd < 0) return;
    message.msg_control = space_;
    message.msg_controllen = sizeof space_;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }

 private:
  alignas(cmsghdr) char space_[CMSG_SPACE(sizeof(int))] = {};
};

// As recv(), but keeps the one descriptor that comes along; more than one are closed by the system.
ssize_t receive_some(int socket, std::span<std::byte> bytes, UniqueFd& fd) {
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int came = -1;
    std::memcpy(&came, CMSG_DATA(header), sizeof came);
    fd = UniqueFd(came);
  }
  return got;
}

}  // namespace

Status AgentSocket::wait_for(short events, TimePoint limit) {
  for (;;) {
    int wait_ms = -1;
    if (limit != kNoDeadline) {
      const auto left = limit - SystemClock::instance().now();
      if (left <= Duration::zero()) {
        return Status(StatusCode::deadline_exceeded, "the store agent did not answer in time");
      }
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      wait_ms = static_cast<int>(std::min<std::int64_t>(ms, 60'000));
    }
    pollfd at{.fd = fd_.get(), .events = events, .revents = 0};
    const int ready = ::poll(&at, 1, wait_ms);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return errno_status(errno, "wait for", "the store agent");
  }
}

Status AgentSocket::send_all(std::span<const std::byte> bytes, int fd, TimePoint limit) {
  while (!bytes.empty()) {
    iovec piece{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const FdMessage attached(message, fd);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      fd = -1;
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      HITIDE_RETURN_IF_ERROR(wait_for(POLLOUT, limit));
    } else if (sent < 0 && errno != EINTR) {
      return gone();
    }
  }
  return {};
}

Status AgentSocket::receive_all(std::span<std::byte> bytes, TimePoint limit, UniqueFd& fd) {
  while (!bytes.empty()) {
    const ssize_t got = receive_some(fd_.get(), bytes, fd);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      HITIDE_RETURN_IF_ERROR(wait_for(POLLIN, limit));
    } else if (got == 0 || errno != EINTR) {
      return gone();
    }
  }
  return {};
}

Result<FrameBytes> AgentSocket::exchange(const AgentRequest& request, TimePoint limit,
                                         AgentStatus& status) {
  const std::uint64_t number = next_request_++;
  const auto type = static_cast<std::uint16_t>(request.call);
  const FrameHeaderBytes header =
      encode_header({.type = type,
                     .request = number,
                     .status = 0,
                     .body_bytes = static_cast<std::uint32_t>(request.body.size())});
  // One message where it fits: fewer wake-ups of the agent.
  FrameBytes frame(header.begin(), header.end());
  frame.insert(frame.end(), request.body.begin(), request.body.end());
  HITIDE_RETURN_IF_ERROR(send_all(frame, request.fd, limit));
  FrameHeaderBytes answer{};
  UniqueFd came;
  HITIDE_RETURN_IF_ERROR(receive_all(answer, limit, came));
  HITIDE_ASSIGN_OR_RETURN(const FrameHeader got, decode_header(answer));
  FrameBytes body(got.body_bytes);
  HITIDE_RETURN_IF_ERROR(receive_all(body, limit, came));
  status = static_cast<AgentStatus>(got.status);
  // A frame that the agent could not read has no number to answer to.
  const bool refused = status == AgentStatus::bad_frame || status == AgentStatus::bad_version;
  if (!refused && (got.request != number || got.type != (type | kFrameReply))) {
    return Status(StatusCode::data_loss,
                  fmt::format("the store agent answered request {} of type {:#x} instead of {} of "
                              "type {:#x}",
                              got.request, got.type, number, type | kFrameReply));
  }
  if (request.answer_fd != nullptr) *request.answer_fd = std::move(came);
  return body;
}

Result<FrameBytes> AgentSocket::call(const AgentRequest& request, TimePoint limit) {
  if (request.body.size() > kFrameBodyBytesMax) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("agent frame: a body of {} bytes; the limit is {}",
                              request.body.size(), kFrameBodyBytesMax));
  }
  if (broken_) return gone();
  AgentStatus status = AgentStatus::ok;
  Result<FrameBytes> body = exchange(request, limit, status);
  if (!body.ok()) {
    broken_ = true;
    return body.status().with_context(to_string(request.call));
  }
  if (status == AgentStatus::ok) return body;
  const StatusCode code = code_of(status);
  broken_ = code == StatusCode::data_loss;
  const std::string text(reinterpret_cast<const char*>(body->data()), body->size());
  return Status(code, fmt::format("{}: {}", to_string(request.call), text));
}

}  // namespace hitide
