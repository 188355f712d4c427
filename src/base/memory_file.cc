#include "base/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

namespace hitide {
namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // of the kernel's interface; older C libraries do not name it
#endif

std::uintptr_t next_huge_page(std::uintptr_t address) {
  return (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

}  // namespace

Result<UniqueFd> create_memory_file(const std::string& name, std::uint64_t bytes) {
  UniqueFd file(::memfd_create(name.substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status(errno, fmt::format("make a memory file of {} bytes for", bytes), name);
  }
  return file;
}

Result<std::span<std::byte>> map_memory_file(const UniqueFd& file, const std::string& name,
                                             std::uint64_t bytes) {
  const auto failed = [&] {
    return errno_status(errno, fmt::format("map {} bytes of", bytes), name);
  };
  // Addresses with room for the next multiple; what is not needed of them goes back.
  const std::uint64_t room_bytes = bytes + kHugePageBytes;
  void* const room =
      ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return failed();
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t at = next_huge_page(begin);
  auto* const base = static_cast<std::byte*>(room) + (at - begin);
  if (::mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) ==
      MAP_FAILED) {
    const Status status = failed();
    ::munmap(room, room_bytes);
    return status;
  }
  if (at > begin) ::munmap(room, at - begin);
  const std::uintptr_t page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t end = (at + bytes + page - 1) / page * page;
  if (begin + room_bytes > end) {
    ::munmap(base + (end - at), begin + room_bytes - end);
  }
  static_cast<void>(::madvise(base, bytes, MADV_DONTDUMP));  // a refusal changes nothing else
  return std::span(base, bytes);
}

std::uint64_t populate_huge_pages(std::span<std::byte> mapping) {
  std::uint64_t done = 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data());
  const std::uintptr_t end = begin + mapping.size();
  for (std::uintptr_t at = next_huge_page(begin); at + kHugePageBytes <= end;
       at += kHugePageBytes) {
    std::byte* const piece = mapping.data() + (at - begin);
    // The system collapses no piece of which it has nothing.
    static_cast<void>(*static_cast<const volatile std::byte*>(piece));
    if (::madvise(piece, kHugePageBytes, kCollapse) != 0) break;
    done += kHugePageBytes;
  }
  return done;
}

}  // namespace hitide
