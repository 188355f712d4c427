#include "storage/mooncake/region_table.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mutex.h"

namespace hitide {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::string named(std::span<const std::byte> bytes) {
  return fmt::format("region of {} bytes at {}", bytes.size(),
                     static_cast<const void*>(bytes.data()));
}

}  // namespace

bool RegionTable::overlaps(std::span<const std::byte> bytes) const {
  auto next = entries_.lower_bound(bytes.data());
  if (next != entries_.end() && next->first < bytes.data() + bytes.size()) return true;
  if (next == entries_.begin()) return false;
  const auto& before = std::prev(next)->second.region.memory.bytes;
  return bytes.data() < before.data() + before.size();
}

// ok: it may be mapped, or `counted` says that it is one more registration of a known region.
Status RegionTable::check(const MemoryRegion& memory, bool& counted) {
  const std::span<std::byte> bytes = memory.bytes;
  if (bytes.empty()) return Status(StatusCode::invalid_argument, "a region of 0 bytes");
  const MutexLock lock(mutex_);
  const auto same = entries_.find(bytes.data());
  counted = same != entries_.end() && same->second.region.memory.bytes.size() == bytes.size();
  if (counted) {
    ++same->second.registrations;
    return {};
  }
  if (overlaps(bytes)) {
    return Status(StatusCode::invalid_argument,
                  named(bytes) + " overlaps one that is registered already");
  }
  if (memory.fd < 0) {
    return Status(StatusCode::failed_precondition,
                  named(bytes) + " is private memory, which the store agent cannot map");
  }
  if (memory.fd_offset % kPageBytes != 0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: its offset {} in the descriptor is no multiple of {}",
                              named(bytes), memory.fd_offset, kPageBytes));
  }
  return {};
}

Status RegionTable::add(const MemoryRegion& memory, const Map& map) {
  const MutexLock changing(changing_);
  bool counted = false;
  HITIDE_RETURN_IF_ERROR(check(memory, counted));
  if (counted) return {};
  Entry entry{.region = {.number = next_number_++, .memory = memory}, .mapped = true};
  const Status status = map(entry.region);
  if (!status.ok()) return status.with_context(named(memory.bytes));
  const MutexLock lock(mutex_);
  entries_.emplace(memory.bytes.data(), entry);
  return {};
}

Status RegionTable::remove(std::span<std::byte> bytes, const Unmap& unmap) {
  const MutexLock changing(changing_);
  std::uint32_t number = 0;
  {
    const MutexLock lock(mutex_);
    const auto entry = entries_.find(bytes.data());
    if (entry == entries_.end() || entry->second.region.memory.bytes.size() != bytes.size()) {
      return Status(StatusCode::invalid_argument, named(bytes) + " is not registered");
    }
    if (--entry->second.registrations > 0) return {};
    const bool mapped = entry->second.mapped;
    number = entry->second.region.number;
    entries_.erase(entry);
    if (!mapped) return {};
  }
  return unmap(number);
}

void RegionTable::map_all(const Map& map) {
  const MutexLock changing(changing_);
  std::vector<Region> regions;
  {
    const MutexLock lock(mutex_);
    for (auto& [base, entry] : entries_) {
      entry.mapped = false;
      regions.push_back(entry.region);
    }
  }
  Status first;
  std::size_t refused = 0;
  for (const Region& region : regions) {
    const Status status = map(region);
    if (!status.ok() && refused++ == 0) first = status.with_context(named(region.memory.bytes));
    const MutexLock lock(mutex_);
    Entry& entry = entries_.at(region.memory.bytes.data());
    entry.mapped = status.ok();
    entry.refused = !status.ok();
  }
  if (refused == 0) return;
  log_warning("regions_not_shared", {{"regions", refused},
                                     {"first", first.to_string()},
                                     {"effect", "copied until there is another agent"}});
}

void RegionTable::unmap_all() {
  const MutexLock changing(changing_);
  const MutexLock lock(mutex_);
  for (auto& [base, entry] : entries_) entry.mapped = false;
}

bool RegionTable::find(std::span<const std::byte> bytes, Place& place) const {
  const MutexLock lock(mutex_);
  auto entry = entries_.upper_bound(bytes.data());
  if (entry == entries_.begin()) return false;
  --entry;
  const auto& [base, found] = *entry;
  const std::size_t size = found.region.memory.bytes.size();
  const auto offset = static_cast<std::size_t>(bytes.data() - base);
  if (!found.mapped || offset > size || bytes.size() > size - offset) return false;
  place = {.region = found.region.number, .offset = offset};
  return true;
}

std::size_t RegionTable::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

std::size_t RegionTable::refused() const {
  const MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      entries_.begin(), entries_.end(), [](const auto& pair) { return pair.second.refused; }));
}

}  // namespace hitide
