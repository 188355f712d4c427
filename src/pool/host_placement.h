// Where the pages of host memory lie before anybody uses them: on which NUMA nodes, in huge pages
// or small ones, touched at start or when first used. A decorator of HostAllocator.
//
//   pinned( placed( mmap or shm ) )
//
// Threading: as HostAllocator; pre-faulting starts threads of its own and joins them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/options.h>
#include <hitide/result.h>

#include "pool/host_allocator.h"

namespace hitide {

// The part of the system that placement speaks to. Tests replace it.
struct PlacementSystem {
  // Nodes with memory that this process may use, rising; one or none: there is nothing to place.
  std::function<std::vector<std::uint32_t>()> numa_nodes;
  // Gives the bytes, which nobody has touched, to these nodes: all in turn, or one. errno, or 0.
  std::function<int(std::span<std::byte> bytes, std::span<const std::uint32_t> nodes)> bind;
  // Touches all bytes; the threads are the caller's. errno, or 0.
  std::function<int(std::span<std::byte> bytes)> touch;
  // Why huge pages are not to be had for memory of this kind when it is touched; empty: they are.
  std::function<std::string(AllocatorKind kind)> no_huge_pages;
  std::uint32_t threads = 0;  // that touch; 0: one for each core, at most 16
};
PlacementSystem this_system();

// Decorates `inner`, which is mmap or shm. allocate() answers resource_exhausted where the memory
// cannot be touched; what else the system refuses is noted in HostSegment::placement, and changes
// nothing. invalid_argument, named by its option: a node that is not there.
Result<std::shared_ptr<HostAllocator>> placed_allocator(std::shared_ptr<HostAllocator> inner,
                                                        const HostOptions& options,
                                                        PlacementSystem system = this_system());

namespace host_placement_internal {
// "0-2,5" as {0, 1, 2, 5}; what is not understood ends the list.
std::vector<std::uint32_t> parse_nodes(std::string_view list);
// The nodes of `nodes` (a /sys/devices/system/node) that have memory and that Mems_allowed_list of
// `status` (a /proc/self/status) names.
std::vector<std::uint32_t> usable_nodes(const std::string& nodes, const std::string& status);
// For --host-numa: nodes to bind to; empty: none. invalid_argument: a node that is not there.
Result<std::vector<std::uint32_t>> chosen_nodes(std::string_view choice,
                                                std::span<const std::uint32_t> nodes);
// The choice in a text like "always [madvise] never"; empty: none.
std::string_view chosen_word(std::string_view text);
}  // namespace host_placement_internal

}  // namespace hitide
