// PoolGroup: the page ids of all pools of a model, reserved together or not at all.
//
//   pool 0 (anchor, maybe logical) --own ids--> PageAllocator
//   pool 1 (side, index_source: anchor) -------> the anchor's ids
//   pool 2 (side) -----------------own ids-----> PageAllocator
//   pool 3 (side, index_source: pool 2) -------> pool 2's ids
//
// Metadata only: a logical pool is like any other here. Ids are reserved in the order of the
// model's pools, which is the same on all ranks, and given back in the reverse order, so that a
// reservation that fails leaves every free list as it was.
//
// Threading: one thread at a time, like PageAllocator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/result.h>
#include <hitide/types.h>

#include "pool/page_allocator.h"

namespace hitide {

// Pages of all pools of a group. ids[p] is empty for a pool that borrows: ask PoolGroup::pages().
struct GroupPages {
  std::vector<std::vector<PageId>> ids;  // [pools]
};

class PoolGroup {
 public:
  // capacities: [pools]; pages of each pool that owns ids, 0 for those that borrow.
  // invalid_argument: a model that does not validate, another number of capacities, a borrower
  // with a capacity, an owner without one, or index sources in a circle.
  static Result<std::unique_ptr<PoolGroup>> create(const ModelSpec& model,
                                                   std::span<const std::uint32_t> capacities);

  // counts: [pools]; pages wanted of each pool that owns ids, 0 for those that borrow. Appends to
  // `out`, or changes nothing but generations. resource_exhausted: some pool has too few free
  // pages; the message names it. invalid_argument: another number of counts, or a count for a
  // borrower. `owner` is request, node or operation.
  Status reserve(std::span<const std::uint32_t> counts, PageOwner owner, GroupPages& out);

  // Gives all pages back and clears `pages`. internal: some page was not `owner`'s, the first
  // failure; all others are given back.
  Status free(GroupPages& pages, PageOwner owner);

  // The ids that this pool's pages have: its own, or those of the pool that it borrows from.
  std::span<const PageId> pages(const GroupPages& group, std::size_t pool) const;

  // The allocator behind a pool's ids. Borrowers share their source's.
  PageAllocator& allocator(std::size_t pool) { return *allocators_[source_[pool]]; }
  const PageAllocator& allocator(std::size_t pool) const { return *allocators_[source_[pool]]; }
  // The pool whose ids this one has; itself where it owns them.
  std::size_t source(std::size_t pool) const { return source_[pool]; }

  std::size_t pool_count() const { return source_.size(); }
  // Of that name; not_found with the known names.
  Result<std::size_t> find(std::string_view name) const;
  // Declared by the anchor; the group answers for it.
  bool is_logical_anchor() const { return logical_anchor_; }

  // internal with the first invariant that does not hold in any allocator.
  Status check() const;

 private:
  PoolGroup() = default;

  std::vector<std::string> names_;
  std::vector<std::size_t> source_;                         // [pools]
  std::vector<std::unique_ptr<PageAllocator>> allocators_;  // [pools]; null for borrowers
  bool logical_anchor_ = false;
};

}  // namespace hitide
