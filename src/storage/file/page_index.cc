#include "storage/file/page_index.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <span>

#include "base/hash.h"

namespace hitide {
namespace {

constexpr std::size_t kSlotsLeast = 16;

bool is_free(const IndexEntry& slot) { return slot.payload_bytes == 0; }

}  // namespace

KeyHash hash_key(std::string_view key) {
  std::array<std::byte, 256> salted;
  salted[0] = std::byte{0x5a};
  std::memcpy(salted.data() + 1, key.data(), key.size());
  const auto bytes = std::span(salted).first(key.size() + 1);
  return {.first = checksum64(bytes.subspan(1)), .second = checksum64(bytes)};
}

// ---- one shard ----------------------------------------------------------------------------------

std::size_t PageIndex::Shard::home(const KeyHash& key) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::size_t>((static_cast<Wide>(key.second) * slots.size()) >> 64);
}

std::size_t PageIndex::Shard::locate(const KeyHash& key) const {
  std::size_t slot = home(key);
  while (!is_free(slots[slot]) && slots[slot].key != key) slot = next(slot);
  return slot;
}

void PageIndex::Shard::resize(std::size_t size) {
  std::vector<IndexEntry> old(size);
  old.swap(slots);
  for (const IndexEntry& entry : old) {
    if (!is_free(entry)) slots[locate(entry.key)] = entry;
  }
}

// What follows without a gap moves up where its home allows it.
void PageIndex::Shard::erase_slot(std::size_t slot) {
  std::size_t hole = slot;
  for (std::size_t at = next(hole); !is_free(slots[at]); at = next(at)) {
    const std::size_t wanted = home(slots[at].key);
    const bool stays =
        hole < at ? (hole < wanted && wanted <= at) : (hole < wanted || wanted <= at);
    if (stays) continue;
    slots[hole] = slots[at];
    hole = at;
  }
  slots[hole] = {};
  --count;
}

void PageIndex::Shard::give_back() {
  if (slots.size() <= kSlotsLeast || count * 4 >= slots.size()) return;
  try {
    resize(std::max(kSlotsLeast, count * 3 / 2));
  } catch (const std::bad_alloc&) {
    // Then it stays as large as it is.
  }
}

// ---- calls --------------------------------------------------------------------------------------

std::optional<IndexEntry> PageIndex::find(const KeyHash& key) const {
  const Shard& in = shard(key);
  const MutexLock lock(in.mutex);
  if (in.count == 0) return std::nullopt;
  const IndexEntry& slot = in.slots[in.locate(key)];
  if (is_free(slot)) return std::nullopt;
  return slot;
}

std::optional<IndexEntry> PageIndex::put(const IndexEntry& entry) {
  Shard& in = shard(entry.key);
  const MutexLock lock(in.mutex);
  if ((in.count + 1) * 8 > in.slots.size() * 7) {
    in.resize(std::max(kSlotsLeast, in.slots.size() * 3 / 2));
  }
  IndexEntry& slot = in.slots[in.locate(entry.key)];
  std::optional<IndexEntry> old;
  if (is_free(slot)) {
    ++in.count;
  } else {
    old = slot;
  }
  slot = entry;
  return old;
}

bool PageIndex::replace(const IndexEntry& was, const IndexEntry& entry) {
  Shard& in = shard(was.key);
  const MutexLock lock(in.mutex);
  if (in.count == 0) return false;
  IndexEntry& slot = in.slots[in.locate(was.key)];
  if (is_free(slot) || !slot.same_place(was)) return false;
  slot = entry;
  return true;
}

bool PageIndex::erase(const IndexEntry& was) {
  Shard& in = shard(was.key);
  const MutexLock lock(in.mutex);
  if (in.count == 0) return false;
  const std::size_t slot = in.locate(was.key);
  if (is_free(in.slots[slot]) || !in.slots[slot].same_place(was)) return false;
  in.erase_slot(slot);
  in.give_back();
  return true;
}

void PageIndex::mark_verified(const IndexEntry& was) {
  IndexEntry now = was;
  now.verified = 1;
  replace(was, now);
}

std::uint64_t PageIndex::erase_if(const std::function<bool(const IndexEntry&)>& drop) {
  std::uint64_t erased = 0;
  for (Shard& in : shards_) {
    const MutexLock lock(in.mutex);
    for (std::size_t slot = 0; slot < in.slots.size();) {
      if (is_free(in.slots[slot]) || !drop(in.slots[slot])) {
        ++slot;
        continue;
      }
      in.erase_slot(slot);  // another entry may stand there now
      ++erased;
    }
    in.give_back();
  }
  return erased;
}

void PageIndex::for_each(const std::function<void(const IndexEntry&)>& visit) const {
  for (const Shard& in : shards_) {
    const MutexLock lock(in.mutex);
    for (const IndexEntry& slot : in.slots) {
      if (!is_free(slot)) visit(slot);
    }
  }
}

void PageIndex::clear() {
  for (Shard& in : shards_) {
    const MutexLock lock(in.mutex);
    in.slots = {};
    in.count = 0;
  }
}

std::uint64_t PageIndex::size() const {
  std::uint64_t total = 0;
  for (const Shard& in : shards_) {
    const MutexLock lock(in.mutex);
    total += in.count;
  }
  return total;
}

std::uint64_t PageIndex::memory_bytes() const {
  std::uint64_t total = sizeof(*this);
  for (const Shard& in : shards_) {
    const MutexLock lock(in.mutex);
    total += in.slots.capacity() * sizeof(IndexEntry);
  }
  return total;
}

}  // namespace hitide
