#include "server/connection.h"

#include <charconv>
#include <functional>
#include <memory>

#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

namespace hitide {
namespace {

struct Endpoint {
  std::string address;
  int port = -1;
};

// Numeric, as the HTTP library writes it. Port -1: `fd` is no connected internet socket.
Endpoint endpoint_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (ask(fd, address, &length) != 0) return {};
  if (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) return {};
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof host, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  Endpoint endpoint;
  endpoint.address = host;
  const std::string_view digits(service);
  std::from_chars(digits.data(), digits.data() + digits.size(), endpoint.port);
  return endpoint;
}

// Calls `visit` with each open descriptor until it answers true.
void visit_descriptors(const std::function<bool(int)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (!folder) return;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string_view name(entry->d_name);
    int fd = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), fd);
    if (error == std::errc() && end == name.data() + name.size() && visit(fd)) return;
  }
}

}  // namespace

int find_connection(const std::string& peer_address, int peer_port, int local_port) {
  int found = -1;
  visit_descriptors([&](int fd) {
    const Endpoint peer = endpoint_of(fd, getpeername);
    if (peer.port != peer_port || peer.address != peer_address) return false;
    if (endpoint_of(fd, getsockname).port != local_port) return false;
    found = fd;
    return true;
  });
  return found;
}

bool peer_gone(int fd) {
  if (fd < 0) return false;
  pollfd entry{fd, POLLRDHUP, 0};
  if (poll(&entry, 1, 0) <= 0) return false;
  return (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void stop_reading_connections(int local_port, const std::set<int>& spared) {
  visit_descriptors([&](int fd) {
    if (spared.count(fd) != 0) return false;
    if (endpoint_of(fd, getpeername).port >= 0 && endpoint_of(fd, getsockname).port == local_port) {
      shutdown(fd, SHUT_RD);
    }
    return false;
  });
}

}  // namespace hitide
