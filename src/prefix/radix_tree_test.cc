// The tree against a naive model: every operation, random and exhaustive, then tree_check and a
// comparison of all prefixes.
#include "prefix/radix_tree.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "base/random.h"

namespace hitide {
namespace {

using Tokens = std::vector<TokenId>;

PageKey key_of(std::uint32_t n) {
  PageKey key;
  __builtin_memcpy(key.bytes.data(), &n, sizeof n);
  return key;
}

// Drives a tree as the core would and keeps a map of what must be in it.
class TreeDriver {
 public:
  TreeDriver(std::uint32_t page_size, std::uint32_t pages, RankLeaf rank = nullptr)
      : page_size_(page_size), tree_(page_size, pages, pages, rank, true) {
    for (std::uint32_t i = pages; i > 0; --i) {
      free_[0].push_back({i - 1, 1});
      free_[1].push_back({i - 1, 1});
    }
  }

  RadixTree& tree() { return tree_; }

  // Makes the whole prompt device resident.
  void insert(const std::string& space, const Tokens& prompt) {
    const NodeIndex root = tree_.root(space);
    const std::uint32_t pages = static_cast<std::uint32_t>(prompt.size()) / page_size_;
    FindResult found = tree_.find(root, prompt);
    if (pages - found.device.pages > free_[0].size()) return;
    const NodeIndex path_end = tree_.materialize(found.path);
    found = tree_.find(root, prompt);
    // Host-only nodes between the two boundaries, top down.
    std::vector<NodeIndex> missing;
    for (NodeIndex at = path_end; !tree_.is_root(at); at = tree_.node(at).parent) {
      if (!tree_.residency(at, Tier::device).resident()) missing.push_back(at);
    }
    for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
      tree_.attach(*it, Tier::device, take(0, tree_.node(*it).page_count()));
    }
    if (found.path.pages < pages) {
      const std::size_t from = std::size_t{found.path.pages} * page_size_;
      const std::uint32_t count = pages - found.path.pages;
      std::vector<PageKey> keys;
      for (std::uint32_t i = 0; i < count; ++i) keys.push_back(key_of(i));
      tree_.add_child(path_end, std::span(prompt).subspan(from, std::size_t{count} * page_size_),
                      keys, Tier::device, take(0, count));
    }
    for (std::uint32_t n = 1; n <= pages; ++n) model_[0].insert({space, cut(prompt, n)});
  }

  // Copies a device path to the host as far as it goes.
  void backup(const std::string& space, const Tokens& prompt) {
    const NodeIndex root = tree_.find_root(space);
    if (root == kNoNode) return;
    const FindResult found = tree_.find(root, prompt);
    std::vector<NodeIndex> path;
    for (NodeIndex at = tree_.materialize(found.device); !tree_.is_root(at);
         at = tree_.node(at).parent) {
      path.push_back(at);
    }
    std::uint32_t depth = 0;
    for (auto it = path.rbegin(); it != path.rend(); ++it) {
      const std::uint32_t count = tree_.node(*it).page_count();
      if (!tree_.residency(*it, Tier::host).resident()) {
        if (count > free_[1].size()) return;
        tree_.attach(*it, Tier::host, take(1, count));
      }
      for (std::uint32_t n = 1; n <= count; ++n) {
        model_[1].insert({space, cut(prompt, depth + n)});
      }
      depth += count;
    }
  }

  bool evict(Tier tier) {
    const NodeIndex victim = tree_.next_victim(tier);
    EXPECT_EQ(victim == kNoNode, tree_.oldest(tier) == kNoNode);
    if (victim == kNoNode) return false;
    const int t = static_cast<int>(tier);
    const Tokens path = tree_.path_tokens(victim);
    const std::string space = space_of(victim);
    const std::uint32_t pages = tree_.node(victim).page_count();
    const std::uint32_t depth = static_cast<std::uint32_t>(path.size()) / page_size_;
    for (std::uint32_t n = depth - pages + 1; n <= depth; ++n) {
      EXPECT_EQ(model_[t].erase({space, cut(path, n)}), 1u);
    }
    for (const PageId page : tree_.detach(victim, tier)) free_[t].push_back(page);
    return true;
  }

