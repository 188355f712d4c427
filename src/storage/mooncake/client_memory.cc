#include "storage/mooncake/client_memory.h"

#include <sys/mman.h>

#include <utility>

#include "base/memory_file.h"
#include "base/mutex.h"

namespace hitide {

ClientMemory::~ClientMemory() {
  for (const auto& [base, entry] : entries_) ::munmap(entry.bytes.data(), entry.bytes.size());
}

std::uint32_t ClientMemory::next_segment() {
  const MutexLock lock(mutex_);
  return next_segment_++;
}

Result<MemoryRegion> ClientMemory::keep(std::uint32_t segment, UniqueFd file, std::uint64_t bytes) {
  const auto mapped = map_memory_file(file, "the store client's memory", bytes);
  if (!mapped.ok()) {
    // All that can be wrong with a file that is there is that there is no room for it.
    return Status(StatusCode::resource_exhausted, std::string(mapped.status().message()));
  }
  populate_huge_pages(*mapped);
  const int fd = file.get();
  const MutexLock lock(mutex_);
  entries_.emplace(mapped->data(),
                   Entry{.segment = segment, .file = std::move(file), .bytes = *mapped});
  return MemoryRegion{.bytes = *mapped, .fd = fd};
}

std::optional<std::uint32_t> ClientMemory::release(std::span<std::byte> bytes) {
  const MutexLock lock(mutex_);
  const auto entry = entries_.find(bytes.data());
  if (entry == entries_.end() || entry->second.bytes.size() != bytes.size()) return std::nullopt;
  const std::uint32_t segment = entry->second.segment;
  ::munmap(bytes.data(), bytes.size());
  entries_.erase(entry);
  return segment;
}

}  // namespace hitide
