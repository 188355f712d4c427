// Checks of MooncakeOptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <hitide/mooncake_options.h>
#include <hitide/result.h>

namespace hitide {

// invalid_argument that names the option, its value and what is allowed.
Status validate(const MooncakeOptions& options);

struct HostPort {
  std::string host;  // without brackets
  std::uint16_t port = 0;
};
// "host:port" or "[v6 address]:port". invalid_argument names the part that is wrong.
Result<HostPort> parse_host_port(std::string_view text);

}  // namespace hitide
