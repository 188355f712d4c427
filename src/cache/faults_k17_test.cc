// faults.md K17: numbers that are not so. Gauges of stores (B217) are in
// storage/faults_k17_test.cc, those of several pools (B221) in pool/pool_group_test.cc.
#include <array>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

// 6 pages of 4 tokens and one token more; all six are in storage and nowhere else.
constexpr std::uint32_t kPages = 6;
const Tokens kPrompt = sequence_of(4 * kPages + 1);

std::uint64_t sum_of(const std::array<std::uint64_t, kTierCount>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

// Opens, does something while storage is asked, and puts the prompt through. What is counted
// meanwhile is that of this request alone, each of its tokens once.
struct Outcome {
  std::array<std::uint64_t, kTierCount> served{};
  std::array<std::uint64_t, kMissReasonCount> missed{};
  std::uint64_t missed_for(MissReason reason) const {
    return missed[static_cast<std::size_t>(reason)];
  }
  std::uint64_t from(Tier tier) const { return served[static_cast<std::size_t>(tier)]; }
};

Outcome outcome_of(CoreWorld& world, const std::function<void(RequestId)>& meanwhile) {
  const CacheStats before = stats_of(world);
  const RequestId id = world.open(kPrompt);
  EXPECT_EQ(sum_of(stats_of(world).served_tokens), sum_of(before.served_tokens))
      << "credit for what was only asked for";
  meanwhile(id);
  EXPECT_EQ(sum_of(stats_of(world).served_tokens), sum_of(before.served_tokens))
      << "credit for what was only staged";
  world.settle();
  EXPECT_TRUE(world.admit(id));
  world.settle();
  EXPECT_TRUE(world.compute(id, 0));
  world.release(id);
  world.settle();
  const CacheStats after = stats_of(world);
  Outcome outcome;
  for (std::size_t i = 0; i < outcome.served.size(); ++i) {
    outcome.served[i] = after.served_tokens[i] - before.served_tokens[i];
  }
  for (std::size_t i = 0; i < outcome.missed.size(); ++i) {
    outcome.missed[i] = after.missed_tokens[i] - before.missed_tokens[i];
  }
  const std::uint64_t missed =
      std::accumulate(outcome.missed.begin(), outcome.missed.end(), std::uint64_t{0});
  EXPECT_EQ(sum_of(outcome.served) + missed, kPrompt.size()) << "each token once";
  EXPECT_EQ(after.prompt_tokens - before.prompt_tokens, kPrompt.size());
  EXPECT_EQ(
      outcome.missed_for(MissReason::last_token) + outcome.missed_for(MissReason::partial_page),
      1u);
  EXPECT_WORLD_OK(world);
  return outcome;
}

void fill_storage(CoreWorld& world) {
  world.run(kPrompt);
  world.flush();
  world.settle();
  ASSERT_EQ(world.stored_pages(), kPages);
}

TEST(FaultsK17, B219AWholeHitIsCreditedToStorageOnce) {
  CoreWorld world(small_world());
  fill_storage(world);
  const Outcome outcome = outcome_of(world, [](RequestId) {});
  EXPECT_EQ(outcome.from(Tier::storage), 24u);
  EXPECT_EQ(outcome.from(Tier::host), 0u) << "the host was a station on the way";
  const Outcome again = outcome_of(world, [](RequestId) {});
  EXPECT_EQ(again.from(Tier::device), 24u);
  EXPECT_EQ(again.from(Tier::storage), 0u);
}

// Six are there, four come.
TEST(FaultsK17, B219PagesThatAreLostOnTheWayAreNotCredited) {
  CoreWorld world(small_world());
  fill_storage(world);
  const Outcome outcome = outcome_of(world, [&](RequestId) {
    world.step_storage();  // the query: six
    world.deliver();
    world.give_storage(world.take_storage(), 4);
  });
  EXPECT_EQ(outcome.from(Tier::storage), 16u);
  EXPECT_EQ(outcome.missed_for(MissReason::evicted_host), 8u);
}

TEST(FaultsK17, B219AQuestionThatIsDeclinedIsNotCredited) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_occupancy_max = 0.01;
  CoreWorld world(options);
  fill_storage(world);
  const RequestId first = world.open(sequence_of(25, 5000));  // one may always ask
  const Outcome outcome = outcome_of(world, [](RequestId) {});
  EXPECT_EQ(sum_of(outcome.served), 0u);
  EXPECT_EQ(outcome.missed_for(MissReason::rate_limited), 24u)
      << "storage has it, and was not asked";
  world.release(first);
}

