#include "pool/host_allocator.h"

#include <cerrno>
#include <limits>
#include <utility>

#include <sys/mman.h>

#include "base/memory_file.h"

namespace hitide {
namespace {

// Room for alignment must fit beside the bytes, and the kernel's offsets are signed.
constexpr std::uint64_t kBytesMax = std::numeric_limits<std::int64_t>::max() - 2 * kHugePageBytes;

Status check_size(const std::string& name, std::uint64_t bytes) {
  if (bytes == 0) return Status(StatusCode::invalid_argument, name + ": memory of 0 bytes");
  if (bytes <= kBytesMax) return {};
  return Status(StatusCode::resource_exhausted,
                name + ": " + std::to_string(bytes) + " bytes are more than can be mapped");
}

class MmapAllocator final : public HostAllocator {
 public:
  AllocatorKind kind() const override { return AllocatorKind::mmap; }

  Result<HostSegment> allocate(const std::string& name, std::uint64_t bytes) override {
    HITIDE_RETURN_IF_ERROR(check_size(name, bytes));
    // Addresses with room for the next huge page; what is not needed of them goes back.
    const std::uint64_t room_bytes = bytes + kHugePageBytes;
    void* const room =
        ::mmap(nullptr, room_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return errno_status(errno, "mmap", name);
    const auto begin = reinterpret_cast<std::uintptr_t>(room);
    const std::uintptr_t at = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    if (at > begin) ::munmap(room, at - begin);
    const std::uintptr_t end = at + (bytes + 4095) / 4096 * 4096;
    auto* const address = static_cast<std::byte*>(room) + (at - begin);
    ::munmap(address + (end - at), begin + room_bytes - end);
    // Refusals change nothing else. Prompts of other people do not belong into a core dump.
    static_cast<void>(::madvise(address, bytes, MADV_HUGEPAGE));
    static_cast<void>(::madvise(address, bytes, MADV_DONTDUMP));
    HostSegment segment;
    segment.bytes = {address, bytes};
    return segment;
  }

  void release(HostSegment segment) override {
    ::munmap(segment.bytes.data(), segment.bytes.size());
  }
};

class ShmAllocator final : public HostAllocator {
 public:
  AllocatorKind kind() const override { return AllocatorKind::shm; }

  Result<HostSegment> allocate(const std::string& name, std::uint64_t bytes) override {
    HITIDE_RETURN_IF_ERROR(check_size(name, bytes));
    HostSegment segment;
    HITIDE_ASSIGN_OR_RETURN(segment.fd, create_memory_file(name, bytes));
    HITIDE_ASSIGN_OR_RETURN(segment.bytes, map_memory_file(segment.fd, name, bytes));
    return segment;
  }

  void release(HostSegment segment) override {
    ::munmap(segment.bytes.data(), segment.bytes.size());
  }
};

class StoreAllocator final : public HostAllocator {
 public:
  explicit StoreAllocator(StoreMemory source) : source_(std::move(source)) {}

  AllocatorKind kind() const override { return AllocatorKind::store; }
  Result<HostSegment> allocate(const std::string& name, std::uint64_t bytes) override {
    HITIDE_ASSIGN_OR_RETURN(HostSegment segment, source_.allocate(name, bytes));
    if (segment.bytes.data() != nullptr && segment.bytes.size() == bytes) return segment;
    const std::size_t found = segment.bytes.size();
    source_.release(std::move(segment));
    return Status(StatusCode::unavailable, "the store's client was asked for " +
                                               std::to_string(bytes) + " bytes for " + name +
                                               " and handed out " + std::to_string(found));
  }
  void release(HostSegment segment) override { source_.release(std::move(segment)); }

 private:
  const StoreMemory source_;
};

class PinnedAllocator final : public HostAllocator {
 public:
  PinnedAllocator(std::shared_ptr<HostAllocator> inner, Pinning pinning)
      : inner_(std::move(inner)), pinning_(std::move(pinning)) {}

  AllocatorKind kind() const override { return inner_->kind(); }
  Result<HostSegment> allocate(const std::string& name, std::uint64_t bytes) override {
    HITIDE_ASSIGN_OR_RETURN(HostSegment segment, inner_->allocate(name, bytes));
    Status status = pinning_.pin(segment.bytes);
    if (status.ok()) return segment;
    inner_->release(std::move(segment));
    return status.with_context("pinning " + std::to_string(bytes) + " bytes of " + name);
  }
  void release(HostSegment segment) override {
    pinning_.unpin(segment.bytes);
    inner_->release(std::move(segment));
  }

 private:
  const std::shared_ptr<HostAllocator> inner_;
  const Pinning pinning_;
};

}  // namespace

std::shared_ptr<HostAllocator> mmap_allocator() { return std::make_shared<MmapAllocator>(); }
std::shared_ptr<HostAllocator> shm_allocator() { return std::make_shared<ShmAllocator>(); }
std::shared_ptr<HostAllocator> store_allocator(StoreMemory source) {
  return std::make_shared<StoreAllocator>(std::move(source));
}
std::shared_ptr<HostAllocator> pinned_allocator(std::shared_ptr<HostAllocator> inner,
                                                Pinning pinning) {
  return std::make_shared<PinnedAllocator>(std::move(inner), std::move(pinning));
}

}  // namespace hitide
