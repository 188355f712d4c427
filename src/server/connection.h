// The sockets behind a server's connections. The HTTP library hands out neither the socket of a
// request nor those that are idle, so they are found among the process's own descriptors by their
// addresses.
#pragma once

#include <set>
#include <string>

namespace hitide {

// The connected socket from local_port to the peer; -1: there is none. Costs a walk over the open
// descriptors. The number stays good for as long as the library answers the request.
int find_connection(const std::string& peer_address, int peer_port, int local_port);

// Whether the peer has closed, or is gone. False for fd < 0.
bool peer_gone(int fd);

// Ends the reading side of the connections to local_port that are not in `spared`, so that threads
// that wait for a next request on them go on.
void stop_reading_connections(int local_port, const std::set<int>& spared);

}  // namespace hitide
