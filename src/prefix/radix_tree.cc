#include "prefix/radix_tree.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <tsl/robin_map.h>

#include "base/check.h"
#include "base/hash.h"

namespace hitide {
namespace {

constexpr Tier kTreeTiers[] = {Tier::device, Tier::host};

struct ChildKey {
  NodeIndex parent;
  std::uint64_t hash;
  friend bool operator==(const ChildKey&, const ChildKey&) = default;
};
struct ChildKeyHash {
  std::size_t operator()(const ChildKey& key) const {
    return key.hash ^ (static_cast<std::uint64_t>(key.parent) * 0x9e3779b97f4a7c15ull);
  }
};

// Pages on which `a` and `b` agree, both at least `pages` long.
std::uint32_t common_pages(const TokenId* a, const TokenId* b, std::uint32_t pages,
                           std::uint32_t page_size) {
  const std::size_t tokens = static_cast<std::size_t>(pages) * page_size;
  if (std::memcmp(a, b, tokens * sizeof(TokenId)) == 0) return pages;
  // The first difference lies in here: halve until it is found.
  std::uint32_t same = 0;
  std::uint32_t different = pages;
  while (different - same > 1) {
    const std::uint32_t middle = same + (different - same) / 2;
    const std::size_t from = static_cast<std::size_t>(same) * page_size;
    const std::size_t count = static_cast<std::size_t>(middle - same) * page_size;
    if (std::memcmp(a + from, b + from, count * sizeof(TokenId)) == 0) {
      same = middle;
    } else {
      different = middle;
    }
  }
  return same;
}

void append_part(std::string& out, const std::optional<std::string>& part) {
  if (!part) {
    out += '\0';
    return;
  }
  out += '\1';
  const std::uint64_t size = part->size();
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += *part;
}

}  // namespace

std::string Namespace::encode() const {
  if (!extra_key && !cache_salt) return {};
  std::string out;
  append_part(out, extra_key);
  append_part(out, cache_salt);
  return out;
}

struct RadixTree::Index {
  tsl::robin_map<ChildKey, NodeIndex, ChildKeyHash> children;
  tsl::robin_map<std::string, NodeIndex> roots;
  tsl::robin_map<NodeIndex, std::string> root_names;
  std::array<std::set<std::pair<EvictionRank, NodeIndex>>, 2> leaves;  // [tier]
  std::set<std::pair<EvictionRank, NodeIndex>> duplicates;
};

RadixTree::RadixTree(std::uint32_t page_size, std::uint32_t device_pages, std::uint32_t host_pages,
                     RankLeaf rank, bool track_duplicates)
    : page_size_(page_size),
      rank_(rank),
      track_duplicates_(track_duplicates),
      index_(std::make_unique<Index>()) {
  HITIDE_CHECK(page_size >= 1, "a page holds at least one token");
  owners_[index(Tier::device)].assign(device_pages, kNoNode);
  owners_[index(Tier::host)].assign(host_pages, kNoNode);
  root({});
}

RadixTree::~RadixTree() = default;

NodeIndex RadixTree::new_node() {
  NodeIndex made;
  if (!free_nodes_.empty()) {
    made = free_nodes_.back();
    free_nodes_.pop_back();
    nodes_[made] = Node();
  } else {
    made = static_cast<NodeIndex>(nodes_.size());
    nodes_.emplace_back();
  }
  nodes_[made].in_use = true;
  return made;
}

NodeIndex RadixTree::root(std::string_view encoded_namespace) {
  const std::string name(encoded_namespace);
  if (const auto it = index_->roots.find(name); it != index_->roots.end()) return it->second;
  const NodeIndex made = new_node();
  index_->roots.emplace(name, made);
  index_->root_names.emplace(made, name);
  return made;
}

NodeIndex RadixTree::find_root(std::string_view encoded_namespace) const {
  const auto it = index_->roots.find(std::string(encoded_namespace));
  return it == index_->roots.end() ? kNoNode : it->second;
}

std::uint32_t RadixTree::match_elsewhere(NodeIndex except, std::span<const TokenId> tokens,
                                         std::uint32_t roots_max) const {
  std::uint32_t best = 0;
  std::uint32_t looked = 0;
  for (const auto& [name, other] : index_->roots) {
    if (other == except) continue;
    if (++looked > roots_max) break;
    best = std::max(best, find(other, tokens).path.pages);
  }
  return best;
}

std::uint64_t RadixTree::hash_page(const TokenId* tokens) const {
  return checksum64(std::as_bytes(std::span(tokens, page_size_)));
}

NodeIndex RadixTree::find_child(NodeIndex parent, const TokenId* first_page,
                                std::uint64_t hash) const {
  const auto it = index_->children.find(ChildKey{parent, hash});
  if (it == index_->children.end()) return kNoNode;
  for (NodeIndex child = it->second; child != kNoNode; child = nodes_[child].next_same_hash) {
    if (std::memcmp(nodes_[child].tokens.data(), first_page, page_size_ * sizeof(TokenId)) == 0) {
      return child;
    }
  }
  return kNoNode;
}

FindResult RadixTree::find(NodeIndex root, std::span<const TokenId> tokens) const {
  FindResult result;
  Boundary at{root, 0, 0};
  result.path = result.device = result.host = at;
  std::uint32_t pages_left = static_cast<std::uint32_t>(tokens.size() / page_size_);
  const TokenId* rest = tokens.data();
  bool on_device = true;
  bool on_host = true;
  while (pages_left > 0) {
    // An only child is compared at once: it need not be looked up.
    NodeIndex child = nodes_[at.node].first_child;
    if (child != kNoNode && nodes_[child].next_sibling != kNoNode) {
      child = find_child(at.node, rest, hash_page(rest));
    }
    if (child == kNoNode) break;
    const Node& next = nodes_[child];
    const std::uint32_t pages = std::min(pages_left, next.page_count());
    const std::uint32_t same = common_pages(next.tokens.data(), rest, pages, page_size_);
    if (same == 0) break;
    at = Boundary{child, same, at.pages + same};
    result.path = at;
    on_device = on_device && residency(child, Tier::device).resident();
    if (on_device) {
      result.device = result.host = at;
    } else {
      on_host = on_host && residency(child, Tier::host).resident();
      if (on_host) result.host = at;
    }
    if (same < next.page_count()) break;
    rest += static_cast<std::size_t>(same) * page_size_;
    pages_left -= same;
  }
  return result;
}

NodeIndex RadixTree::materialize(const Boundary& boundary) {
  if (boundary.offset == 0 || boundary.offset == nodes_[boundary.node].page_count()) {
    return boundary.node;
  }
  return split(boundary.node, boundary.offset);
}

void RadixTree::link_child(NodeIndex parent, NodeIndex child) {
  Node& c = nodes_[child];
  c.parent = parent;
  c.first_page_hash = hash_page(c.tokens.data());
  c.previous_sibling = kNoNode;
  c.next_sibling = nodes_[parent].first_child;
  if (c.next_sibling != kNoNode) nodes_[c.next_sibling].previous_sibling = child;
  nodes_[parent].first_child = child;
  NodeIndex& slot =
      index_->children.try_emplace(ChildKey{parent, c.first_page_hash}, kNoNode).first.value();
  c.next_same_hash = slot;
  slot = child;
  for (const Tier tier : kTreeTiers) {
    if (!residency(child, tier).resident()) continue;
    ++residency_mut(parent, tier).resident_children;
    rerank(parent, tier);
  }
}

void RadixTree::unlink_child(NodeIndex child) {
  Node& c = nodes_[child];
  Node& p = nodes_[c.parent];
  if (c.previous_sibling != kNoNode) {
    nodes_[c.previous_sibling].next_sibling = c.next_sibling;
  } else {
    p.first_child = c.next_sibling;
  }
  if (c.next_sibling != kNoNode) nodes_[c.next_sibling].previous_sibling = c.previous_sibling;
  const auto it = index_->children.find(ChildKey{c.parent, c.first_page_hash});
  HITIDE_CHECK(it != index_->children.end(), "a child is missing from the index");
  if (it->second == child) {
    if (c.next_same_hash == kNoNode) {
      index_->children.erase(it);
    } else {
      it.value() = c.next_same_hash;
    }
  } else {
    NodeIndex before = it->second;
    while (nodes_[before].next_same_hash != child) before = nodes_[before].next_same_hash;
    nodes_[before].next_same_hash = c.next_same_hash;
  }
  for (const Tier tier : kTreeTiers) {
    if (!residency(child, tier).resident()) continue;
    --residency_mut(c.parent, tier).resident_children;
    rerank(c.parent, tier);
  }
  c.next_same_hash = c.next_sibling = c.previous_sibling = kNoNode;
}

NodeIndex RadixTree::split(NodeIndex lower, std::uint32_t pages) {
  HITIDE_CHECK(!is_root(lower) && pages > 0 && pages < nodes_[lower].page_count(),
               "a split must leave pages on both sides");
  const NodeIndex upper = new_node();
  const NodeIndex parent = nodes_[lower].parent;
  unlink_child(lower);
  Node& u = nodes_[upper];
  Node& l = nodes_[lower];
  const std::ptrdiff_t tokens = static_cast<std::ptrdiff_t>(pages) * page_size_;
  u.tokens.assign(l.tokens.begin(), l.tokens.begin() + tokens);
  l.tokens.erase(l.tokens.begin(), l.tokens.begin() + tokens);
  u.keys.assign(l.keys.begin(), l.keys.begin() + pages);
  l.keys.erase(l.keys.begin(), l.keys.begin() + pages);
  u.facts = l.facts;
  u.backup_pending = l.backup_pending;
  u.store_pending = l.store_pending;
  u.stored_pages = std::min(l.stored_pages, pages);
  l.stored_pages -= u.stored_pages;
  for (const Tier tier : kTreeTiers) {
    Residency& from = residency_mut(lower, tier);
    Residency& to = residency_mut(upper, tier);
    to.pins = from.pins;
    if (!from.resident()) continue;
    to.pages.assign(from.pages.begin(), from.pages.begin() + pages);
    from.pages.erase(from.pages.begin(), from.pages.begin() + pages);
    set_owner(upper, tier);
    if (from.listed) list_insert_after(upper, lower, tier);
  }
  link_child(parent, upper);
  link_child(upper, lower);
  refresh_duplicate(upper);
  refresh_duplicate(lower);
  return upper;
}

NodeIndex RadixTree::add_child(NodeIndex parent, std::span<const TokenId> tokens,
                               std::span<const PageKey> keys, Tier tier,
                               std::span<const PageId> pages) {
  HITIDE_CHECK(
      !keys.empty() && tokens.size() == keys.size() * page_size_ && pages.size() == keys.size(),
      "a node holds whole pages, one key and one page id each");
  const NodeIndex child = new_node();
  nodes_[child].tokens.assign(tokens.begin(), tokens.end());
  nodes_[child].keys.assign(keys.begin(), keys.end());
  nodes_[child].facts.created = ++step_;
  link_child(parent, child);
  attach(child, tier, pages);
  return child;
}

void RadixTree::attach(NodeIndex node, Tier tier, std::span<const PageId> pages) {
  Residency& r = residency_mut(node, tier);
  const NodeIndex parent = nodes_[node].parent;
  HITIDE_CHECK(parent != kNoNode && !r.resident() && pages.size() == nodes_[node].page_count(),
               "attach wants one page id per page of a node that is not resident");
  HITIDE_CHECK(is_root(parent) || residency(parent, tier).resident(),
               "residency must stay prefix closed");
  r.pages.assign(pages.begin(), pages.end());
  ++residency_mut(parent, tier).resident_children;
  rerank(parent, tier);
  counts_[index(tier)].resident += pages.size();
  if (r.pins > 0) counts_[index(tier)].pinned += pages.size();
  set_owner(node, tier);
  if (r.pins == 0) list_append(node, tier);
  touch_tier(node, tier);
  refresh_duplicate(node);
}

std::vector<PageId> RadixTree::detach(NodeIndex node, Tier tier) {
  Residency& r = residency_mut(node, tier);
  HITIDE_CHECK(r.resident() && r.pins == 0 && r.resident_children == 0,
               "only an unpinned leaf of a tier can leave it");
  list_remove(node, tier);
  counts_[index(tier)].resident -= r.pages.size();
  --residency_mut(nodes_[node].parent, tier).resident_children;
  rerank(nodes_[node].parent, tier);
  std::vector<PageId> pages = std::move(r.pages);
  r.pages.clear();
  refresh_duplicate(node);
  for (const PageId page : pages) owners_[index(tier)][page.index] = kNoNode;
  remove_bare(node);
  return pages;
}

void RadixTree::remove_bare(NodeIndex node) {
  if (residency(node, Tier::device).resident() || residency(node, Tier::host).resident()) return;
  HITIDE_CHECK(nodes_[node].first_child == kNoNode, "a node without pages has a child");
  const NodeIndex parent = nodes_[node].parent;
  unlink_child(node);
  nodes_[node] = Node();
  free_nodes_.push_back(node);
  drop_unused_root(parent);
}

void RadixTree::drop_unused_root(NodeIndex root) {
  if (!is_root(root) || nodes_[root].first_child != kNoNode) return;
  if (residency(root, Tier::device).pins > 0 || residency(root, Tier::host).pins > 0) return;
  const auto name = index_->root_names.find(root);
  if (name->second.empty()) return;
  index_->roots.erase(name->second);
  index_->root_names.erase(name);
  nodes_[root] = Node();
  free_nodes_.push_back(root);
}

void RadixTree::pin(NodeIndex node, Tier tier) {
  HITIDE_CHECK(is_root(node) || residency(node, tier).resident(), "a pin wants a resident node");
  for (NodeIndex at = node; at != kNoNode; at = nodes_[at].parent) {
    Residency& r = residency_mut(at, tier);
    if (r.pins++ == 0 && r.resident()) {
      list_remove(at, tier);
      counts_[index(tier)].pinned += r.pages.size();
    }
  }
}

void RadixTree::unpin(NodeIndex node, Tier tier) {
  NodeIndex root = node;
  for (NodeIndex at = node; at != kNoNode; at = nodes_[at].parent) {
    Residency& r = residency_mut(at, tier);
    HITIDE_CHECK(r.pins > 0, "unpin without a pin");
    if (--r.pins == 0 && r.resident()) {
      list_append(at, tier);
      counts_[index(tier)].pinned -= r.pages.size();
    }
    root = at;
  }
  drop_unused_root(root);
}

void RadixTree::note_hit(NodeIndex node, std::int32_t priority) {
  EvictionFacts& facts = nodes_[node].facts;
  ++facts.hits;
  facts.priority = std::max(facts.priority, priority);
  for (const Tier tier : kTreeTiers) rerank(node, tier);
}

NodeIndex RadixTree::next_victim(Tier tier) const {
  if (rank_ == nullptr) return oldest(tier);
  const auto& leaves = index_->leaves[index(tier)];
  return leaves.empty() ? kNoNode : leaves.begin()->second;
}

std::size_t RadixTree::leaf_count(Tier tier) const { return index_->leaves[index(tier)].size(); }

NodeIndex RadixTree::next_duplicate() const {
  return index_->duplicates.empty() ? kNoNode : index_->duplicates.begin()->second;
}

void RadixTree::refresh_duplicate(NodeIndex node) {
  if (!track_duplicates_) return;
  Node& n = nodes_[node];
  if (n.duplicate_pages > 0) {
    index_->duplicates.erase({n.duplicate_rank, node});
    duplicate_pages_ -= std::exchange(n.duplicate_pages, 0);
  }
  const Residency& host = residency(node, Tier::host);
  const Residency& device = residency(node, Tier::device);
  if (!host.listed || host.resident_children > 0 || !device.resident()) return;
  const bool leaves_next = device.listed && device.resident_children == 0;
  n.duplicate_rank = EvictionRank{leaves_next, n.facts.used};
  n.duplicate_pages = n.page_count();
  duplicate_pages_ += n.duplicate_pages;
  index_->duplicates.emplace(n.duplicate_rank, node);
}

void RadixTree::rerank(NodeIndex node, Tier tier) {
  refresh_duplicate(node);
  if (rank_ == nullptr) return;
  auto& leaves = index_->leaves[index(tier)];
  Residency& r = residency_mut(node, tier);
  if (r.ranked) leaves.erase({r.rank, node});
  r.ranked = r.listed && r.resident_children == 0;
  if (!r.ranked) return;
  r.rank = rank_(nodes_[node].facts);
  leaves.emplace(r.rank, node);
}

void RadixTree::touch(NodeIndex node) {
  ++step_;
  for (NodeIndex at = node; at != kNoNode; at = nodes_[at].parent) nodes_[at].facts.used = step_;
  for (const Tier tier : kTreeTiers) touch_tier(node, tier);
}

void RadixTree::touch_tier(NodeIndex node, Tier tier) {
  for (NodeIndex at = node; at != kNoNode; at = nodes_[at].parent) {
    if (!residency(at, tier).listed) continue;
    list_remove(at, tier);
    list_append(at, tier);
  }
}

void RadixTree::list_append(NodeIndex node, Tier tier) {
  list_insert_after(node, lists_[index(tier)].newest, tier);
}

void RadixTree::list_insert_after(NodeIndex node, NodeIndex older, Tier tier) {
  RecencyList& list = lists_[index(tier)];
  Residency& r = residency_mut(node, tier);
  r.older = older;
  r.newer = older == kNoNode ? list.oldest : residency(older, tier).newer;
  if (r.older != kNoNode) {
    residency_mut(r.older, tier).newer = node;
  } else {
    list.oldest = node;
  }
  if (r.newer != kNoNode) {
    residency_mut(r.newer, tier).older = node;
  } else {
    list.newest = node;
  }
  r.listed = true;
  rerank(node, tier);
}

void RadixTree::list_remove(NodeIndex node, Tier tier) {
  RecencyList& list = lists_[index(tier)];
  Residency& r = residency_mut(node, tier);
  if (r.older != kNoNode) {
    residency_mut(r.older, tier).newer = r.newer;
  } else {
    list.oldest = r.newer;
  }
  if (r.newer != kNoNode) {
    residency_mut(r.newer, tier).older = r.older;
  } else {
    list.newest = r.older;
  }
  r.older = r.newer = kNoNode;
  r.listed = false;
  rerank(node, tier);
}

void RadixTree::set_owner(NodeIndex node, Tier tier) {
  for (const PageId page : residency(node, tier).pages) owners_[index(tier)][page.index] = node;
}

NodeIndex RadixTree::owner(Tier tier, PageId page) const {
  const std::vector<NodeIndex>& owners = owners_[index(tier)];
  return page.index < owners.size() ? owners[page.index] : kNoNode;
}

NodeIndex RadixTree::deepest_resident(NodeIndex node, Tier tier) const {
  while (!is_root(node) && !residency(node, tier).resident()) node = nodes_[node].parent;
  return node;
}

std::uint32_t RadixTree::depth_pages(NodeIndex node) const {
  std::uint32_t pages = 0;
  for (NodeIndex at = nodes_[node].parent; at != kNoNode; at = nodes_[at].parent) {
    pages += nodes_[at].page_count();
  }
  return pages;
}

NodeIndex RadixTree::root_of(NodeIndex node) const {
  while (nodes_[node].parent != kNoNode) node = nodes_[node].parent;
  return node;
}

std::vector<TokenId> RadixTree::path_tokens(NodeIndex node) const {
  std::vector<NodeIndex> path;
  for (NodeIndex at = node; at != kNoNode; at = nodes_[at].parent) path.push_back(at);
  std::vector<TokenId> tokens;
  for (auto it = path.rbegin(); it != path.rend(); ++it) {
    tokens.insert(tokens.end(), nodes_[*it].tokens.begin(), nodes_[*it].tokens.end());
  }
  return tokens;
}

std::vector<NodeIndex> RadixTree::all_nodes() const {
  std::vector<NodeIndex> out;
  for (NodeIndex i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].in_use && !is_root(i)) out.push_back(i);
  }
  return out;
}

}  // namespace hitide
