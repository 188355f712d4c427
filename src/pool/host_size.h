// How much memory the host tier takes. It is worked out, and refused, before anything is touched.
//
// Threading: pure functions, but for memory_room(), which reads what the system says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <hitide/options.h>
#include <hitide/result.h>

#include "spec/layout.h"

namespace hitide {

struct MemoryRoom {
  std::uint64_t bytes = 0;
  std::string limit = {};  // what sets it: "MemAvailable", or a file of a cgroup
};

// Bytes that can be taken without pushing anything out: the least of MemAvailable and the room left
// in each memory cgroup (version 2 and 1) that this process is in. unavailable: /proc is not there.
// `root` goes in front of /proc and /sys.
Result<MemoryRoom> memory_room(const std::string& root = "");
Result<std::uint64_t> available_memory();

// Of `room`: what a host tier and all else may take together, and a host tier that is not told.
constexpr std::uint64_t host_bytes_most(std::uint64_t room) { return room / 10 * 9; }
constexpr std::uint64_t host_bytes_default(std::uint64_t room) { return room / 4; }

// Memory that an option asks for.
struct MemoryDemand {
  std::string option;
  std::uint64_t bytes = 0;
};

struct HostSize {
  std::uint32_t page_count = 0;  // of each pool
  std::uint64_t bytes = 0;       // of all pools together
};

// Pages that fit into options.bytes, or into a quarter of what `others` leave of `room` where that
// is 0; each page has its stride in every pool. resource_exhausted, with the options and all
// figures: fewer than one page, or more than nine tenths of `room` together with `others`.
// invalid_argument: a pool without bytes, or no pool.
Result<HostSize> host_size(const HostOptions& options, std::span<const PageLayout> pools,
                           const MemoryRoom& room, std::span<const MemoryDemand> others = {});

namespace host_size_internal {
// The number behind "name:" in kB lines of /proc/meminfo, in bytes.
std::optional<std::uint64_t> meminfo_bytes(std::string_view meminfo, std::string_view name);
// The version 1 memory controller's path in the text of /proc/self/cgroup; "/" where none is named.
std::string memory_cgroup_path(std::string_view cgroups);
// Room under a cgroup's limit; the page cache that can be dropped at once counts as room. `limit`
// is "max" or bytes. Nothing: no limit, or not understood.
std::optional<std::uint64_t> cgroup_room(std::string_view limit, std::string_view usage,
                                         std::string_view stat);
}  // namespace host_size_internal

}  // namespace hitide