  void pin(const std::string& space, const Tokens& prompt, Tier tier) {
    const NodeIndex root = tree_.find_root(space);
    if (root == kNoNode) return;
    const FindResult found = tree_.find(root, prompt);
    const NodeIndex node = tree_.deepest_resident(
        tree_.materialize(tier == Tier::device ? found.device : found.host), tier);
    tree_.pin(node, tier);
    pinned_.push_back({node, tier});
  }

  void unpin(std::size_t which) {
    if (pinned_.empty()) return;
    which %= pinned_.size();
    tree_.unpin(pinned_[which].first, pinned_[which].second);
    pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void touch(const std::string& space, const Tokens& prompt) {
    const NodeIndex root = tree_.find_root(space);
    if (root == kNoNode) return;
    const NodeIndex node = tree_.find(root, prompt).path.node;
    tree_.touch(node);
    tree_.note_hit(node, 0);
  }

  void check(const std::string& space, const Tokens& prompt) {
    const Status status = tree_check(tree_);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const NodeIndex root = tree_.find_root(space);
    std::uint32_t device = 0;
    std::uint32_t host = 0;
    std::uint32_t path = 0;
    const std::uint32_t pages = static_cast<std::uint32_t>(prompt.size()) / page_size_;
    for (std::uint32_t n = 1; n <= pages; ++n) {
      const bool d = model_[0].count({space, cut(prompt, n)}) > 0;
      const bool h = model_[1].count({space, cut(prompt, n)}) > 0;
      if (d && device == n - 1) device = n;
      if ((h || device == n) && host == n - 1) host = n;
      if ((d || h) && path == n - 1) path = n;
    }
    const FindResult found = root == kNoNode ? FindResult{} : tree_.find(root, prompt);
    ASSERT_EQ(found.device.pages, device);
    ASSERT_EQ(found.host.pages, host);
    ASSERT_EQ(found.path.pages, path);
    ASSERT_EQ(tree_.resident_pages(Tier::device), model_[0].size());
    ASSERT_EQ(tree_.resident_pages(Tier::host), model_[1].size());
  }

 private:
  std::vector<PageId> take(int tier, std::uint32_t count) {
    std::vector<PageId> out(free_[tier].end() - count, free_[tier].end());
    free_[tier].resize(free_[tier].size() - count);
    return out;
  }
  Tokens cut(const Tokens& tokens, std::uint32_t pages) const {
    return Tokens(tokens.begin(), tokens.begin() + std::ptrdiff_t{pages} * page_size_);
  }
  std::string space_of(NodeIndex node) const {
    const NodeIndex root = tree_.root_of(node);
    for (const char* space : {"", "a", "b"}) {
      if (tree_.find_root(space) == root) return space;
    }
    return "?";
  }

  std::uint32_t page_size_;
  RadixTree tree_;
  std::vector<PageId> free_[2];
  std::set<std::pair<std::string, Tokens>> model_[2];
  std::vector<std::pair<NodeIndex, Tier>> pinned_;
};

Tokens random_prompt(Random& random, std::uint32_t tokens_max) {
  Tokens prompt(random.below(tokens_max + 1));
  for (TokenId& token : prompt) token = static_cast<TokenId>(random.below(2));
  return prompt;
}

// A node of one page at the end of `parent`, on the device, and on the host too where `page` is.
NodeIndex add_page(RadixTree& tree, NodeIndex parent, TokenId token, std::uint32_t page) {
  const std::array<TokenId, 1> tokens = {token};
  const std::array<PageKey, 1> keys{};
  const std::array<PageId, 1> pages = {PageId{page, 1}};
  const NodeIndex node = tree.add_child(parent, tokens, keys, Tier::device, pages);
  tree.attach(node, Tier::host, pages);
  return node;
}

TEST(RadixTree, DuplicatesThatStayOnTheDeviceComeFirst) {
  RadixTree tree(1, 8, 8, nullptr, true);
  const NodeIndex root = tree.root("");
  const NodeIndex old_leaf = add_page(tree, root, 1, 0);
  const NodeIndex inner = add_page(tree, root, 2, 1);
  const NodeIndex pinned = add_page(tree, root, 3, 2);
  const std::array<TokenId, 1> token = {9};
  const std::array<PageKey, 1> key{};
  const std::array<PageId, 1> page = {PageId{3, 1}};
  tree.add_child(inner, token, key, Tier::device, page);  // a leaf on the host, not on the device
  tree.pin(pinned, Tier::device);
  EXPECT_EQ(tree.duplicate_pages(), 3u);
  std::vector<NodeIndex> order;
  while (tree.next_duplicate() != kNoNode) {
    EXPECT_TRUE(tree_check(tree).ok()) << tree_check(tree).to_string();
    order.push_back(tree.next_duplicate());
    tree.detach(order.back(), Tier::host);
  }
  EXPECT_EQ(order, (std::vector<NodeIndex>{inner, pinned, old_leaf}));
  EXPECT_EQ(tree.duplicate_pages(), 0u);
}

TEST(RadixTree, APinOnTheHostOrALossOnTheDeviceEndsADuplicate) {
  RadixTree tree(1, 8, 8, nullptr, true);
  const NodeIndex node = add_page(tree, tree.root(""), 1, 0);
  tree.pin(node, Tier::host);
  EXPECT_EQ(tree.next_duplicate(), kNoNode);
  tree.unpin(node, Tier::host);
  EXPECT_EQ(tree.next_duplicate(), node);
  tree.detach(node, Tier::device);
  EXPECT_EQ(tree.next_duplicate(), kNoNode);
  EXPECT_TRUE(tree_check(tree).ok()) << tree_check(tree).to_string();
}

// Ranks that go up and down while nodes are used.
EvictionRank few_hits_first(const EvictionFacts& facts) { return {facts.hits, ~facts.used}; }

class RadixTreeModel : public testing::TestWithParam<std::uint32_t> {};

TEST_P(RadixTreeModel, RandomOperationsAgreeWithTheModel) {
  const std::uint32_t page_size = GetParam();
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " page size " << page_size);
    Random random(seed);
    TreeDriver driver(page_size, 24, seed % 2 == 0 ? few_hits_first : nullptr);
    static constexpr const char* kSpaces[] = {"", "a", "b"};
    for (int step = 0; step < 400; ++step) {
      const std::string space = kSpaces[random.below(3)];
      const Tokens prompt = random_prompt(random, page_size * 6 + 1);
      switch (random.below(9)) {
        case 0:
        case 1:
        case 2:
          driver.insert(space, prompt);
          break;
        case 3:
          driver.backup(space, prompt);
          break;
        case 4:
          driver.evict(Tier::device);
          break;
        case 5:
          driver.evict(Tier::host);
          break;
        case 6:
          driver.pin(space, prompt, random.chance(0.5) ? Tier::device : Tier::host);
          break;
        case 7:
          driver.unpin(random.next());
          break;
        case 8:
          driver.touch(space, prompt);
          break;
      }
      driver.check(space, prompt);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, RadixTreeModel, testing::Values(1, 2, 4));

// Every sequence of four operations over two prompts that share a page.
TEST(RadixTree, ExhaustiveSmallSequences) {
  const Tokens prompts[] = {{1, 2}, {1, 3, 4}};
  constexpr int kOperations = 11;
  for (int code = 0; code < 2 * kOperations * kOperations * kOperations * kOperations; ++code) {
    SCOPED_TRACE(testing::Message() << "sequence " << code);
    TreeDriver driver(1, 4, code % 2 == 0 ? few_hits_first : nullptr);
    int rest = code / 2;
    for (int step = 0; step < 4; ++step, rest /= kOperations) {
      const int operation = rest % kOperations;
      const Tokens& prompt = prompts[operation % 2];
      switch (operation / 2) {
        case 0:
          driver.insert("", prompt);
          break;
        case 1:
          driver.backup("", prompt);
          break;
        case 2:
          driver.evict(operation % 2 == 0 ? Tier::device : Tier::host);
          break;
        case 3:
          driver.pin("", prompt, Tier::device);
          break;
        case 4:
          driver.touch("", prompt);
          break;
        case 5:
          driver.unpin(0);
          break;
      }
      driver.check("", prompt);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RadixTree, OldestLeafGoesFirstAndParentsFollow) {
  TreeDriver driver(1, 8);
  driver.insert("", {1, 2});
  driver.insert("", {1, 3});
  driver.touch("", {1, 2});
  RadixTree& tree = driver.tree();
  EXPECT_EQ(tree.path_tokens(tree.oldest(Tier::device)), (Tokens{1, 3}));
  ASSERT_TRUE(driver.evict(Tier::device));
  EXPECT_EQ(tree.path_tokens(tree.oldest(Tier::device)), (Tokens{1, 2}));
  ASSERT_TRUE(driver.evict(Tier::device));
  EXPECT_EQ(tree.path_tokens(tree.oldest(Tier::device)), (Tokens{1}));
}

TEST(RadixTree, PinnedPathIsNotOffered) {
  TreeDriver driver(1, 8);
  driver.insert("", {1, 2});
  driver.pin("", {1, 2}, Tier::device);
  EXPECT_EQ(driver.tree().oldest(Tier::device), kNoNode);
  EXPECT_EQ(driver.tree().pinned_pages(Tier::device), 2u);
  driver.insert("", {1, 2, 3});
  EXPECT_EQ(driver.tree().path_tokens(driver.tree().oldest(Tier::device)), (Tokens{1, 2, 3}));
  driver.unpin(0);
  EXPECT_EQ(driver.tree().evictable_pages(Tier::device), 3u);
}

TEST(RadixTree, SplitBelowAPinKeepsBothHalvesPinned) {
  TreeDriver driver(1, 8);
  driver.insert("", {1, 2, 3, 4});
  driver.pin("", {1, 2, 3, 4}, Tier::device);
  driver.insert("", {1, 2, 9});
  driver.check("", {1, 2, 3, 4});
  EXPECT_EQ(driver.tree().pinned_pages(Tier::device), 4u);
  driver.unpin(0);
  EXPECT_EQ(driver.tree().pinned_pages(Tier::device), 0u);
  driver.check("", {1, 2, 3, 4});
}

TEST(RadixTree, NamespacesNeverShareAndUnusedRootsGo) {
  TreeDriver driver(1, 8);
  driver.insert("a", {1, 2});
  EXPECT_EQ(driver.tree().find_root("b"), kNoNode);
  EXPECT_EQ(driver.tree().match_elsewhere(driver.tree().root(""), Tokens{1, 2, 3}, 8), 2u);
  EXPECT_EQ(driver.tree().find(driver.tree().root(""), Tokens{1, 2}).path.pages, 0u);
  ASSERT_TRUE(driver.evict(Tier::device));
  EXPECT_EQ(driver.tree().find_root("a"), kNoNode);
}

TEST(Namespace, EncodingIsInjective) {
  const std::optional<std::string> parts[] = {
      std::nullopt, "", "a", std::string("a\0b", 3), "\1", std::string(9, '\0'), "ab"};
  std::set<std::string> seen;
  for (const auto& extra : parts) {
    for (const auto& salt : parts) {
      EXPECT_TRUE(seen.insert(Namespace{extra, salt}.encode()).second);
    }
  }
}

}  // namespace
}  // namespace hitide
