#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <tsl/robin_map.h>

#include "prefix/radix_tree.h"

namespace hitide {
namespace {

constexpr Tier kTreeTiers[] = {Tier::device, Tier::host};

Status broken(int number, NodeIndex node, std::string_view what) {
  return Status(StatusCode::internal,
                fmt::format("tree invariant T{} is broken at node {}: {}", number, node, what));
}

std::vector<NodeIndex> children_of(const RadixTree& tree, NodeIndex parent) {
  std::vector<NodeIndex> out;
  for (NodeIndex c = tree.node(parent).first_child; c != kNoNode; c = tree.node(c).next_sibling) {
    out.push_back(c);
  }
  return out;
}

Status check_children(const RadixTree& tree, NodeIndex at) {
  const Node& node = tree.node(at);
  const std::vector<NodeIndex> children = children_of(tree, at);
  NodeIndex previous = kNoNode;
  for (const NodeIndex child : children) {
    const Node& c = tree.node(child);
    if (!c.in_use || c.parent != at || c.previous_sibling != previous) {
      return broken(1, child, "parent or sibling link");
    }
    previous = child;
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    for (std::size_t j = i + 1; j < children.size(); ++j) {
      if (std::memcmp(tree.node(children[i]).tokens.data(), tree.node(children[j]).tokens.data(),
                      tree.page_size() * sizeof(TokenId)) == 0) {
        return broken(3, children[i], "shares its first page with a sibling");
      }
    }
  }
  for (const Tier tier : kTreeTiers) {
    std::uint32_t resident = 0;
    std::uint64_t pins = 0;
    for (const NodeIndex child : children) {
      resident += tree.residency(child, tier).resident() ? 1 : 0;
      pins += tree.residency(child, tier).pins;
    }
    if (resident != tree.residency(at, tier).resident_children) {
      return broken(4, at, "count of resident children");
    }
    if (resident > 0 && !tree.is_root(at) && !tree.residency(at, tier).resident()) {
      return broken(4, at, "a child is resident and the node is not");
    }
    if (tree.residency(at, tier).pins < pins) return broken(5, at, "fewer pins than its children");
  }
  const bool device_leaf = tree.residency(at, Tier::device).resident() &&
                           tree.residency(at, Tier::device).resident_children == 0;
  if (node.sequence.valid() && !device_leaf) return broken(10, at, "sequence on no device leaf");
  return {};
}

Status check_node(const RadixTree& tree, NodeIndex at, RankLeaf ranks) {
  const Node& node = tree.node(at);
  if (tree.is_root(at)) {
    return node.keys.empty() && node.tokens.empty() ? ok_status() : broken(2, at, "root has pages");
  }
  if (node.page_count() == 0 ||
      node.tokens.size() != std::size_t{node.page_count()} * tree.page_size()) {
    return broken(2, at, "tokens are not pages * page_size");
  }
  if (node.stored_pages > node.page_count()) return broken(2, at, "stored pages");
  bool somewhere = false;
  for (const Tier tier : kTreeTiers) {
    const Residency& r = tree.residency(at, tier);
    somewhere = somewhere || r.resident();
    if (r.resident() && r.pages.size() != node.page_count()) return broken(2, at, "page ids");
    for (const PageId page : r.pages) {
      if (tree.owner(tier, page) != at) return broken(8, at, "owner table names another node");
    }
    if (r.listed != (r.resident() && r.pins == 0)) return broken(6, at, "listed wrongly");
    const bool leaf = r.listed && r.resident_children == 0;
    if (ranks != nullptr && (r.ranked != leaf || (leaf && r.rank != ranks(node.facts)))) {
      return broken(11, at, "stands wrongly in the order of leaves");
    }
  }
  if (!somewhere) return broken(9, at, "resident nowhere");
  return {};
}

}  // namespace

Status tree_check(const RadixTree& tree) {
  std::uint64_t duplicates = 0;
  std::array<std::uint64_t, 2> resident{};
  std::array<std::uint64_t, 2> pinned{};
  std::array<std::size_t, 2> to_list{};
  std::array<std::size_t, 2> ranked{};
  for (NodeIndex at = 0; at < tree.nodes_.size(); ++at) {
    if (!tree.node(at).in_use) continue;
    HITIDE_RETURN_IF_ERROR(check_children(tree, at));
    HITIDE_RETURN_IF_ERROR(check_node(tree, at, tree.rank_));
    if (!tree.is_root(at)) {
      const Node& node = tree.node(at);
      if (tree.find_child(node.parent, node.tokens.data(), tree.hash_page(node.tokens.data())) !=
          at) {
        return broken(1, at, "is not found by its first page");
      }
    }
    const Residency& host = tree.residency(at, Tier::host);
    const Residency& device = tree.residency(at, Tier::device);
    const bool duplicate =
        tree.track_duplicates_ && host.listed && host.resident_children == 0 && device.resident();
    const bool leaves_next = device.listed && device.resident_children == 0;
    const Node& n = tree.node(at);
    if (n.duplicate_pages != (duplicate ? n.page_count() : 0) ||
        (duplicate && n.duplicate_rank != EvictionRank{leaves_next, n.facts.used})) {
      return broken(12, at, "stands wrongly among the duplicates");
    }
    duplicates += n.duplicate_pages;
    for (const Tier tier : kTreeTiers) {
      const Residency& r = tree.residency(at, tier);
      resident[static_cast<std::size_t>(tier)] += r.pages.size();
      if (r.pins > 0) pinned[static_cast<std::size_t>(tier)] += r.pages.size();
      if (r.listed) ++to_list[static_cast<std::size_t>(tier)];
      if (r.ranked) ++ranked[static_cast<std::size_t>(tier)];
    }
  }
  if (duplicates != tree.duplicate_pages()) return broken(12, kNoNode, "pages of duplicates");
  for (const Tier tier : kTreeTiers) {
    const auto t = static_cast<std::size_t>(tier);
    if (resident[t] != tree.resident_pages(tier) || pinned[t] != tree.pinned_pages(tier)) {
      return broken(7, kNoNode, "page counters");
    }
    tsl::robin_map<NodeIndex, std::size_t> place;
    for (NodeIndex at = tree.oldest(tier); at != kNoNode; at = tree.newer(at, tier)) {
      if (!place.emplace(at, place.size()).second) return broken(6, at, "list has a loop");
    }
    if (place.size() != to_list[t]) return broken(6, kNoNode, "list length");
    if (tree.leaf_count(tier) != ranked[t]) return broken(11, kNoNode, "length of the order");
    for (const auto& [at, rank] : place) {
      const NodeIndex parent = tree.node(at).parent;
      const auto above = place.find(parent);
      if (above != place.end() && above->second < rank) {
        return broken(6, at, "is more recent than its parent");
      }
      if (above == place.end() && !tree.is_root(parent) && tree.residency(parent, tier).pins == 0) {
        return broken(6, parent, "is missing from the list");
      }
    }
  }
  return {};
}

}  // namespace hitide
