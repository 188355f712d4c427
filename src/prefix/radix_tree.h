// RadixTree: page-aligned token runs, and on which tiers their pages lie.
//
// An edge and the node below it are one record: a run of whole pages. Namespaces branch at roots of
// their own. A node carries, for every component and tier, the page ids of its whole run or none:
// residency is uniform within a node, and a node is split where it would not be.
//
//        root ""                        root "adapter a"
//           |                              |
//        [p0 p1 p2] device+host         [p0 p1] device        equal tokens, never shared
//           |          |
//      [p3 p4] host  [p3' p4' p5'] device+host                tokens decide equality, not hashes
//
// Invariants (tree_check() verifies each, by number):
//   T1 links agree both ways; every child is found by the hash of its first page
//   T2 a node that is no root has >= 1 page; tokens = pages * page_size; one key per page
//   T3 no two children of a node share their first page
//   T4 device residency is prefix closed, host residency is prefix closed
//   T5 pins of a node >= the sum of its children's pins
//   T6 a recency list holds exactly the resident, unpinned nodes of its tier, and every node comes
//      after (is more recent than) its resident children; so its oldest node is a leaf on the tier
//   T7 page counters equal a recount
//   T8 every resident page's owner is the node that holds it
//   T9 every node that is no root is resident somewhere
//   T10 only a device leaf holds a sequence
//   T11 with an order of leaves, it holds exactly the unpinned leaves of its tier, each at its rank
//   T12 where duplicates are tracked, they are exactly the unpinned host leaves that are on the
//       device too
//
// Deterministic: no clock, no thread, no I/O. Not thread-safe. Nothing allocates in find().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/status.h>
#include <hitide/types.h>

#include "prefix/eviction_order.h"

namespace hitide {

using NodeIndex = std::uint32_t;
inline constexpr NodeIndex kNoNode = UINT32_MAX;

// What a page of the tree holds. FULL is attention KV of the anchor pool.
enum class Component : std::uint8_t { full = 0 };
inline constexpr int kComponentCount = 1;

// A page range of one node that lies on one tier, its pins, and its place in the recency list.
struct Residency {
  std::vector<PageId> pages;  // empty: not resident; else one per page of the node
  std::uint32_t pins = 0;
  std::uint32_t resident_children = 0;  // children resident on the same tier
  NodeIndex older = kNoNode;
  NodeIndex newer = kNoNode;
  bool listed = false;
  bool ranked = false;  // in the order of leaves, at `rank`
  EvictionRank rank;
  bool resident() const { return !pages.empty(); }
};

struct Node {
  std::vector<TokenId> tokens;  // [pages * page_size]
  std::vector<PageKey> keys;    // [pages]
  // [component][tier]; tier is device or host
  std::array<std::array<Residency, 2>, kComponentCount> residency;
  std::uint64_t first_page_hash = 0;
  NodeIndex parent = kNoNode;
  NodeIndex first_child = kNoNode;
  NodeIndex next_sibling = kNoNode;
  NodeIndex previous_sibling = kNoNode;
  NodeIndex next_same_hash = kNoNode;
  EvictionFacts facts;
  SequenceId sequence;          // of a cached leaf path; sequence-addressed devices only
  bool backup_pending = false;  // a device to host copy is under way
  bool store_pending = false;   // a write to storage is under way
  // The first pages, which storage has acknowledged once; it may have evicted them since.
  std::uint32_t stored_pages = 0;
  bool in_use = false;
  std::uint32_t duplicate_pages = 0;  // > 0: stands among the duplicates, at `duplicate_rank`
  EvictionRank duplicate_rank;

