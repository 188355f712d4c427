#include "server/socket.h"

#include <cerrno>
#include <charconv>
#include <memory>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"

namespace hitide {
namespace {

constexpr int kBacklog = 256;

std::string error_text(int error) { return std::generic_category().message(error); }

std::uint16_t port_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  char service[NI_MAXSERV] = "";
  std::uint16_t port = 0;
  if (getsockname(fd, address, &length) != 0) return 0;
  if (getnameinfo(address, length, nullptr, 0, service, sizeof service, NI_NUMERICSERV) != 0) {
    return 0;
  }
  const std::string_view digits(service);
  std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return port;
}

bool is_loopback(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return false;
  if (storage.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(storage).sin_addr;
    return ntohl(address.s_addr) >> 24 == 127;
  }
  if (storage.ss_family != AF_INET6) return false;
  const auto& address = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

// Errno of the call that failed, or 0.
int listen_at(const addrinfo& address, UniqueFd& out) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  // Not SO_REUSEPORT: a second server must fail.
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  if (::listen(fd.get(), kBacklog) != 0) return errno;
  out = std::move(fd);
  return 0;
}

}  // namespace

Result<ListeningSocket> listen_on(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int looked_up = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (looked_up != 0) {
    return Status(
        StatusCode::unavailable,
        fmt::format("--host: '{}' is no address to listen on: {}", host,
                    looked_up == EAI_SYSTEM ? error_text(errno) : gai_strerror(looked_up)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    ListeningSocket listening;
    error = listen_at(*address, listening.fd);
    if (error != 0) continue;
    listening.port = port_of(listening.fd.get());
    listening.loopback = is_loopback(listening.fd.get());
    return listening;
  }
  if (error == EADDRINUSE) {
    return Status(StatusCode::unavailable,
                  fmt::format("--port: {}:{} is in use; stop the other server or take another port",
                              host, port));
  }
  return Status(StatusCode::unavailable, fmt::format("--host, --port: cannot listen on {}:{}: {}",
                                                     host, port, error_text(error)));
}

bool peer_gone(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  if (poll(&entry, 1, 0) <= 0) return false;
  return (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

std::int64_t send_some(int fd, std::string_view bytes) {
  for (;;) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

bool send_all(int fd, std::string_view bytes, Duration patience) {
  while (!bytes.empty()) {
    const std::int64_t sent = send_some(fd, bytes);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (bytes.empty() || sent > 0) continue;
    pollfd entry{fd, POLLOUT, 0};
    const int ready = poll(&entry, 1, static_cast<int>(patience / std::chrono::milliseconds(1)));
    if (ready == 0 || (ready < 0 && errno != EINTR)) return false;
  }
  return true;
}

}  // namespace hitide
