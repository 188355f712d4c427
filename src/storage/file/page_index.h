// PageIndex: where each object lies, 32 bytes an object, in open-addressing tables that are filled
// to between 7/12 and 7/8 once they have grown: 37 to 55 bytes an object.
//
// Sharded, so that growing moves a small part at a time: a find waits for one shard's lock, and a
// shard of 64 that holds a million objects is moved within a millisecond.
//
// Threading: all methods from any thread at once. Functions that are passed in are called under a
// shard's lock: they must not call the index.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace hitide {

// Names a key in the index. Two keys with one hash are never seen in practice; if they were, the
// second would not be kept, and never be answered with the first one's bytes.
struct KeyHash {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend bool operator==(const KeyHash&, const KeyHash&) = default;
};
KeyHash hash_key(std::string_view key);  // at most 255 bytes

struct IndexEntry {
  KeyHash key;
  std::uint32_t block = 0;               // offset of the record, in blocks of 4096 bytes
  std::uint32_t payload_bytes : 31 = 0;  // never 0
  std::uint32_t verified : 1 = 0;        // the payload's checksum has been compared
  std::uint32_t written_s = 0;
  std::uint16_t segment = 0;  // slot, not number
  std::uint16_t space = 0;    // namespace, by its number in the store

  std::uint64_t offset() const { return std::uint64_t{block} * 4096; }
  bool same_place(const IndexEntry& other) const {
    return segment == other.segment && block == other.block;
  }
};
static_assert(sizeof(IndexEntry) == 32);

class PageIndex {
 public:
  std::optional<IndexEntry> find(const KeyHash& key) const;
  // Takes the place of an entry of the same key, which is answered. Throws bad_alloc; nothing has
  // changed then.
  std::optional<IndexEntry> put(const IndexEntry& entry);
  // Only where the key's entry is still at the place of `was`. True: done.
  bool replace(const IndexEntry& was, const IndexEntry& entry);
  bool erase(const IndexEntry& was);
  void mark_verified(const IndexEntry& was);
  // Shard by shard; other calls go on between two shards. Answers how many.
  std::uint64_t erase_if(const std::function<bool(const IndexEntry&)>& drop);
  void for_each(const std::function<void(const IndexEntry&)>& visit) const;
  void clear();

  std::uint64_t size() const;
  std::uint64_t memory_bytes() const;  // of everything that the index holds

 private:
  static constexpr std::size_t kShards = 64;
  struct Shard {
    mutable Mutex mutex;
    std::vector<IndexEntry> slots HITIDE_GUARDED_BY(mutex);  // free where payload_bytes is 0
    std::size_t count HITIDE_GUARDED_BY(mutex) = 0;

    std::size_t home(const KeyHash& key) const HITIDE_REQUIRES(mutex);
    std::size_t next(std::size_t slot) const HITIDE_REQUIRES(mutex) {
      return slot + 1 == slots.size() ? 0 : slot + 1;
    }
    // The entry's slot, or the free one where it would go. There must be a free one.
    std::size_t locate(const KeyHash& key) const HITIDE_REQUIRES(mutex);
    void resize(std::size_t size) HITIDE_REQUIRES(mutex);
    void erase_slot(std::size_t slot) HITIDE_REQUIRES(mutex);
    void give_back() HITIDE_REQUIRES(mutex);
  };
  Shard& shard(const KeyHash& key) { return shards_[key.first % kShards]; }
  const Shard& shard(const KeyHash& key) const { return shards_[key.first % kShards]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace hitide