  std::uint32_t page_count() const { return static_cast<std::uint32_t>(keys.size()); }
  bool stored() const { return stored_pages == page_count(); }
};

// Adapter and tenant of a request. The encoding is injective.
struct Namespace {
  std::optional<std::string> extra_key;
  std::optional<std::string> cache_salt;
  std::string encode() const;
};

// Where a walk along a prompt ended. `node` and `offset`: the last `offset` pages of the walk lie
// in `node` (0 exactly when node is the root).
struct Boundary {
  NodeIndex node = kNoNode;
  std::uint32_t offset = 0;
  std::uint32_t pages = 0;  // from position 0
};

struct FindResult {
  Boundary path;    // longest prefix that is in the tree at all
  Boundary device;  // longest prefix that is on the device
  Boundary host;    // longest prefix whose pages behind `device` are all on the host
};

class RadixTree {
 public:
  // device_pages, host_pages: of each tier, for the owner tables. page_size >= 1. `rank` orders the
  // leaves that may be evicted, at the price of a balanced tree; null: recency does, for nothing.
  // `track_duplicates`: next_duplicate() is of use, at the price of another one.
  RadixTree(std::uint32_t page_size, std::uint32_t device_pages, std::uint32_t host_pages,
            RankLeaf rank = nullptr, bool track_duplicates = false);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  std::uint32_t page_size() const { return page_size_; }
  const Node& node(NodeIndex index) const { return nodes_[index]; }
  Node& node(NodeIndex index) { return nodes_[index]; }
  const Residency& residency(NodeIndex index, Tier tier) const {
    return nodes_[index].residency[0][static_cast<int>(tier)];
  }

  // The root of a namespace; created where absent.
  NodeIndex root(std::string_view encoded_namespace);
  // kNoNode where absent.
  NodeIndex find_root(std::string_view encoded_namespace) const;
  // Pages of `tokens` that another namespace than `except` knows, at most over `roots_max` roots.
  std::uint32_t match_elsewhere(NodeIndex except, std::span<const TokenId> tokens,
                                std::uint32_t roots_max) const;

  // Walks as far as whole pages of `tokens` agree. Cost: one comparison of the tokens walked, one
  // hash of a page per node.
  FindResult find(NodeIndex root, std::span<const TokenId> tokens) const;

  // Makes a boundary the end of a node, by a split where it lies inside one. Returns that node
  // (the root for a boundary of 0 pages). A split keeps the index of the lower part.
  NodeIndex materialize(const Boundary& boundary);
  // Splits so that the first `pages` pages become a node of their own, 0 < pages < page_count().
  // Returns the new upper node; pins, flags and residency are copied, a sequence stays below.
  NodeIndex split(NodeIndex node, std::uint32_t pages);

  // Adds a child; `tokens` are whole pages, no sibling shares the first one. `pages` become
  // resident on `tier`.
  NodeIndex add_child(NodeIndex parent, std::span<const TokenId> tokens,
                      std::span<const PageKey> keys, Tier tier, std::span<const PageId> pages);
  // Makes a node resident. The parent must be, or be a root (T4).
  void attach(NodeIndex node, Tier tier, std::span<const PageId> pages);
  // Ends residency and returns the pages. The node must be an unpinned leaf on the tier. The node
  // is removed when nothing is left of it (roots of no use go too, the default one stays).
  std::vector<PageId> detach(NodeIndex node, Tier tier);

  // Pins hold every node from `node` up to its root on the tier; all of them stay resident there.
  // `node` is resident on the tier or a root.
  void pin(NodeIndex node, Tier tier);
  void unpin(NodeIndex node, Tier tier);

  // One more use of the node, by a request of this priority.
  void note_hit(NodeIndex node, std::int32_t priority);
  // Marks the path from `node` up as just used, on both tiers.
  void touch(NodeIndex node);

  // The next to evict: the unpinned leaf of the tier that comes first, or kNoNode.
  NodeIndex next_victim(Tier tier) const;
  // The unpinned host leaf that loses nothing when it leaves the host, since the device has its
  // pages: first those that are not next to leave the device, then longest unused first. kNoNode:
  // none, or not tracked.
  NodeIndex next_duplicate() const;
  // Pages of all of them.
  std::uint64_t duplicate_pages() const { return duplicate_pages_; }
  // The least recent unpinned node of the tier, or kNoNode.
  NodeIndex oldest(Tier tier) const { return lists_[static_cast<int>(tier)].oldest; }
  // The one after it in the order, which need not be a leaf.
  NodeIndex newer(NodeIndex node, Tier tier) const { return residency(node, tier).newer; }

