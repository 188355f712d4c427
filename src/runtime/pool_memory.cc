#include "runtime/pool_memory.h"

#include <fcntl.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/file.h"
#include "pool/host_placement.h"

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

Result<std::shared_ptr<HostAllocator>> placed_allocator_of(AllocatorKind kind, ObjectStore* store,
                                                           const HostOptions& options) {
  HITIDE_ASSIGN_OR_RETURN(auto allocator, allocator_of(kind, store));
  if (kind != AllocatorKind::shm && kind != AllocatorKind::mmap) return allocator;
  return placed_allocator(std::move(allocator), options);
}

std::vector<MemoryDemand> other_demands(const StorageOptions& storage) {
  std::vector<MemoryDemand> demands;
  if (storage.backend != "mooncake") return demands;
  const MooncakeOptions& mooncake = storage.mooncake;
  if (!mooncake.standalone_storage && mooncake.global_segment_size > 0) {
    demands.push_back({"global_segment_size", mooncake.global_segment_size});
  }
  demands.push_back({"bounce_bytes", mooncake.bounce_bytes});
  return demands;
}

Result<HostSize> planned_host_size(const HostOptions& options, const ModelSpec& model,
                                   const DeviceGeometry& device,
                                   const std::vector<MemoryDemand>& others) {
  HITIDE_ASSIGN_OR_RETURN(const MemoryRoom room, memory_room());
  std::vector<PageLayout> layouts;
  std::uint64_t page_bytes = 0;
  for (const PoolSpec& pool : model.pools) {
    layouts.push_back(page_layout(pool));
    page_bytes += layouts.back().stride_bytes;
  }
  HostOptions host = options;
  if (host.bytes == 0 && host.ratio > 0.0) {
    const double device_bytes =
        static_cast<double>(device.page_count) * static_cast<double>(page_bytes);
    host.bytes = static_cast<std::uint64_t>(host.ratio * device_bytes);
  }
  return host_size(host, layouts, room, others);
}

AllocatorKind chosen_allocator(const HostOptions& options, std::string_view pool) {
  for (const HostAllocatorChoice& choice : options.pool_allocators) {
    if (choice.pool == pool) return allocator_kind(choice.kind);
  }
  return allocator_kind(options.allocator);
}

}  // namespace hitide
