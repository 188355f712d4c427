#include "storage/mooncake/client_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace hitide {

ClientMemory::~ClientMemory() {
  for (const auto& [base, entry] : entries_) ::munmap(entry.bytes.data(), entry.bytes.size());
}

Result<UniqueFd> ClientMemory::create_file(const std::string& name, std::uint64_t bytes) {
  UniqueFd file(
      ::memfd_create(("hitide_" + name).substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status(errno, fmt::format("make a memory file of {} bytes for", bytes), name);
  }
  return file;
}

std::uint32_t ClientMemory::next_segment() {
  const std::lock_guard lock(mutex_);
  return next_segment_++;
}

Result<MemoryRegion> ClientMemory::keep(std::uint32_t segment, UniqueFd file, std::uint64_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) {
    // All that can be wrong with a file that is there is that there is no room for it.
    return Status(StatusCode::resource_exhausted,
                  std::string(errno_status(errno, fmt::format("map {} bytes of", bytes),
                                           "the store client's memory")
                                  .message()));
  }
  const std::span<std::byte> mapped(static_cast<std::byte*>(base), bytes);
  const int fd = file.get();
  const std::lock_guard lock(mutex_);
  entries_.emplace(mapped.data(),
                   Entry{.segment = segment, .file = std::move(file), .bytes = mapped});
  return MemoryRegion{.bytes = mapped, .fd = fd};
}

std::optional<std::uint32_t> ClientMemory::release(std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(bytes.data());
  if (entry == entries_.end() || entry->second.bytes.size() != bytes.size()) return std::nullopt;
  const std::uint32_t segment = entry->second.segment;
  ::munmap(bytes.data(), bytes.size());
  entries_.erase(entry);
  return segment;
}

}  // namespace hitide
