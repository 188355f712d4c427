// HostPool: the host pages (L2) of one pool, by page id.
//
//   slot(page) = [ header | payload ]   one object, adjacent; payload(page) is its second part
//
// It knows nothing of who owns a page: PageAllocator does, and tells this class through
// PageObserver when a page's bytes become somebody's and when they become nobody's.
//
// In debug builds (HITIDE_DEBUG_CHECKS) the first and the last bytes of a page are overwritten when
// it is freed, and looked at again when it is handed out: a copy that came too late ends the
// program there. With AddressSanitizer the same bytes are poisoned while the page is free, so that
// such a copy is reported where it happens.
//
// Threading: slot() and payload() from any thread, once exchange_memory() cannot be called any
// more; the notices on the allocator's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/registration.h>
#include <hitide/result.h>
#include <hitide/types.h>

#include "pool/host_memory.h"
#include "pool/page_allocator.h"
#include "spec/layout.h"

namespace hitide {

class HostPool final : public PageObserver {
 public:
  // True where notices do anything; else the allocator needs no observer.
#ifdef HITIDE_DEBUG_CHECKS
  static constexpr bool kChecksFreePages = true;
#else
  static constexpr bool kChecksFreePages = false;
#endif

  // Requires a validated pool with bytes, page_count >= 1. resource_exhausted: no memory.
  // invalid_argument: a page that is too large for a segment.
  static Result<std::unique_ptr<HostPool>> create(
      const PoolSpec& pool, std::uint32_t page_count,
      std::shared_ptr<HostAllocator> allocator = shm_allocator());
  ~HostPool() override;

  // Header and payload: layout().object_bytes() long. Empty for an index that the pool does not
  // have; generations are the allocator's business.
  std::span<std::byte> slot(PageId page) const;
  // layout().payload_bytes long.
  std::span<std::byte> payload(PageId page) const;

  const PageLayout& layout() const { return layout_; }
  std::uint32_t page_count() const { return memory_->slot_count(); }
  std::uint64_t bytes() const { return memory_->bytes(); }
  std::span<const HostMemory::Segment> segments() const { return memory_->segments(); }

  // Exchanges all memory for that of another allocator; the pages' bytes are gone. Only before the
  // first page is handed out. Errors as for create(); nothing has changed then.
  Status exchange_memory(std::shared_ptr<HostAllocator> allocator);

  // What the registration rule asks; the allocator answers for the memory. in_use is the caller's
  // to know. Valid as long as the pool.
  PoolMemory describe() const;

  void on_allocated(PageId page) override;
  void on_freed(PageId page) override;

 private:
  HostPool(const PoolSpec& pool, std::unique_ptr<HostMemory> memory);
  void poison_all() const;
  void unpoison_all() const;

  const std::string name_;
  const bool required_;
  const PageLayout layout_;
  std::unique_ptr<HostMemory> memory_;
  std::vector<bool> overwritten_;  // [page_count]: freed once, so that its ends hold the pattern
};

// What the registration rule asks of a pool that has no host memory: a logical one, or one whose
// memory is missing.
PoolMemory describe_without_memory(const PoolSpec& pool);

}  // namespace hitide
