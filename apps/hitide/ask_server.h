// Asks a running `hitide serve` for one of its pages.
#pragma once

#include <string>

namespace hitide::cli {

struct ServerAddress {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key;
};

// kDone: `body` is the answer. Else a line has been printed and the exit code is: kUsage, the
// address is none; kUnavailable, no server or not ready; kNotFound, the server does not know the
// page, of which `absent` tells people; kFailed, anything else.
int ask_server(const std::string& command, const ServerAddress& server, const std::string& path,
               const std::string& absent, std::string& body);

}  // namespace hitide::cli
