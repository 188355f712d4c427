// Load or recompute, in a world whose clock is told what each step takes.
#include <array>

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Served = std::array<std::uint32_t, 3>;

// 40 tokens are computed in 40 ms.
WorldOptions timed_world() {
  WorldOptions options = small_world();
  options.core.prefill_tokens_per_s = 1000.0;
  return options;
}

constexpr WorldSpeeds kFastStore{.storage_call = milliseconds(1)};
// 10 pages in 5 reads: 2 + 5 + 100 ms.
constexpr WorldSpeeds kSlowStore{.storage_call = milliseconds(1), .read_page = milliseconds(10)};

const LoadDecision* decision_about(const Explanation& explanation, Tier tier) {
  for (const LoadDecision& decision : explanation.decisions) {
    if (decision.tier == tier) return &decision;
  }
  return nullptr;
}

TEST(CostModel, AFastStoreIsWorthIt) {
  WorldOptions options = timed_world();
  options.speeds = kFastStore;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  for (int i = 0; i < 3; ++i) {
    world.flush();
    EXPECT_EQ(world.run(prompt), (Served{0, 0, 40}));
  }
  const Explanation explanation = world.last_explanation();
  const LoadDecision* decision = decision_about(explanation, Tier::storage);
  ASSERT_NE(decision, nullptr);
  EXPECT_TRUE(decision->loads);
  EXPECT_LT(decision->load, milliseconds(20));
  EXPECT_EQ(decision->recompute, milliseconds(40));
  EXPECT_EQ(decision->begin, 0u);
  EXPECT_EQ(decision->end, 40u);
  EXPECT_GE(stats_of(world).spans_loaded[2], 2u);
  EXPECT_EQ(stats_of(world).spans_recomputed[2], 0u);
  EXPECT_WORLD_OK(world);
}

TEST(CostModel, AStoreThatIsSlowerThanComputingIsNotAsked) {
  WorldOptions options = timed_world();
  options.speeds = kSlowStore;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  world.run(prompt);  // nothing is known yet: as without the model, and measured
  EXPECT_EQ(decision_about(world.last_explanation(), Tier::storage), nullptr);
  EXPECT_GT(stats_of(world).load_bytes_per_s[2], 0.0);
  world.flush();
  const std::uint64_t queries = stats_of(world).prefetch_queries;
  EXPECT_EQ(world.run(prompt), (Served{0, 0, 0}));
  EXPECT_EQ(stats_of(world).prefetch_queries, queries);
  const Explanation explanation = world.last_explanation();
  EXPECT_EQ(explanation.missed.front(), (MissedSpan{MissReason::not_worth_loading, 0, 40}));
  EXPECT_EQ(explanation.storage_wait, Duration::zero());
  const LoadDecision* decision = decision_about(explanation, Tier::storage);
  ASSERT_NE(decision, nullptr);
  EXPECT_FALSE(decision->loads);
  EXPECT_GT(decision->load, milliseconds(90));
  EXPECT_EQ(decision->recompute, milliseconds(40));
  EXPECT_EQ(stats_of(world).spans_recomputed[2], 1u);
  EXPECT_WORLD_OK(world);
}

// The same store, the same span: what is slow to compute is worth waiting for.
TEST(CostModel, TheDecisionTurnsWithTheSpeedOfPrefill) {
  WorldOptions options = timed_world();
  options.speeds = kSlowStore;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  world.run(prompt);
  world.flush();
  EXPECT_EQ(world.run(prompt), (Served{0, 0, 0}));
  for (int i = 0; i < 40; ++i) world.core().note_prefill(100, seconds(1));
  world.flush();
  EXPECT_EQ(world.run(prompt), (Served{0, 0, 40}));
  EXPECT_WORLD_OK(world);
}

TEST(CostModel, AStoreThatHasBecomeFastIsFoundOutAtNobodysExpense) {
  WorldOptions options = timed_world();
  options.speeds = kSlowStore;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  world.run(prompt);
  world.set_speeds(kFastStore);
  int rounds = 0;
  for (; rounds < 10; ++rounds) {
    world.flush();
    world.advance(seconds(10));
    const RequestId id = world.open(prompt);
    const bool asked_for_good = world.core().state(id) == PrefixState::waiting;
    world.settle();
    world.release(id);
    world.settle();
    if (asked_for_good) break;
  }
  EXPECT_GT(rounds, 0);
  EXPECT_LT(rounds, 10);
  EXPECT_WORLD_OK(world);
}

