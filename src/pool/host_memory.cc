#include "pool/host_memory.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "spec/layout.h"

namespace hitide {
HostMemory::HostMemory(const HostMemoryShape& shape, std::shared_ptr<HostAllocator> allocator)
    : allocator_(std::move(allocator)),
      stride_bytes_(shape.stride_bytes),
      slot_count_(shape.slot_count),
      slots_per_segment_(static_cast<std::uint32_t>(std::min<std::uint64_t>(
          shape.segment_bytes_max / shape.stride_bytes, shape.slot_count))) {}

HostMemory::~HostMemory() {
  for (Segment& segment : segments_) allocator_->release(std::move(segment));
}

Result<std::unique_ptr<HostMemory>> HostMemory::create(const HostMemoryShape& shape,
                                                       std::shared_ptr<HostAllocator> allocator) {
  if (allocator == nullptr) {
    return Status(StatusCode::invalid_argument, "host memory needs an allocator");
  }
  if (shape.stride_bytes == 0 || shape.stride_bytes % kPageAlignment != 0 ||
      shape.slot_count == 0) {
    return Status(StatusCode::invalid_argument,
                  "host memory of " + std::to_string(shape.slot_count) + " slots of " +
                      std::to_string(shape.stride_bytes) +
                      " bytes: at least one slot, of a multiple of " +
                      std::to_string(kPageAlignment) + " bytes, is needed");
  }
  if (shape.stride_bytes > shape.segment_bytes_max) {
    return Status(StatusCode::invalid_argument, "a page of " + std::to_string(shape.stride_bytes) +
                                                    " bytes does not fit into a segment of " +
                                                    std::to_string(shape.segment_bytes_max) +
                                                    " bytes: lower --page-size");
  }
  std::unique_ptr<HostMemory> memory(new HostMemory(shape, std::move(allocator)));
  for (std::uint32_t slots = 0; slots < shape.slot_count;) {
    const std::uint32_t count = std::min(memory->slots_per_segment_, shape.slot_count - slots);
    const std::string name =
        "hitide-" + shape.name + "-" + std::to_string(memory->segments_.size());
    HITIDE_RETURN_IF_ERROR(memory->add_segment(name, count * shape.stride_bytes));
    slots += count;
  }
  memory->log_placement(shape.name);
  return memory;
}

void HostMemory::log_placement(const std::string& name) const {
  const HostPlacement& got = segments_.front().placement;  // all segments were asked the same
  if (got.huge_pages.empty()) return;
  std::uint64_t huge_bytes = 0;
  for (const Segment& segment : segments_) huge_bytes += segment.placement.huge_bytes;
  log_info("host_memory",
           {{"pool", name},
            {"allocator", to_string(allocator())},
            {"bytes", bytes()},
            {"huge_pages", huge_bytes > 0 ? std::to_string(huge_bytes) + " bytes" : got.huge_pages},
            {"prefaulted", got.prefaulted.empty() ? "no" : got.prefaulted},
            {"numa", got.numa.empty() ? "as the system does" : got.numa}});
}

Status HostMemory::add_segment(const std::string& name, std::uint64_t bytes) {
  Result<HostSegment> segment = allocator_->allocate(name, bytes);
  if (!segment.ok()) {
    return segment.status().with_context("no memory for a segment of " + std::to_string(bytes) +
                                         " bytes of the host tier: lower --hicache-size");
  }
  segments_.push_back(std::move(segment).value());
  return ok_status();
}

}  // namespace hitide
