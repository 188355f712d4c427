// How much memory the host tier takes.
//
// Threading: pure functions, but for available_memory(), which reads what the system says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <hitide/options.h>
#include <hitide/result.h>

#include "spec/layout.h"

namespace hitide {

// Bytes that can be taken without pushing anything out: the least of MemAvailable and the room left
// in each memory cgroup (version 2 and 1) that this process is in. unavailable: /proc is not there.
Result<std::uint64_t> available_memory();

struct HostSize {
  std::uint32_t page_count = 0;
  std::uint64_t bytes = 0;  // page_count strides
};

// Pages that fit into options.bytes, or into a quarter of `memory_available` where that is 0.
// resource_exhausted: fewer than one page, or more than nine tenths of `memory_available`.
// invalid_argument: a pool without bytes.
Result<HostSize> host_size(const HostOptions& options, const PageLayout& layout,
                           std::uint64_t memory_available);

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
