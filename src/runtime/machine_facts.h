// What check_machine() looks at, and what it makes of it: two steps, so that tests bring machines
// of their own.
//
// Threading: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <hitide/machine.h>

#include "pool/host_size.h"

namespace hitide {

struct DiskFacts {
  std::string path = {};  // the directory, or the nearest above it that is there
  bool directory = true;  // false: something else is in the way
  bool writable = false;
  std::string type = {};  // "ext4", or its number
  std::uint64_t free_bytes = 0;
  std::uint64_t store_bytes = 0;  // of the store's files that are there already
  std::string unknown = {};       // why nothing of this is known; empty: it is
};

struct MachineFacts {
  std::optional<MemoryRoom> room;  // none: the system does not say
  std::string no_huge_pages;       // why not; empty: they are to be had
  std::uint64_t locked_max = 0;    // RLIMIT_MEMLOCK
  std::uint64_t files_max = 0;     // RLIMIT_NOFILE
  std::uint64_t files_hard_max = 0;
  std::uint64_t file_bytes_max = 0;        // RLIMIT_FSIZE
  std::vector<std::uint32_t> numa_nodes;   // that may be used
  std::uint32_t processors = 1;            // that this process may use
  std::optional<DiskFacts> disk;           // of a file store
  std::optional<std::string> interpreter;  // of mooncake: what it complains of; empty: nothing
};

inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

MachineFacts look_at_machine(const MachineCheck& check);
std::vector<MachineLine> judge_machine(const MachineFacts& facts, const MachineCheck& check);

}  // namespace hitide
