#include "storage/mooncake/region_table.h"

#include <fmt/format.h>

#include "base/log.h"

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

bool RegionTable::try_map(const Region& region, const Map& map) {
  if (region.memory.fd < 0) return false;
  const Status status = map(region);
  if (!status.ok() && status.code() != StatusCode::unavailable) {
    log_warning("region_not_shared",
                {{"region", named(region.memory.bytes)}, {"reason", status.to_string()}});
  }
  return status.ok();
}

Status RegionTable::add(const MemoryRegion& memory, const Map& map) {
  const std::span<std::byte> bytes = memory.bytes;
  if (bytes.empty()) return Status(StatusCode::invalid_argument, "a region of 0 bytes");
  if (memory.fd >= 0 && memory.fd_offset % kPageBytes != 0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: its offset {} in the descriptor is no multiple of {}",
                              named(bytes), memory.fd_offset, kPageBytes));
  }
  const std::lock_guard lock(mutex_);
  const auto same = entries_.find(bytes.data());
  if (same != entries_.end() && same->second.region.memory.bytes.size() == bytes.size()) {
    ++same->second.registrations;
    return {};
  }
  if (overlaps(bytes)) {
    return Status(StatusCode::invalid_argument,
                  named(bytes) + " overlaps one that is registered already");
  }
  Entry entry{.region = {.number = next_number_++, .memory = memory}};
  entry.mapped = try_map(entry.region, map);
  entries_.emplace(bytes.data(), std::move(entry));
  return {};
}

Status RegionTable::remove(std::span<std::byte> bytes, const Unmap& unmap) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(bytes.data());
  if (entry == entries_.end() || entry->second.region.memory.bytes.size() != bytes.size()) {
    return Status(StatusCode::invalid_argument, named(bytes) + " is not registered");
  }
  if (--entry->second.registrations > 0) return {};
  const bool mapped = entry->second.mapped;
  const std::uint32_t number = entry->second.region.number;
  entries_.erase(entry);
  return mapped ? unmap(number) : Status();
}

std::size_t RegionTable::map_all(const Map& map) {
  const std::lock_guard lock(mutex_);
  std::size_t failed = 0;
  for (auto& [base, entry] : entries_) {
    entry.mapped = try_map(entry.region, map);
    if (!entry.mapped && entry.region.memory.fd >= 0) ++failed;
  }
  return failed;
}

void RegionTable::unmap_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [base, entry] : entries_) entry.mapped = false;
}

bool RegionTable::find(std::span<const std::byte> bytes, Place& place) const {
  const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace hitide