  // The node that holds a resident page, or kNoNode.
  NodeIndex owner(Tier tier, PageId page) const;

  std::uint64_t resident_pages(Tier tier) const { return counts_[index(tier)].resident; }
  std::uint64_t pinned_pages(Tier tier) const { return counts_[index(tier)].pinned; }
  std::uint64_t evictable_pages(Tier tier) const {
    return counts_[index(tier)].resident - counts_[index(tier)].pinned;
  }
  // Leaves in the order that `rank` makes; 0 without one.
  std::size_t leaf_count(Tier tier) const;
  // Nodes are [0, n), with gaps that are not in use.
  std::size_t node_slots() const { return nodes_.size(); }
  std::size_t node_count() const { return nodes_.size() - free_nodes_.size(); }

  // The deepest node from `node` up that is resident on the tier, or the root.
  NodeIndex deepest_resident(NodeIndex node, Tier tier) const;
  // Pages before the node's own.
  std::uint32_t depth_pages(NodeIndex node) const;
  NodeIndex root_of(NodeIndex node) const;
  bool is_root(NodeIndex node) const { return nodes_[node].parent == kNoNode; }
  // Tokens and keys of the path down to and including `node`.
  std::vector<TokenId> path_tokens(NodeIndex node) const;

  // Every node in use that is no root, in no particular order.
  std::vector<NodeIndex> all_nodes() const;

 private:
  friend Status tree_check(const RadixTree& tree);
  struct RecencyList {
    NodeIndex oldest = kNoNode;
    NodeIndex newest = kNoNode;
  };
  struct PageCounts {
    std::uint64_t resident = 0;
    std::uint64_t pinned = 0;
  };
  struct Index;  // (parent, hash of first page) -> first child of that hash; namespace -> root

  static int index(Tier tier) { return static_cast<int>(tier); }
  Residency& residency_mut(NodeIndex node, Tier tier) {
    return nodes_[node].residency[0][index(tier)];
  }
  std::uint64_t hash_page(const TokenId* tokens) const;
  NodeIndex find_child(NodeIndex parent, const TokenId* first_page, std::uint64_t hash) const;
  NodeIndex new_node();
  void link_child(NodeIndex parent, NodeIndex child);
  void unlink_child(NodeIndex child);
  void remove_bare(NodeIndex node);
  // A namespace that nothing uses any more goes; the default one stays.
  void drop_unused_root(NodeIndex root);
  void list_append(NodeIndex node, Tier tier);
  void list_insert_after(NodeIndex node, NodeIndex older, Tier tier);
  void list_remove(NodeIndex node, Tier tier);
  void touch_tier(NodeIndex node, Tier tier);
  // Where the node stands in the order of leaves, after anything that it follows from has changed.
  void rerank(NodeIndex node, Tier tier);
  void refresh_duplicate(NodeIndex node);
  void set_owner(NodeIndex node, Tier tier);

  const std::uint32_t page_size_;
  const RankLeaf rank_;
  const bool track_duplicates_;
  std::uint64_t duplicate_pages_ = 0;
  std::uint64_t step_ = 0;
  std::vector<Node> nodes_;
  std::vector<NodeIndex> free_nodes_;
  std::array<RecencyList, 2> lists_;
  std::array<PageCounts, 2> counts_;
  std::array<std::vector<NodeIndex>, 2> owners_;  // [tier][page index]
  std::unique_ptr<Index> index_;
};

// ok, or internal with the number of the first invariant that does not hold, and where.
Status tree_check(const RadixTree& tree);

}  // namespace hitide
