// Files in memory (memfd), which another process may map too, and their mappings.
//
// Threading: free functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <hitide/result.h>

#include "base/file.h"

namespace hitide {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;

// A file of so many zero bytes. `name` is shown in /proc/PID/maps. Its size is sealed, so that
// another process may trust that no access to its mapping can fault.
Result<UniqueFd> create_memory_file(const std::string& name, std::uint64_t bytes);

// Maps all of it, shared, where huge pages can be mapped: at a multiple of kHugePageBytes. It is
// left out of core dumps: prompts of other people do not belong there. Undone by munmap.
Result<std::span<std::byte>> map_memory_file(const UniqueFd& file, const std::string& name,
                                             std::uint64_t bytes);

// Gives a mapping of a memory file its memory now, in huge pages where the system has them (Linux
// 6.1 and newer, whatever its settings for shared memory are): one pass over 64 MiB in pages of
// 4 KiB took 1.4 times as long. Content stays; others may use the bytes meanwhile. Answers how many
// bytes are in huge pages; the rest is as it was. Cost: 0.1 s a GiB, and several seconds where the
// system must first make room.
std::uint64_t populate_huge_pages(std::span<std::byte> mapping);

}  // namespace hitide
