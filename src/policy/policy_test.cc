#include <array>
#include <climits>
#include <string>

#include <gtest/gtest.h>

#include "policy/eviction_policy.h"
#include "policy/prefetch_policy.h"
#include "policy/transfer_speed.h"
#include "policy/write_policy.h"
#include "prefix/radix_tree.h"

namespace hitide {
namespace {

using std::chrono::duration;
double timeout_s(std::uint32_t tokens, double tokens_per_s) {
  return duration<double>(prefetch_wait({}, {.tokens = tokens}, PrefillSpeed(tokens_per_s)))
      .count();
}

TEST(PrefetchTimeout, FormulaCapAndRecomputeTime) {
  EXPECT_NEAR(timeout_s(0, 0), 1.0, 1e-6);
  EXPECT_NEAR(timeout_s(1024, 0), 1.25, 1e-6);
  EXPECT_NEAR(timeout_s(1 << 20, 0), 30.0, 1e-6) << "257 s without the cap";
  EXPECT_NEAR(timeout_s(1024, 2048.0), 0.5, 1e-6) << "never longer than computing it again";
  EXPECT_NEAR(timeout_s(1024, 1e9), 1e-6, 1e-6);
}

TEST(PrefetchWait, WaitCompleteIsBoundedByTheCallsAlone) {
  PolicyOptions policy;
  policy.prefetch_policy = PrefetchPolicy::wait_complete;
  policy.prefetch_timeout_base_s = 0;
  policy.prefetch_timeout_max_s = 0;
  const PrefetchSpan span{.tokens = 1024, .bytes = 640ull << 20};
  const Duration wait = prefetch_wait(policy, span, PrefillSpeed(1e9));
  EXPECT_GT(wait, storage_call_limit(0) + storage_call_limit(span.bytes));
  EXPECT_LT(wait, std::chrono::seconds(20));
}

TEST(PrefetchChoice, ThresholdAndOccupancy) {
  const PolicyOptions policy;
  EXPECT_EQ(choose_prefetch(policy, 255, 0, 100), PrefetchChoice::below_threshold);
  EXPECT_EQ(choose_prefetch(policy, 256, 49, 100), PrefetchChoice::ask);
  EXPECT_EQ(choose_prefetch(policy, 256, 50, 100), PrefetchChoice::rate_limited);
}

TEST(PrefillSpeed, FollowsMeasurementsAndIgnoresShortRuns) {
  PrefillSpeed speed(0);
  EXPECT_FALSE(speed.known());
  EXPECT_EQ(speed.predict(100), Duration::max());
  speed.note(4, std::chrono::seconds(1));
  EXPECT_FALSE(speed.known());
  speed.note(100, std::chrono::seconds(1));
  EXPECT_DOUBLE_EQ(speed.tokens_per_s(), 100.0);
  speed.note(200, std::chrono::seconds(1));
  EXPECT_DOUBLE_EQ(speed.tokens_per_s(), 125.0);
  speed.note(200, Duration::zero());
  EXPECT_DOUBLE_EQ(speed.tokens_per_s(), 125.0);
}

constexpr TimePoint kNow{std::chrono::seconds(5)};

TEST(TransferSpeed, TellsATimePerMoveFromATimePerByte) {
  TransferSpeed speed;
  EXPECT_FALSE(speed.known());
  EXPECT_EQ(speed.predict(100), Duration::max());
  for (const std::uint64_t bytes : {1000, 5000, 2000, 9000}) {
    speed.note(bytes, std::chrono::milliseconds(10) + std::chrono::microseconds(bytes), kNow);
  }
  EXPECT_NEAR(duration<double>(speed.latency()).count(), 0.010, 1e-6);
  EXPECT_NEAR(speed.bytes_per_s(), 1e6, 1.0);
  EXPECT_NEAR(duration<double>(speed.predict(100000)).count(), 0.110, 1e-6);
  EXPECT_EQ(speed.measured(), kNow);
}

TEST(TransferSpeed, OneSizeAloneIsATimePerByte) {
  TransferSpeed speed;
  speed.note(1000, std::chrono::milliseconds(10), kNow);
  speed.note(1000, std::chrono::milliseconds(10), kNow);
  EXPECT_NEAR(duration<double>(speed.predict(500)).count(), 0.005, 1e-6);
  EXPECT_EQ(speed.latency(), Duration::zero());
}

TEST(TransferSpeed, NewerMovesCountMore) {
  TransferSpeed speed;
  for (int i = 0; i < 20; ++i) speed.note(1000, std::chrono::seconds(1), kNow);
  for (int i = 0; i < 20; ++i) speed.note(1000, std::chrono::milliseconds(1), kNow);
  EXPECT_LT(speed.predict(1000), std::chrono::milliseconds(3));
}

TEST(TransferSpeed, OddMeasurementsPredictNothingBelowZero) {
  TransferSpeed speed;
  speed.note(0, std::chrono::seconds(1), kNow);
  speed.note(10, Duration(-1), kNow);
  EXPECT_FALSE(speed.known());
  speed.note(1000, std::chrono::seconds(2), kNow);
  speed.note(9000, std::chrono::seconds(1), kNow);  // more bytes in less time
  EXPECT_GE(speed.predict(1), Duration::zero());
  EXPECT_LE(speed.predict(UINT64_MAX), std::chrono::seconds(1000000));
  TransferSpeed instant;
  instant.note(1000, Duration::zero(), kNow);
  EXPECT_EQ(instant.predict(1000), Duration::zero());
  EXPECT_EQ(instant.bytes_per_s(), 0.0);
}

TEST(LoadCost, LoadsWhereThatIsFasterOrNothingIsKnown) {
  TransferSpeed storage;
  TransferSpeed host;
  const PrefillSpeed prefill(1000.0);
  EXPECT_TRUE(load_cost(100, 1000, storage, &host, prefill).loads()) << "not known";
  storage.note(1000, std::chrono::milliseconds(60), kNow);
  EXPECT_TRUE(load_cost(100, 1000, storage, &host, prefill).loads());
  EXPECT_TRUE(load_cost(100, 1000, storage, &host, PrefillSpeed(0)).loads()) << "not known";
  host.note(1000, std::chrono::milliseconds(60), kNow);
  const LoadCost cost = load_cost(100, 1000, storage, &host, prefill);
  EXPECT_FALSE(cost.loads()) << "120 ms over both tiers, 100 to compute";
  EXPECT_EQ(cost.recompute, std::chrono::milliseconds(100));
}

TEST(WritePolicy, WriteBackCopiesWhatLeavesAndNothingElse) {
  EXPECT_FALSE(backup_now(WritePolicy::write_back, 1000));
  EXPECT_TRUE(copies_before_eviction(WritePolicy::write_back));
  EXPECT_FALSE(copies_before_eviction(WritePolicy::write_through));
  EXPECT_FALSE(copies_before_eviction(WritePolicy::write_through_selective));
  EXPECT_EQ(host_reserve_pages(0), 0u);
  EXPECT_EQ(host_reserve_pages(1), 1u) << "a small host has a reserve too";
  EXPECT_EQ(host_reserve_pages(160), 10u);
}

TEST(WritePolicy, WriteThroughAtTheFirstCommit) {
  EXPECT_FALSE(backup_now(WritePolicy::write_through, 0));
  EXPECT_FALSE(backup_now(WritePolicy::write_through_selective, 1));
  EXPECT_TRUE(backup_now(WritePolicy::write_through_selective, 2));
  EXPECT_TRUE(backup_now(WritePolicy::write_through, 1));
}

// The order in which single pages leave: a, b and c were put in so, then a was used twice, b and a
// once more each; c belongs to an important request.
std::string order_of(EvictionPolicy policy) {
  RadixTree tree(1, 3, 1, rank_for(policy));
  std::array<NodeIndex, 3> nodes{};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::array<TokenId, 1> token = {static_cast<TokenId>(i)};
    const std::array<PageKey, 1> key{};
    const std::array<PageId, 1> page = {PageId{i, 1}};
    nodes[i] = tree.add_child(tree.root(""), token, key, Tier::device, page);
    tree.note_hit(nodes[i], i == 2 ? 1 : 0);
    tree.touch(nodes[i]);
  }
  for (const std::uint32_t used : {0u, 0u, 1u, 0u}) {
    if (used == 1) tree.note_hit(nodes[1], 0);
    if (used == 0) tree.note_hit(nodes[0], 0);
    tree.touch(nodes[used]);
  }
  std::string order;
  while (tree.next_victim(Tier::device) != kNoNode) {
    EXPECT_TRUE(tree_check(tree).ok()) << tree_check(tree).to_string();
    const NodeIndex victim = tree.next_victim(Tier::device);
    order += static_cast<char>('a' + tree.node(victim).tokens.front());
    tree.detach(victim, Tier::device);
  }
  return order;
}

TEST(EvictionPolicy, EachHasItsOrder) {
  EXPECT_EQ(order_of(EvictionPolicy::lru), "cba");
  EXPECT_EQ(order_of(EvictionPolicy::lfu), "cba");
  EXPECT_EQ(order_of(EvictionPolicy::slru), "cba");
  EXPECT_EQ(order_of(EvictionPolicy::fifo), "abc");
  EXPECT_EQ(order_of(EvictionPolicy::mru), "abc");
  EXPECT_EQ(order_of(EvictionPolicy::filo), "cba");
  EXPECT_EQ(order_of(EvictionPolicy::priority), "bac");
}

TEST(EvictionPolicy, LfuPrefersHitsAndSlruProtectsAllThatWereUsedTwice) {
  const EvictionFacts once{.hits = 1, .used = 9};
  const EvictionFacts twice{.hits = 2, .used = 8};
  const EvictionFacts often{.hits = 100, .used = 1};
  const RankLeaf lfu = rank_for(EvictionPolicy::lfu);
  EXPECT_LT(lfu(once), lfu(twice));
  EXPECT_LT(lfu(twice), lfu(often));
  const RankLeaf slru = rank_for(EvictionPolicy::slru);
  EXPECT_LT(slru(once), slru(twice));
  EXPECT_LT(slru(often), slru(twice)) << "by recency among the protected";
}

TEST(EvictionPolicy, PrioritiesBelowZeroGoFirst) {
  const RankLeaf rank = rank_for(EvictionPolicy::priority);
  EXPECT_LT(rank({.priority = -5, .used = 9}), rank({.priority = 0, .used = 1}));
  EXPECT_LT(rank({.priority = INT32_MIN}), rank({.priority = INT32_MAX}));
}

}  // namespace
}  // namespace hitide