TEST(CostModel, WithoutMeasurementsEverythingIsLoadedAsBefore) {
  WorldOptions options = timed_world();
  options.core.prefill_tokens_per_s = 0.0;
  options.speeds = kSlowStore;
  options.speeds.load_page = seconds(1);
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  for (int i = 0; i < 3; ++i) {
    world.flush();
    EXPECT_EQ(world.run(prompt), (Served{0, 0, 40}));
    EXPECT_TRUE(world.last_explanation().decisions.empty());
  }
  EXPECT_WORLD_OK(world);
}

TEST(CostModel, TurnedOffItDecidesNothing) {
  WorldOptions options = timed_world();
  options.core.policy.cost_model = false;
  options.core.policy.prefetch_policy = PrefetchPolicy::best_effort;
  options.speeds = kSlowStore;
  options.speeds.load_page = seconds(1);
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  for (int i = 0; i < 3; ++i) {
    world.flush();
    EXPECT_EQ(world.run(prompt), (Served{0, 0, 40}));
    EXPECT_TRUE(world.last_explanation().decisions.empty());
  }
  EXPECT_WORLD_OK(world);
}

TEST(CostModel, WaitCompleteSparesComputingWhateverItCosts) {
  WorldOptions options = timed_world();
  options.core.policy.prefetch_policy = PrefetchPolicy::wait_complete;
  options.speeds = kSlowStore;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  for (int i = 0; i < 3; ++i) {
    world.flush();
    EXPECT_EQ(world.run(prompt), (Served{0, 0, 40}));
  }
  EXPECT_WORLD_OK(world);
}

// From the host: 9 pages take 9 times the time of a page, computing them 36 ms.
TEST(CostModel, ASlowHostIsPassedOver) {
  for (const int load_ms : {1, 10}) {
    SCOPED_TRACE(testing::Message() << load_ms << " ms a page");
    WorldOptions options = timed_world();
    options.core.storage = StorageState::none;
    options.speeds.load_page = milliseconds(load_ms);
    CoreWorld world(options);
    const Tokens first = sequence_of(40);
    Served served{};
    for (int i = 0; i < 3; ++i) {
      world.run(first);
      world.run(sequence_of(63, 1000));
    }
    served = world.run(first);
    const Explanation explanation = world.last_explanation();
    const LoadDecision* decision = decision_about(explanation, Tier::host);
    ASSERT_NE(decision, nullptr);
    EXPECT_EQ(decision->loads, load_ms == 1);
    EXPECT_EQ(served[1] > 0, load_ms == 1);
    if (load_ms == 10) {
      EXPECT_EQ(explanation.missed.front().reason, MissReason::not_worth_loading);
    }
    EXPECT_WORLD_OK(world);
  }
}

// Each call costs 10 ms whatever it brings, which a long span makes up for.
TEST(CostModel, EachSpanIsDecidedByItself) {
  WorldOptions options = timed_world();
  options.core.device_pages = 64;
  options.core.host_pages = 64;
  options.core.policy.storage_batch_pages = 64;
  options.speeds.storage_call = milliseconds(10);  // the question, the read
  options.speeds.read_page = std::chrono::microseconds(100);
  CoreWorld world(options);
  const Tokens long_prompt = sequence_of(161);
  const Tokens short_prompt = sequence_of(17, 5000);
  world.run(long_prompt);
  world.run(short_prompt);
  world.flush();
  world.run(long_prompt);
  for (int i = 0; i < 2; ++i) {
    world.flush();
    world.run(short_prompt);
  }
  world.flush();
  EXPECT_EQ(world.run(short_prompt), (Served{0, 0, 0})) << "21 ms against 16";
  EXPECT_EQ(world.run(long_prompt), (Served{0, 0, 160})) << "24 ms against 160";
  EXPECT_WORLD_OK(world);
}

}  // namespace
}  // namespace hitide
