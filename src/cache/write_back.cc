// write_back: what leaves a tier is copied to the one below first, where that has no copy.
//
//   device victim --copy--> host page --...--> host victim --write--> storage
//        | answered            |                    | answered
//        v                     v                    v
//      free                 (dirty)                free
//
// - Nothing waits for storage: pages that leave the device find free host pages, of which a reserve
//   is kept by writing the next host victims out ahead of need. What finds none is dropped, counted
//   and, should it be missed, explained.
// - Ancestors are copied with the first page below them that leaves, so that what is found on the
//   host or in storage always begins at position 0.
// - A failed copy lets its page go all the same: whoever waits for room gets it with the answer.
#include <algorithm>
#include <utility>

#include "cache/cache_core.h"
#include "policy/write_policy.h"

namespace hitide {
namespace {
// A drain ends after so many rounds: requests may compute new pages all the while. One round fills
// the host once.
constexpr std::uint32_t kDrainWavesMax = 16;
}  // namespace

// Whether the node, the next of the tier to leave, would be lost without a copy below.
bool CacheCore::copies_first(Tier tier, NodeIndex node) const {
  if (!copies_before_eviction(config_.policy.write_policy) || !tripped_.ok()) return false;
  if (tier == Tier::device) {
    return host_.capacity() > 0 && !tree_.residency(node, Tier::host).resident();
  }
  return config_.storage == StorageState::on && !tree_.node(node).stored() &&
         !tree_.residency(node, Tier::device).resident();
}

// The nodes of the path down to `node` that the tier below `tier` does not have and does not get
// either, top down.
std::vector<NodeIndex> CacheCore::missing_below(Tier tier, NodeIndex node) const {
  std::vector<NodeIndex> chain;
  for (NodeIndex at = node; !tree_.is_root(at); at = tree_.node(at).parent) {
    const Node& n = tree_.node(at);
    if (tier == Tier::host) {
      if (!n.stored() && !n.store_pending) chain.push_back(at);
      continue;
    }
    // One copy covers adjacent nodes only, and what is above is on the host or on its way.
    if (n.backup_pending || tree_.residency(at, Tier::host).resident()) break;
    chain.push_back(at);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

// Starts the copy without which the last `pages_wanted` pages of `node` would be lost; they leave
// with its answer. What finds no room below leaves now. Returns the operation, 0 where none began.
OpId CacheCore::copy_then_evict(Tier tier, NodeIndex node, std::uint32_t pages_wanted,
                                TimePoint now, Plan& plan) {
  const std::vector<NodeIndex> chain = missing_below(tier, node);
  Operation* operation = nullptr;
  std::uint32_t covered = tree_.node(node).page_count();
  if (tier == Tier::host) {
    covered -= tree_.node(node).stored_pages;
    operation = &write_to_storage(chain, plan);
  } else {
    operation = start_backup(chain, now, plan);
    // The copy may have been cut above the victim, or within it: then `node` is what is left over.
    if (operation == nullptr || !tree_.node(node).backup_pending) {
      stats_.backup_dropped_pages_host += std::min(pages_wanted, tree_.node(node).page_count());
      evict(tier, node, pages_wanted, plan);
      return operation == nullptr ? 0 : operation->id;
    }
  }
  operation->leaving = std::min(pages_wanted, covered);
  leaving_[static_cast<std::size_t>(tier)] += operation->leaving;
  if (drain_ != Drain::none) count_for_drain(*operation);
  return operation->id;
}

// The last `count` pages of an answered operation leave the tier, unless somebody has come to use
// them in the meantime.
void CacheCore::evict_tail(Tier tier, std::span<const PageId> pages, std::uint32_t count,
                           Plan& plan) {
  while (count > 0) {
    const NodeIndex node = tree_.owner(tier, pages.back());
    if (node == kNoNode) return;
    const Residency& there = tree_.residency(node, tier);
    if (there.pins > 0 || there.resident_children > 0) return;
    const std::uint32_t leaving = std::min(count, tree_.node(node).page_count());
    evict(tier, node, leaving, plan);
    count -= leaving;
    pages = pages.first(pages.size() - leaving);
  }
}

// Writes the next host victims out before their pages are wanted.
void CacheCore::keep_host_reserve(TimePoint now, Plan& plan) {
  if (!copies_before_eviction(config_.policy.write_policy)) return;
  if (config_.storage != StorageState::on || drain_ != Drain::none) return;
  const std::uint32_t reserve = host_reserve_pages(host_.capacity());
  for (;;) {
    const std::uint64_t ready = host_.free_count() + leaving_[1] + tree_.duplicate_pages();
    const NodeIndex node = tree_.next_victim(Tier::host);
    if (ready >= reserve || node == kNoNode) return;
    const std::uint32_t wanted = static_cast<std::uint32_t>(reserve - ready);
    if (copies_first(Tier::host, node)) {
      copy_then_evict(Tier::host, node, wanted, now, plan);
    } else {
      evict(Tier::host, node, wanted, plan);
      host_.release_quarantine(now);
    }
  }
}

void CacheCore::drain(TimePoint now, Plan& plan) { start_drain(Drain::keep, now, plan); }

void CacheCore::start_drain(Drain kind, TimePoint now, Plan& plan) {
  // What was to be written later has no later.
  if (kind == Drain::keep) take_write_retries(kNoDeadline, plan);
  const bool under_way = drain_ != Drain::none;
  drain_ = std::max(drain_, kind);
  if (under_way) return;
  drain_waves_ = 0;
  drain_wave(now, plan);
}

// Starts everything that can be copied down now. A wave is over when all of it is answered; the
// next one goes on with what had no room, and none follows one that brought nothing down. A path
// that is longer than the host tier cannot be brought down whole.
void CacheCore::drain_wave(TimePoint now, Plan& plan) {
  const std::uint64_t progress = stats_.backed_up_pages_host + stats_.backed_up_pages_storage;
  const bool futile = drain_waves_ > 0 && progress == drain_progress_;
  drain_progress_ = progress;
  const bool owes = copies_before_eviction(config_.policy.write_policy) && tripped_.ok() &&
                    config_.storage == StorageState::on;
  if (owes && !futile && drain_waves_++ < kDrainWavesMax) {
    for (const NodeIndex node : tree_.all_nodes()) drain_node(node, now, plan);
  }
  if (drain_operations_ > 0) return;
  if (std::exchange(drain_, Drain::none) == Drain::forget) forget_unused(now, plan);
}

// Paths are taken from their ends on each tier. Another node's copy may have evicted this one.
void CacheCore::drain_node(NodeIndex node, TimePoint now, Plan& plan) {
  if (!tree_.node(node).in_use || tree_.is_root(node)) return;
  const Residency& device = tree_.residency(node, Tier::device);
  const Residency& host = tree_.residency(node, Tier::host);
  Operation* operation = nullptr;
  if (host.resident() && host.resident_children == 0) {
    const std::vector<NodeIndex> chain = missing_below(Tier::host, node);
    if (!chain.empty()) operation = &write_to_storage(chain, plan);
  } else if (!host.resident() && device.resident() && device.resident_children == 0) {
    const std::vector<NodeIndex> chain = missing_below(Tier::device, node);
    const auto owed = [&](NodeIndex at) { return !tree_.node(at).stored(); };
    if (std::any_of(chain.begin(), chain.end(), owed)) operation = start_backup(chain, now, plan);
  }
  if (operation != nullptr) count_for_drain(*operation);
}

void CacheCore::count_for_drain(Operation& operation) {
  if (!std::exchange(operation.drains, true)) ++drain_operations_;
}

void CacheCore::drained(const Operation& operation, TimePoint now, Plan& plan) {
  if (operation.drains && --drain_operations_ == 0) drain_wave(now, plan);
}

}  // namespace hitide
