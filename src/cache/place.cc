// Putting pages into the tree: the one routine behind commit, load back and prefetch.
#include <algorithm>

#include "cache/cache_core.h"

namespace hitide {

CacheCore::Placement CacheCore::place(const PlaceRun& run, Plan& plan) {
  Placement result;
  result.end = run.start;
  const std::uint32_t total = static_cast<std::uint32_t>(run.pages.size());
  const auto adopt = [&](std::span<const PageId> pages) {
    // The first page of our own: what others had before it is complete. The exchange comes before
    // their sequence may be released below.
    if (result.placed == result.existing) exchange_existing(run, result, plan);
    if (run.tier == Tier::device) drop_sequence(result.end, plan);
    for (const PageId page : pages) {
      require(allocator(run.tier).set_owner(page, run.owner, PageOwner::node));
    }
    result.resident.insert(result.resident.end(), pages.begin(), pages.end());
  };
  while (result.placed < total) {
    const auto rest = run.tokens.subspan(std::size_t{result.placed} * config_.page_size);
    const FindResult step = tree_.find(result.end, rest);
    if (step.path.pages == 0) {
      // Nothing there: the rest becomes one new child.
      const auto pages = run.pages.subspan(result.placed);
      adopt(pages);
      result.end = tree_.add_child(result.end, rest.first(pages.size() * config_.page_size),
                                   run.keys.subspan(result.placed), run.tier, pages);
      result.placed = total;
      return result;
    }
    const NodeIndex node = first_on_path(step.path, total - result.placed);
    const std::uint32_t count = tree_.node(node).page_count();
    const Residency& there = tree_.residency(node, run.tier);
    if (there.resident()) {
      result.resident.insert(result.resident.end(), there.pages.begin(), there.pages.end());
      result.existing += count;
    } else {
      const auto pages = run.pages.subspan(result.placed, count);
      adopt(pages);
      tree_.attach(node, run.tier, pages);
    }
    result.placed += count;
    result.end = node;
  }
  if (result.existing == total) exchange_existing(run, result, plan);
  return result;
}

// The first node of a walk, cut to at most `pages_max` pages.
NodeIndex CacheCore::first_on_path(const Boundary& path, std::uint32_t pages_max) {
  NodeIndex node = path.node;
  std::uint32_t offset = path.offset;
  for (std::uint32_t before = path.pages - path.offset; before > 0; before -= offset) {
    node = tree_.node(node).parent;
    offset = tree_.node(node).page_count();
  }
  offset = std::min(offset, pages_max);
  return tree_.materialize(Boundary{node, offset, offset});
}

// The request's own leading pages give way to those that the tree has.
void CacheCore::exchange_existing(const PlaceRun& run, const Placement& placed, Plan& plan) const {
  if (run.request == nullptr || placed.existing == 0) return;
  submit(SequenceCommand::Kind::replace, run.request->sequence, run.request->shared_pages,
         std::vector<PageId>(placed.resident.begin(), placed.resident.begin() + placed.existing),
         plan);
}

// The node is about to get a child on the device: its path lives on in the child's sequence.
void CacheCore::drop_sequence(NodeIndex node, Plan& plan) {
  SequenceId& sequence = tree_.node(node).sequence;
  if (!sequence.valid()) return;
  submit(SequenceCommand::Kind::trim, sequence, 0, {}, plan);
  free_sequences_.push_back(sequence);
  sequence = SequenceId{};
}

}  // namespace hitide
