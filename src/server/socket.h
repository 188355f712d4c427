// The few calls on internet sockets that the server makes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/file.h"

namespace hitide {

struct ListeningSocket {
  UniqueFd fd;  // does not block
  std::uint16_t port = 0;
  bool loopback = false;  // only this machine can reach it
};
// `port` 0: any. unavailable: the name has no address, the address is not ours, or the port is in
// use; the message names the option.
Result<ListeningSocket> listen_on(const std::string& host, std::uint16_t port);

// Whether the peer has closed, or is gone.
bool peer_gone(int fd);

// How many bytes the socket takes now; -1: the connection is gone.
std::int64_t send_some(int fd, std::string_view bytes);
// Sends all; waits for a peer that reads slowly, but no longer than `patience` for its next read.
bool send_all(int fd, std::string_view bytes, Duration patience);

}  // namespace hitide
