// Making room: leaf by leaf in the policy's order, page by page from a leaf's tail.
#include <algorithm>

#include "cache/cache_core.h"

namespace hitide {

bool CacheCore::make_room(Tier tier, std::uint32_t pages, TimePoint now, Plan& plan) {
  PageAllocator& pool = allocator(tier);
  pool.release_quarantine(now);
  while (pool.free_count() < pages && tree_.next_victim(tier) != kNoNode) {
    evict_next(tier, pages - pool.free_count(), plan);
    pool.release_quarantine(now);
  }
  return pool.free_count() >= pages;
}

void CacheCore::evict_next(Tier tier, std::uint32_t pages_wanted, Plan& plan) {
  const NodeIndex node = tree_.next_victim(tier);
  const std::uint32_t count = tree_.node(node).page_count();
  if (count > pages_wanted) tree_.split(node, count - pages_wanted);
  const NodeIndex parent = tree_.node(node).parent;
  const Tier other = tier == Tier::device ? Tier::host : Tier::device;
  if (!tree_.residency(node, other).resident()) {
    for (const PageKey& key : tree_.node(node).keys) ghost_.note(key, tier);
  }
  const SequenceId sequence = tree_.node(node).sequence;
  if (tier == Tier::device) tree_.node(node).sequence = SequenceId{};
  const bool parent_is_root = tree_.is_root(parent);
  const std::vector<PageId> pages = tree_.detach(node, tier);
  stats_.evicted_pages[static_cast<std::size_t>(tier)] += pages.size();
  give_back(tier, pages, PageOwner::node);
  if (tier != Tier::device || !sequence.valid()) return;
  // The path lives on in its parent where that has become a leaf.
  const bool inherits = !parent_is_root && !tree_.node(parent).sequence.valid() &&
                        tree_.residency(parent, Tier::device).resident_children == 0;
  if (inherits) {
    tree_.node(parent).sequence = sequence;
    const std::uint32_t keep = tree_.depth_pages(parent) + tree_.node(parent).page_count();
    submit(SequenceCommand::Kind::trim, sequence, keep, {}, plan);
  } else {
    submit(SequenceCommand::Kind::trim, sequence, 0, {}, plan);
    free_sequences_.push_back(sequence);
  }
}

bool CacheCore::make_sequence_room(TimePoint now, Plan& plan) {
  device_.release_quarantine(now);
  while (free_sequences_.empty() && tree_.next_victim(Tier::device) != kNoNode) {
    evict_next(Tier::device, UINT32_MAX, plan);
  }
  return !free_sequences_.empty();
}

void CacheCore::flush(TimePoint now, Plan& plan) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    while (tree_.next_victim(tier) != kNoNode) evict_next(tier, UINT32_MAX, plan);
    allocator(tier).release_quarantine(now);
  }
}

}  // namespace hitide
