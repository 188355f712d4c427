// Making room: leaf by leaf in the policy's order, page by page from a leaf's tail.
#include <algorithm>

#include "cache/cache_core.h"
#include "policy/write_policy.h"

namespace hitide {
namespace {
// Nodes that are looked at in one go; the next answer or release goes on.
constexpr std::uint32_t kThinningWalkMax = 64;
}  // namespace

// With write_back, a page that has no copy below gets one before it leaves: false then means not
// yet, and the answer to the copy wakes who waits for room. Nothing is copied beyond what is
// wanted.
bool CacheCore::make_room(Tier tier, std::uint32_t pages, TimePoint now, Plan& plan) {
  PageAllocator& pool = allocator(tier);
  pool.release_quarantine(now);
  const std::uint32_t& leaving = leaving_[static_cast<std::size_t>(tier)];
  while (pool.free_count() < pages) {
    const NodeIndex node = next_to_leave(tier);
    if (node == kNoNode) break;
    if (copies_first(tier, node)) {
      const std::uint32_t coming = pool.free_count() + leaving;
      if (coming >= pages) break;
      copy_then_evict(tier, node, pages - coming, now, plan);
    } else {
      evict(tier, node, pages - pool.free_count(), plan);
    }
    pool.release_quarantine(now);
  }
  return pool.free_count() >= pages;
}

// A second copy goes before anything that would have to be fetched or computed again.
NodeIndex CacheCore::next_to_leave(Tier tier) const {
  const bool lazy = copies_before_eviction(config_.policy.write_policy);
  const NodeIndex duplicate = lazy && tier == Tier::host ? tree_.next_duplicate() : kNoNode;
  return duplicate != kNoNode ? duplicate : tree_.next_victim(tier);
}

// `node`: an unpinned leaf of the tier. Its last pages go, at most `pages_wanted`.
void CacheCore::evict(Tier tier, NodeIndex node, std::uint32_t pages_wanted, Plan& plan) {
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
  while (free_sequences_.empty()) {
    const NodeIndex node = tree_.next_victim(Tier::device);
    if (node == kNoNode) break;
    if (copies_first(Tier::device, node)) {
      // One at a time: what it sets free may be all that is wanted.
      if (operations_.count(sequence_copy_) > 0) break;
      sequence_copy_ = copy_then_evict(Tier::device, node, UINT32_MAX, now, plan);
    } else {
      evict(Tier::device, node, UINT32_MAX, plan);
    }
  }
  return !free_sequences_.empty();
}

// Beyond what may lie idle, pages leave the device, those used longest ago first. What the host
// does not have stays: nothing is lost for this.
void CacheCore::thin_device(TimePoint now, Plan& plan) {
  if (config_.policy.device_idle_tokens == kAllTokens) return;
  const std::uint64_t kept = config_.policy.device_idle_tokens / config_.page_size;
  NodeIndex node = tree_.oldest(Tier::device);
  for (std::uint32_t walked = 0; node != kNoNode && walked < kThinningWalkMax; ++walked) {
    const std::uint64_t idle = tree_.evictable_pages(Tier::device);
    if (idle <= kept) break;
    const NodeIndex next = tree_.newer(node, Tier::device);
    const bool leaf = tree_.residency(node, Tier::device).resident_children == 0;
    if (leaf && tree_.residency(node, Tier::host).resident()) {
      evict(Tier::device, node, static_cast<std::uint32_t>(idle - kept), plan);
    }
    node = next;
  }
  device_.release_quarantine(now);
}

void CacheCore::flush(TimePoint now, Plan& plan) { start_drain(Drain::forget, now, plan); }

void CacheCore::forget_unused(TimePoint now, Plan& plan) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    for (NodeIndex node; (node = tree_.next_victim(tier)) != kNoNode;) {
      if (copies_first(tier, node)) {
        stats_.backup_dropped_pages_storage += tree_.node(node).page_count();
      }
      evict(tier, node, UINT32_MAX, plan);
    }
    allocator(tier).release_quarantine(now);
  }
}

}  // namespace hitide
