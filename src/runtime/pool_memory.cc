#include "runtime/pool_memory.h"

#include <fcntl.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/file.h"

namespace hitide {

std::shared_ptr<HostAllocator> allocator_of(ObjectStore& store) {
  StoreMemory source;
  source.allocate = [&store](const std::string& name, std::uint64_t bytes) -> Result<HostSegment> {
    HITIDE_ASSIGN_OR_RETURN(const MemoryRegion region, store.allocate_memory(name, bytes));
    HostSegment segment;
    segment.bytes = region.bytes;
    segment.fd = UniqueFd(::fcntl(region.fd, F_DUPFD_CLOEXEC, 0));
    if (segment.fd.valid() && region.fd_offset == 0) return segment;
    const int error = errno;
    store.release_memory(region.bytes);
    return errno_status(error, "keep the descriptor of store memory", name);
  };
  source.release = [&store](const HostSegment& segment) { store.release_memory(segment.bytes); };
  return store_allocator(std::move(source));
}

Result<std::shared_ptr<HostAllocator>> allocator_of(AllocatorKind kind, ObjectStore* store) {
  switch (kind) {
    case AllocatorKind::shm:
      return shm_allocator();
    case AllocatorKind::mmap:
      return mmap_allocator();
    case AllocatorKind::store:
      if (store != nullptr) return allocator_of(*store);
      return Status(StatusCode::failed_precondition,
                    "host allocator store: there is no store that could hand memory out");
    case AllocatorKind::none:
    case AllocatorKind::unknown:
      break;
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("host allocator {}: it is shm, mmap or store", to_string(kind)));
}

AllocatorKind chosen_allocator(const HostOptions& options, std::string_view pool) {
  for (const HostAllocatorChoice& choice : options.pool_allocators) {
    if (choice.pool == pool) return allocator_kind(choice.kind);
  }
  return allocator_kind(options.allocator);
}

}  // namespace hitide