TEST(FaultsK17, B219BelowTheThresholdNothingIsAskedOrCredited) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_threshold_tokens = 25;
  CoreWorld world(options);
  fill_storage(world);
  const Outcome outcome = outcome_of(world, [](RequestId) {});
  EXPECT_EQ(sum_of(outcome.served), 0u);
  EXPECT_EQ(outcome.missed_for(MissReason::below_threshold), 24u)
      << "storage has it, and was not asked";
}

// All six have come when the host is flushed, before the request is admitted.
TEST(FaultsK17, B219WhatIsGoneBeforeAdmissionIsNotCredited) {
  CoreWorld world(small_world());
  fill_storage(world);
  bool staged = false;
  const Outcome outcome = outcome_of(world, [&](RequestId) {
    world.settle();
    staged = world.core().tree().resident_pages(Tier::host) == kPages;
    world.forget_storage();
    world.flush();
  });
  EXPECT_TRUE(staged);
  // What the waiting request holds cannot be taken from it; whatever can is a miss with a reason.
  EXPECT_EQ(outcome.from(Tier::storage) + outcome.missed_for(MissReason::unknown) +
                outcome.missed_for(MissReason::evicted_host),
            24u);
  EXPECT_EQ(outcome.from(Tier::device) + outcome.from(Tier::host), 0u);
}

// Nobody is admitted: nothing is credited, and the next one gets what was brought for it.
TEST(FaultsK17, B219ARequestThatIsDroppedIsCreditedNothing) {
  CoreWorld world(small_world());
  fill_storage(world);
  const CacheStats before = stats_of(world);
  const RequestId id = world.open(kPrompt);
  world.settle();
  world.release(id);
  world.settle();
  EXPECT_EQ(stats_of(world).served_tokens, before.served_tokens);
  EXPECT_EQ(outcome_of(world, [](RequestId) {}).from(Tier::host), 24u);
}

// Every page of a tier is in one state, after every step.
TEST(FaultsK17, B217TheStatesOfPagesSumToTheTier) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldOptions options = small_world();
    options.seed = seed;
    options.faults = {.copy_fails = 0.1, .storage_fails = 0.1, .page_lost = 0.1};
    CoreWorld world(options);
    std::vector<RequestId> open;
    for (int step = 0; step < 300; ++step) {
      switch (world.random().below(7)) {
        case 0:
          open.push_back(
              world.open(sequence_of(9 + 4 * static_cast<std::uint32_t>(world.random().below(6)),
                                     100 * static_cast<TokenId>(world.random().below(5)))));
          break;
        case 1:
          if (!open.empty() && world.core().state(open.front()) == PrefixState::ready) {
            world.admit(open.front());
          }
          break;
        case 2:
          if (!open.empty() && world.core().state(open.front()) == PrefixState::running) {
            world.compute(open.front(), 0);
          }
          break;
        case 3:
          if (!open.empty()) {
            world.release(open.front());
            open.erase(open.begin());
          }
          break;
        case 4:
          world.step_device();
          break;
        case 5:
          world.step_storage();
          break;
        default:
          world.random().chance(0.02) ? world.flush() : world.deliver();
      }
      const CacheStats stats = stats_of(world);
      for (const PoolStats& pool : {stats.device, stats.host}) {
        ASSERT_EQ(pool.pages_free + pool.pages_evictable + pool.pages_pinned + pool.pages_in_flight,
                  pool.pages_total)
            << "step " << step;
      }
    }
    for (const RequestId id : open) world.release(id);
    world.settle();
    EXPECT_WORLD_OK(world);
  }
}

}  // namespace
}  // namespace hitide
