// RegionTable: the registered memory of a store, and which of it the current agent has mapped.
//
// Threading: any thread. Mapping a region may take seconds: changes of the table wait for each
// other then, and find() for nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include <hitide/object_store.h>
#include <hitide/result.h>

#include "base/mutex.h"

namespace hitide {

class RegionTable {
 public:
  struct Place {
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
  };
  struct Region {
    std::uint32_t number = 0;  // what the agent calls it
    MemoryRegion memory;
  };
  // Maps a region in the agent, or says why it cannot be used there.
  using Map = std::function<Status(const Region&)>;
  using Unmap = std::function<Status(std::uint32_t number)>;

  // `first_number`: smaller ones are somebody else's.
  explicit RegionTable(std::uint32_t first_number) : next_number_(first_number) {}

  // Keeps the region if it could be mapped; else the failure of `map`. The same region again is
  // counted. invalid_argument: it is empty, its bytes overlap another region, or its descriptor's
  // offset is no multiple of the page size. failed_precondition: private memory.
  Status add(const MemoryRegion& memory, const Map& map);
  // invalid_argument: no such region.
  Status remove(std::span<std::byte> bytes, const Unmap& unmap);

  // For a new agent: forgets what the last one had mapped and maps everything anew. A region that
  // cannot be mapped is warned of and kept; it is not found() until a later agent has it.
  void map_all(const Map& map);
  // Between agents: nothing is mapped.
  void unmap_all();

  // True, and where, when the bytes lie in one region that the agent has mapped.
  bool find(std::span<const std::byte> bytes, Place& place) const;
  std::size_t size() const;
  // Regions that the last agent that was given all of them could not be made to map.
  std::size_t refused() const;

 private:
  struct Entry {
    Region region;
    std::size_t registrations = 1;
    bool mapped = false;
    bool refused = false;
  };
  using Entries = std::map<const std::byte*, Entry>;  // by the first byte
  Status check(const MemoryRegion& memory, bool& counted) HITIDE_REQUIRES(changing_);
  bool overlaps(std::span<const std::byte> bytes) const HITIDE_REQUIRES(mutex_);

  Mutex changing_;  // held over a whole change; before mutex_
  mutable Mutex mutex_;
  Entries entries_ HITIDE_GUARDED_BY(mutex_);  // entries come and go under changing_ too
  std::uint32_t next_number_ HITIDE_GUARDED_BY(changing_);
};

}  // namespace hitide
