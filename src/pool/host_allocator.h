// HostAllocator: who hands out the memory of host pools, in segments.
//
//   mmap    private anonymous memory, huge pages where the system gives them; for this process only
//   shm     a sealed memfd, mapped shared: another process may map it too
//   store   segments that a store's client hands out
//   placed  a decorator of the first two: NUMA nodes, huge pages, pre-faulting (host_placement.h)
//   pinned  a decorator: pins what another allocator hands out; answers for that one
//
// Threading: allocate() and release() from any thread. An allocator must outlive its segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <hitide/registration.h>
#include <hitide/result.h>

#include "base/file.h"

namespace hitide {

// What the system gave of what it was asked for, in words for the log; empty: it was not asked.
struct HostPlacement {
  std::string numa = {};
  std::string huge_pages = {};
  std::uint64_t huge_bytes = 0;  // in huge pages already
  std::string prefaulted = {};
};

struct HostSegment {
  UniqueFd fd;  // what `bytes` are a shared mapping of, from its start; not valid: private memory
  std::span<std::byte> bytes;
  HostPlacement placement;
};

class HostAllocator {
 public:
  virtual ~HostAllocator() = default;
  // A decorator answers with the kind of what it wraps.
  virtual AllocatorKind kind() const = 0;
  // `name` is shown in /proc/PID/maps where the system can. The bytes are zero, aligned to 4096.
  // resource_exhausted or unavailable: refused; the message names the call. invalid_argument: no
  // bytes.
  virtual Result<HostSegment> allocate(const std::string& name, std::uint64_t bytes) = 0;
  virtual void release(HostSegment segment) = 0;
};

std::shared_ptr<HostAllocator> mmap_allocator();
// The size is sealed, so that another process may trust that no access to it can fault.
std::shared_ptr<HostAllocator> shm_allocator();

// How a store's client hands out memory and takes it back. Both must be set and must not throw.
struct StoreMemory {
  std::function<Result<HostSegment>(const std::string& name, std::uint64_t bytes)> allocate;
  std::function<void(HostSegment segment)> release;
};
std::shared_ptr<HostAllocator> store_allocator(StoreMemory source);

// How memory is pinned for a device. pin: a failure fails the allocation, as copies from unpinned
// memory may return stale data. Both must be set and must not throw.
struct Pinning {
  std::function<Status(std::span<std::byte> bytes)> pin;
  std::function<void(std::span<std::byte> bytes)> unpin;
};
std::shared_ptr<HostAllocator> pinned_allocator(std::shared_ptr<HostAllocator> inner,
                                                Pinning pinning);

}  // namespace hitide
