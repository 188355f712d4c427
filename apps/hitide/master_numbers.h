// What the master of a Mooncake store says of itself, at its metrics port.
#pragma once

#include <cstdint>
#include <string>

#include <hitide/mooncake_options.h>
#include <hitide/result.h>

namespace hitide::cli {

struct MasterNumbers {
  std::uint64_t objects = 0;  // of all clients
  std::uint64_t bytes_used = 0;
  std::uint64_t bytes_limit = 0;
  std::uint64_t evicted_objects = 0;
};

// unavailable: it does not answer in a few seconds, or there is no port to ask.
Result<MasterNumbers> ask_master(const MooncakeOptions& options);

}  // namespace hitide::cli
