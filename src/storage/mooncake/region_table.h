// RegionTable: the registered memory of a store, and which of it the current agent has mapped.
//
// Threading: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>

#include <hitide/object_store.h>
#include <hitide/result.h>

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
  // Maps a region in the agent. unavailable: there is no agent now; another failure is its refusal,
  // and worth a warning. Called with the table's lock held.
  using Map = std::function<Status(const Region&)>;
  using Unmap = std::function<Status(std::uint32_t number)>;

  // `first_number`: smaller ones are somebody else's.
  explicit RegionTable(std::uint32_t first_number) : next_number_(first_number) {}

  // The same region again is counted. invalid_argument: it is empty, its bytes overlap another
  // region, or its descriptor's offset is no multiple of the page size. A region that cannot be
  // mapped (private memory, no agent, or it refuses) is kept, and not found() until it is.
  Status add(const MemoryRegion& memory, const Map& map);
  // invalid_argument: no such region.
  Status remove(std::span<std::byte> bytes, const Unmap& unmap);

  // For a new agent: forgets what the last one had mapped and maps everything anew. Answers how
  // many regions could not be.
  std::size_t map_all(const Map& map);
  // Between agents: nothing is mapped.
  void unmap_all();

  // True, and where, when the bytes lie in one region that the agent has mapped.
  bool find(std::span<const std::byte> bytes, Place& place) const;
  std::size_t size() const;

 private:
  struct Entry {
    Region region;
    std::size_t registrations = 1;
    bool mapped = false;
  };
  using Entries = std::map<const std::byte*, Entry>;  // by the first byte
  bool overlaps(std::span<const std::byte> bytes) const;
  static bool try_map(const Region& region, const Map& map);

  mutable std::mutex mutex_;
  Entries entries_;            // guarded by mutex_
  std::uint32_t next_number_;  // guarded by mutex_
};

}  // namespace hitide
