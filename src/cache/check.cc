// Verifies every invariant of tree, allocators and core. Cost: linear in everything; for tests,
// debug builds and `check()` on demand.
#include <array>
#include <set>

#include <fmt/format.h>

#include "cache/cache_core.h"

namespace hitide {
namespace {

Status broken(std::string_view number, std::string what) {
  return Status(StatusCode::internal, fmt::format("core invariant {} is broken: {}", number, what));
}

}  // namespace

Status CacheCore::check() const {
  HITIDE_RETURN_IF_ERROR(tripped_);
  HITIDE_RETURN_IF_ERROR(tree_check(tree_));
  HITIDE_RETURN_IF_ERROR(device_.check());
  HITIDE_RETURN_IF_ERROR(host_.check());
  for (const Tier tier : {Tier::device, Tier::host}) {
    const PageAllocator& pool = tier == Tier::device ? device_ : host_;
    if (pool.count(PageOwner::node) != tree_.resident_pages(tier)) {
      return broken("C1", fmt::format("{}: {} pages owned by nodes, {} resident", to_string(tier),
                                      pool.count(PageOwner::node), tree_.resident_pages(tier)));
    }
  }
  HITIDE_RETURN_IF_ERROR(check_requests());
  HITIDE_RETURN_IF_ERROR(check_sequences());
  return check_operations();
}

Status CacheCore::check_requests() const {
  std::uint64_t owned = 0;
  for (const auto& [id, request] : requests_) {
    if (request.shared_pages > request.pages.size()) {
      return broken("C2", fmt::format("request {} shares more pages than it has", id));
    }
    owned += request.pages.size() - request.shared_pages;
    for (std::size_t i = 0; i < request.pages.size(); ++i) {
      const PageOwner expected = i < request.shared_pages ? PageOwner::node : PageOwner::request;
      if (device_.owner(request.pages[i]) != expected) {
        return broken("C2",
                      fmt::format("request {}: page at position {} is {}, not {}", id, i,
                                  to_string(device_.owner(request.pages[i])), to_string(expected)));
      }
    }
  }
  if (owned != device_.count(PageOwner::request)) {
    return broken("C2", fmt::format("requests own {} device pages, the allocator says {}", owned,
                                    device_.count(PageOwner::request)));
  }
  return {};
}

Status CacheCore::check_sequences() const {
  std::multiset<std::int32_t> seen;
  for (const SequenceId sequence : free_sequences_) seen.insert(sequence.value);
  std::set<NodeIndex> covered;
  for (const auto& [id, request] : requests_) {
    if (!request.sequence.valid()) continue;
    seen.insert(request.sequence.value);
    covered.insert(request.device_pin);
  }
  for (const NodeIndex node : tree_.all_nodes()) {
    const Node& n = tree_.node(node);
    if (n.sequence.valid()) seen.insert(n.sequence.value);
    const Residency& r = tree_.residency(node, Tier::device);
    const bool leaf = r.resident() && r.resident_children == 0;
    if (sequences_used() && leaf && !n.sequence.valid() && covered.count(node) == 0) {
      return broken("C4", fmt::format("device leaf {} is in no sequence", node));
    }
  }
  if (seen.size() != config_.device_sequences ||
      std::set<std::int32_t>(seen.begin(), seen.end()).size() != seen.size()) {
    return broken("C3", fmt::format("{} of {} sequences are accounted for", seen.size(),
                                    config_.device_sequences));
  }
  return {};
}

Status CacheCore::check_operations() const {
  std::uint64_t owned = 0;
  std::uint64_t occupied = 0;
  std::array<std::uint32_t, 2> leaving{};
  for (const auto& [id, operation] : operations_) {
    if (operation.kind == OpKind::backup) owned += operation.host_pages.size();
    leaving[operation.kind == OpKind::backup ? 0 : 1] += operation.leaving;
  }
  if (leaving != leaving_) {
    return broken("C8", fmt::format("{} device and {} host pages leave with operations, {} and {} "
                                    "are counted",
                                    leaving[0], leaving[1], leaving_[0], leaving_[1]));
  }
  for (const auto& [id, prefetch] : prefetches_) {
    occupied += prefetch.span_pages;
    for (std::size_t i = prefetch.settled; i < prefetch.pages.size(); ++i) {
      if (prefetch.states[i] != Prefetch::PageState::settled) ++owned;
    }
  }
  if (owned != host_.count(PageOwner::operation)) {
    return broken("C5", fmt::format("operations own {} host pages, the allocator says {}", owned,
                                    host_.count(PageOwner::operation)));
  }
  if (occupied != occupied_pages_) {
    return broken(
        "C6", fmt::format("prefetches span {} pages, {} are counted", occupied, occupied_pages_));
  }
  const bool at_rest = requests_.empty() && operations_.empty();
  if (at_rest && tree_.pinned_pages(Tier::device) + tree_.pinned_pages(Tier::host) > 0) {
    return broken("C7", "pages are pinned at rest");
  }
  return {};
}

}  // namespace hitide
