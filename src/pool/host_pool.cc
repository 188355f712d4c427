#include "pool/host_pool.h"

#include <algorithm>
#include <array>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace hitide {
namespace {

// Bytes at each end of a free page that are overwritten and poisoned: any copy of a whole page or
// of its payload runs over them.
constexpr std::size_t kGuardBytes = 512;
constexpr std::byte kFreePattern{0xdb};

std::array<std::span<std::byte>, 2> ends(std::span<std::byte> object) {
  const std::size_t bytes = std::min(kGuardBytes, object.size());
  return {object.first(bytes), object.last(bytes)};
}

void poison([[maybe_unused]] std::span<std::byte> object) {
#if defined(__SANITIZE_ADDRESS__)
  for (const auto end : ends(object)) __asan_poison_memory_region(end.data(), end.size());
#endif
}

void unpoison([[maybe_unused]] std::span<std::byte> object) {
#if defined(__SANITIZE_ADDRESS__)
  for (const auto end : ends(object)) __asan_unpoison_memory_region(end.data(), end.size());
#endif
}

}  // namespace

HostPool::HostPool(const PoolSpec& pool, std::unique_ptr<HostMemory> memory)
    : name_(pool.name),
      required_(pool.required),
      layout_(page_layout(pool)),
      memory_(std::move(memory)) {
  if constexpr (!kChecksFreePages) return;
  overwritten_.resize(page_count(), false);
  poison_all();
}

HostPool::~HostPool() { unpoison_all(); }

void HostPool::poison_all() const {
  if constexpr (!kChecksFreePages) return;
  for (std::uint32_t index = 0; index < page_count(); ++index) poison(slot(PageId{index, 0}));
}

void HostPool::unpoison_all() const {
  if constexpr (!kChecksFreePages) return;
  for (std::uint32_t index = 0; index < page_count(); ++index) unpoison(slot(PageId{index, 0}));
}

Result<std::unique_ptr<HostPool>> HostPool::create(const PoolSpec& pool, std::uint32_t page_count,
                                                   std::shared_ptr<HostAllocator> allocator) {
  HITIDE_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory,
                          HostMemory::create({.name = pool.name,
                                              .stride_bytes = page_layout(pool).stride_bytes,
                                              .slot_count = page_count},
                                             std::move(allocator)));
  return std::unique_ptr<HostPool>(new HostPool(pool, std::move(memory)));
}

Status HostPool::exchange_memory(std::shared_ptr<HostAllocator> allocator) {
  HITIDE_ASSIGN_OR_RETURN(
      std::unique_ptr<HostMemory> memory,
      HostMemory::create(
          {.name = name_, .stride_bytes = layout_.stride_bytes, .slot_count = page_count()},
          std::move(allocator)));
  unpoison_all();
  memory_ = std::move(memory);
  poison_all();
  return {};
}

std::span<std::byte> HostPool::slot(PageId page) const {
  if (page.index >= page_count()) return {};
  return memory_->slot(page.index).subspan(layout_.header_offset, layout_.object_bytes());
}

std::span<std::byte> HostPool::payload(PageId page) const {
  if (page.index >= page_count()) return {};
  return memory_->slot(page.index).subspan(layout_.payload_offset, layout_.payload_bytes);
}

PoolMemory HostPool::describe() const {
  PoolMemory memory;
  memory.pool = name_;
  memory.required = required_;
  memory.allocator = memory_->allocator();
  for (const HostSegment& segment : memory_->segments()) {
    memory.regions.push_back({.bytes = segment.bytes, .fd = segment.fd.get()});
  }
  return memory;
}

PoolMemory describe_without_memory(const PoolSpec& pool) {
  PoolMemory memory;
  memory.pool = pool.name;
  memory.required = pool.required;
  memory.logical = pool.kind == PoolKind::logical;
  memory.side_pools_only = pool.kind == PoolKind::side_pools_only;
  return memory;
}

void HostPool::on_allocated(PageId page) {
  if constexpr (!kChecksFreePages) return;
  const std::span<std::byte> object = slot(page);
  unpoison(object);
  if (object.empty() || !overwritten_[page.index]) return;
  for (const auto end : ends(object)) {
    const bool untouched =
        std::all_of(end.begin(), end.end(), [](std::byte byte) { return byte == kFreePattern; });
    HITIDE_CHECK(untouched, "a free host page was written to: some copy was late");
  }
}

void HostPool::on_freed(PageId page) {
  if constexpr (!kChecksFreePages) return;
  const std::span<std::byte> object = slot(page);
  if (object.empty()) return;
  for (const auto end : ends(object)) std::fill(end.begin(), end.end(), kFreePattern);
  overwritten_[page.index] = true;
  poison(object);
}

}  // namespace hitide
