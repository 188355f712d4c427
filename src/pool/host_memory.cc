#include "pool/host_memory.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "spec/layout.h"

namespace hitide {
namespace {

Status refused(int error, const char* call, const std::string& name, std::uint64_t bytes) {
  return errno_status(error, call, name)
      .with_context("no memory for a segment of " + std::to_string(bytes) +
                    " bytes of the host tier: lower --hicache-size");
}

}  // namespace

HostMemory::HostMemory(const HostMemoryShape& shape)
    : stride_bytes_(shape.stride_bytes),
      slot_count_(shape.slot_count),
      slots_per_segment_(static_cast<std::uint32_t>(std::min<std::uint64_t>(
          shape.segment_bytes_max / shape.stride_bytes, shape.slot_count))) {}

HostMemory::~HostMemory() {
  for (const Segment& segment : segments_) ::munmap(segment.bytes.data(), segment.bytes.size());
}

Result<std::unique_ptr<HostMemory>> HostMemory::create(const HostMemoryShape& shape) {
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
  std::unique_ptr<HostMemory> memory(new HostMemory(shape));
  for (std::uint32_t slots = 0; slots < shape.slot_count;) {
    const std::uint32_t count = std::min(memory->slots_per_segment_, shape.slot_count - slots);
    const std::string name =
        "hitide-" + shape.name + "-" + std::to_string(memory->segments_.size());
    HITIDE_RETURN_IF_ERROR(memory->add_segment(name, count * shape.stride_bytes));
    slots += count;
  }
  return memory;
}

Status HostMemory::add_segment(const std::string& name, std::uint64_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return refused(errno, "memfd_create", name, bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return refused(errno, "ftruncate", name, bytes);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return refused(errno, "seal", name, bytes);
  }
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return refused(errno, "mmap", name, bytes);
  // Prompts of other people do not belong into a core dump. Refusal changes nothing else.
  static_cast<void>(::madvise(address, bytes, MADV_DONTDUMP));
  segments_.push_back({std::move(fd), {static_cast<std::byte*>(address), bytes}});
  return ok_status();
}

}  // namespace hitide
