// ClientMemory: memory that the store's client hands out to pools, as this process has it mapped.
//
// Threading: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include <hitide/object_store.h>
#include <hitide/result.h>

#include "base/file.h"
#include "base/mutex.h"

namespace hitide {

class ClientMemory {
 public:
  ClientMemory() = default;
  ~ClientMemory();
  ClientMemory(const ClientMemory&) = delete;
  ClientMemory& operator=(const ClientMemory&) = delete;

  // A number that no segment has had.
  std::uint32_t next_segment();
  // Maps the file, in huge pages where it can, and keeps it under this number until release().
  // resource_exhausted: there is no room to map it.
  Result<MemoryRegion> keep(std::uint32_t segment, UniqueFd file, std::uint64_t bytes);
  // Unmaps and closes it, and answers its number; nothing: not memory of this object's.
  std::optional<std::uint32_t> release(std::span<std::byte> bytes);

 private:
  struct Entry {
    std::uint32_t segment = 0;
    UniqueFd file;
    std::span<std::byte> bytes;
  };

  Mutex mutex_;
  std::map<const std::byte*, Entry> entries_ HITIDE_GUARDED_BY(mutex_);  // by the first byte
  std::uint32_t next_segment_ HITIDE_GUARDED_BY(mutex_) = 1;
};

}  // namespace hitide
