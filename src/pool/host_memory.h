// HostMemory: the bytes of a host pool, from one allocator.
//
//   segment 0                     segment 1                     ...
//   [ slot 0 | slot 1 | ... ]     [ slot n | slot n+1 | ... ]
//
// Each segment has at most 1 GiB. No slot straddles two segments. Pages are touched when they are
// first used, unless the allocator does it (host_placement.h). Where that was asked anything of the
// system, one line of the log (host_memory) says what was got.
//
// Threading: constant after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <hitide/result.h>

#include "pool/host_allocator.h"

namespace hitide {

struct HostMemoryShape {
  std::string name = "pool";       // shown in /proc/PID/maps
  std::uint64_t stride_bytes = 0;  // from one slot to the next; a multiple of 4096, >= 4096
  std::uint32_t slot_count = 0;    // >= 1
  std::uint64_t segment_bytes_max = std::uint64_t{1} << 30;
};

class HostMemory {
 public:
  using Segment = HostSegment;

  // invalid_argument: a slot that is larger than a segment, a bad stride, no allocator.
  // resource_exhausted or unavailable: the system refuses; the message names the option that sets
  // the size.
  static Result<std::unique_ptr<HostMemory>> create(
      const HostMemoryShape& shape, std::shared_ptr<HostAllocator> allocator = shm_allocator());
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // [stride_bytes]. Requires index < slot_count.
  std::span<std::byte> slot(std::uint32_t index) const {
    const std::uint32_t segment = index / slots_per_segment_;
    const std::uint64_t place = index - segment * slots_per_segment_;
    return segments_[segment].bytes.subspan(place * stride_bytes_, stride_bytes_);
  }
  std::uint32_t slot_count() const { return slot_count_; }
  std::uint64_t bytes() const { return std::uint64_t{slot_count_} * stride_bytes_; }
  // For registration with a store and for handing to another process.
  std::span<const Segment> segments() const { return segments_; }
  // Whose memory it is.
  AllocatorKind allocator() const { return allocator_->kind(); }

 private:
  HostMemory(const HostMemoryShape& shape, std::shared_ptr<HostAllocator> allocator);
  Status add_segment(const std::string& name, std::uint64_t bytes);
  void log_placement(const std::string& name) const;

  std::shared_ptr<HostAllocator> allocator_;
  std::uint64_t stride_bytes_;
  std::uint32_t slot_count_;
  std::uint32_t slots_per_segment_;
  std::vector<Segment> segments_;
};

}  // namespace hitide
