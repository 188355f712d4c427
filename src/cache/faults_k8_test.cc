// faults.md K8: pages are leaked, freed twice, or used after they were freed.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

using std::chrono::seconds;

void expect_all_free(CoreWorld& world) {
  world.settle();
  world.flush();
  world.settle();
  const CacheStats stats = stats_of(world);
  EXPECT_EQ(stats.device.pages_free, stats.device.pages_total);
  EXPECT_EQ(stats.host.pages_free, stats.host.pages_total);
  EXPECT_WORLD_OK(world);
}

// B093: an abort while the lanes still read and write with the operation's pages.
TEST(FaultsK8, B093AbortsLeaveOperationsTheirOwnPages) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldOptions options = small_world();
    options.seed = seed;
    CoreWorld world(options);
    const Tokens prompt = sequence_of(41);
    world.run(prompt);
    for (TokenId round = 0; round < 50; ++round) {
      world.flush();
      const RequestId id = world.open(prompt);
      for (std::uint64_t steps = world.random().below(8); steps > 0; --steps) {
        world.step_storage();
        world.deliver();
      }
      world.release(id);
      world.run(sequence_of(20, 100 + round));  // takes pages while those reads are under way
      EXPECT_WORLD_OK(world);
    }
    expect_all_free(world);
  }
}

// B095: nodes own vectors of their own size, whatever was split off from them.
TEST(FaultsK8, B095TheTreeHasNoNodesLeftAfterManyInsertsAndEvictions) {
  CoreWorld world(small_world());
  std::size_t most = 0;
  for (TokenId round = 0; round < 3000; ++round) {
    world.run(sequence_of(21, round % 97 * 10));
    most = std::max(most, world.core().tree().node_slots());
  }
  EXPECT_LE(most, 16u + 32u + 2u) << "a node has at least one page of its own";
  expect_all_free(world);
  EXPECT_EQ(world.core().tree().node_count(), 1u) << "the root";
}

// B097: half is in use, the rest is filled to the limit and cleared.
TEST(FaultsK8, B097PinnedPagesSurviveAFlushAndCapacityIsRestored) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(33);
  world.run(prompt);
  const RequestId id = world.open(prompt);
  ASSERT_TRUE(world.admit(id));
  world.settle();
  for (TokenId start = 1000; start < 9000; start += 1000) world.run(sequence_of(20, start));
  world.flush();
  world.settle();
  EXPECT_EQ(world.core().tree().resident_pages(Tier::device), 8u);
  EXPECT_EQ(world.core().tree().pinned_pages(Tier::device), 8u);
  ASSERT_TRUE(world.compute(id, 0)) << "and what is in them is still right";
  world.release(id);
  expect_all_free(world);
}

// B099: many retrievals of one prefix from each tier.
TEST(FaultsK8, B099AThousandRetrievalsLeaveNoPin) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(41);
  for (int round = 0; round < 1000; ++round) {
    if (round % 3 == 0) world.flush();
    world.run(prompt);
    ASSERT_EQ(world.core().tree().pinned_pages(Tier::device), 0u);
    ASSERT_EQ(world.core().tree().pinned_pages(Tier::host), 0u);
  }
  expect_all_free(world);
}

// B102: the store fails in the middle of a write, and of a read.
TEST(FaultsK8, B102AFailedCallGivesEverythingBack) {
  for (const double fails : {0.3, 1.0}) {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " fails " << fails);
      WorldOptions options = small_world();
      options.seed = seed;
      options.faults.storage_fails = fails;
      CoreWorld world(options);
      for (int round = 0; round < 5; ++round) {
        world.run(sequence_of(41));
        world.flush();
      }
      for (int i = 0; i < 5; ++i) {
        world.advance(seconds(100));
        world.settle();
      }
      EXPECT_EQ(stats_of(world).host.pages_in_flight, 0u);
      expect_all_free(world);
    }
  }
}

// B105: a node that is on the host alone; the same prompt runs and finishes.
TEST(FaultsK8, B105ARevivedNodeOwnsWhatTheRequestComputed) {
  for (const std::uint32_t threshold : {4u, 1000u}) {  // loaded, and computed again
    WorldOptions options = small_world();
    options.core.policy.load_back_threshold_tokens = threshold;
    CoreWorld world(options);
    const Tokens prompt = sequence_of(41);
    world.run(prompt);
    world.run(sequence_of(63, 1000));
    ASSERT_LT(world.core().tree().resident_pages(Tier::device), 20u);
    world.run(prompt);
    EXPECT_WORLD_OK(world);  // C1, C2: one owner a page
    EXPECT_EQ(world.run(prompt)[0], 40u);
    expect_all_free(world);
  }
}

// B107: the host is full of pages in use; a read from storage is a clean miss.
TEST(FaultsK8, B107AFullHostInUseIsAMissWithItsReason) {
  WorldOptions options = small_world();
  options.core.device_pages = 64;
  options.core.host_pages = 10;
  CoreWorld world(options);
  const Tokens stored = sequence_of(41);
  world.run(stored);
  world.flush();
  const Tokens hot = sequence_of(41, 1000);
  world.run(hot);
  const RequestId user = world.open(hot);
  ASSERT_TRUE(world.admit(user));
  world.settle();
  ASSERT_EQ(stats_of(world).host.pages_free, 0u);
  EXPECT_EQ(world.run(stored)[2], 0u);
  EXPECT_EQ(world.last_explanation().missed.front(), (MissedSpan{MissReason::pool_full, 0, 40}));
  world.release(user);
  expect_all_free(world);
}

}  // namespace
}  // namespace hitide
