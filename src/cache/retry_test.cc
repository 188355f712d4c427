#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The write that waits in the storage queue.
const StorageWriteOp* waiting_write(CoreWorld& world) {
  for (const PlanOp& op : world.storage_queue()) {
    if (const auto* write = std::get_if<StorageWriteOp>(&op)) return write;
  }
  return nullptr;
}

TEST(WriteRetry, TheTailIsOfferedAgainFromTheFirstPageThatIsMissing) {
  CoreWorld world(small_world());
  world.fail_writes({4});  // the fifth page, and no other
  world.run(sequence_of(40));
  EXPECT_EQ(world.stored_pages(), 9u) << "a failing page hides no page behind it";
  world.advance(seconds(1));
  const StorageWriteOp* write = waiting_write(world);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->keys.size(), 6u) << "the first four are not written again";
  world.settle();
  EXPECT_EQ(world.stored_pages(), 10u);
  EXPECT_EQ(stats_of(world).backup_retries, 1u);
  world.advance(seconds(100));
  EXPECT_EQ(waiting_write(world), nullptr);
  EXPECT_WORLD_OK(world);
}

TEST(WriteRetry, ANodeThatIsSplitInTheMeantimeIsWrittenWhole) {
  for (const std::uint32_t cut : {8u, 16u, 20u, 32u}) {
    SCOPED_TRACE(testing::Message() << "split at token " << cut);
    CoreWorld world(small_world());
    world.fail_writes({4});
    const Tokens prompt = sequence_of(40);
    world.run(prompt);
    Tokens other(prompt.begin(), prompt.begin() + cut);
    other.insert(other.end(), 5, 77);
    const RequestId id = world.open(other);  // splits, and commits nothing
    world.advance(seconds(1));
    world.settle();
    EXPECT_EQ(world.stored_pages(), 10u);
    world.release(id);
    world.settle();
    EXPECT_WORLD_OK(world);
  }
}

// faults.md B114, B115: split while the write is under way, and while its answer is.
TEST(WriteRetry, ASplitWhileAWriteIsUnderWayLosesNoPage) {
  for (const bool carried_out : {false, true}) {
    for (const std::uint32_t cut : {4u, 8u, 16u, 36u}) {
      SCOPED_TRACE(testing::Message() << "cut " << cut << " carried out " << carried_out);
      WorldOptions options = small_world();
      options.core.policy.prefetch_threshold_tokens = 1000;
      CoreWorld world(options);
      world.fail_writes({6});
      const Tokens prompt = sequence_of(40);
      const RequestId id = world.open(prompt);
      ASSERT_TRUE(world.admit(id));
      while (world.device_commands() > 0) world.step_device();
      ASSERT_TRUE(world.compute(id, 0));
      while (world.device_commands() > 0) world.step_device();
      world.deliver_all();
      ASSERT_NE(waiting_write(world), nullptr);
      if (carried_out) world.step_storage();
      for (const std::uint32_t at : {cut, cut / 2}) {  // twice
        if (at % 4 != 0) continue;
        Tokens other(prompt.begin(), prompt.begin() + at);
        other.insert(other.end(), 5, 77);
        world.release(world.open(other));
      }
      world.release(id);
      world.settle();
      EXPECT_EQ(world.stored_pages(), 9u);
      world.advance(seconds(1));
      world.settle();
      EXPECT_EQ(world.stored_pages(), 10u);
      EXPECT_WORLD_OK(world);
    }
  }
}

TEST(WriteRetry, AStoreThatTakesNothingIsTriedAFewTimesAndPinsNothing) {
  WorldOptions options = small_world();
  options.faults.storage_fails = 1.0;
  CoreWorld world(options);
  world.run(sequence_of(40));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(world.core().tree().pinned_pages(Tier::host), 0u);
    world.advance(seconds(30));
    world.settle();
  }
  EXPECT_EQ(stats_of(world).backup_retries, 3u);
  EXPECT_EQ(world.core().next_deadline(), kNoDeadline);
  EXPECT_WORLD_OK(world);
}

TEST(WriteRetry, WhatHasLeftTheHostIsNotWritten) {
  CoreWorld world(small_world());
  world.fail_writes({4});
  world.run(sequence_of(40));
  world.flush();
  world.advance(seconds(1));
  EXPECT_EQ(waiting_write(world), nullptr);
  EXPECT_WORLD_OK(world);
}

TEST(WriteRetry, AStopDoesNotWaitForTheNextTime) {
  CoreWorld world(small_world());
  world.fail_writes({4});
  world.run(sequence_of(40));
  world.drain();
  world.settle();
  EXPECT_EQ(world.stored_pages(), 10u);
  EXPECT_WORLD_OK(world);
}

// Another server stores the pages while the request waits to be admitted.
TEST(PrefetchRetry, WhatIsStoredWhileARequestWaitsIsFound) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const auto stored = world.take_storage();
  const RequestId id = world.open(prompt);
  world.settle();
  ASSERT_EQ(world.core().state(id), PrefixState::ready);
  EXPECT_EQ(world.core().cached_tokens(id), 0u);
  world.give_storage(stored);
  world.advance(milliseconds(250));
  ASSERT_EQ(world.core().state(id), PrefixState::ready) << "it delays nobody";
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(id), 40u);
  ASSERT_TRUE(world.admit(id));
  world.settle();
  ASSERT_TRUE(world.compute(id, 0));
  EXPECT_EQ(world.last_explanation().served_tokens(Tier::storage), 40u);
  EXPECT_EQ(stats_of(world).prefetch_retries, 1u);
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(PrefetchRetry, TwoPartsOfOnePrefixAreBothServedByStorage) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_threshold_tokens = 4;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const auto stored = world.take_storage();
  world.give_storage(stored, 4);
  const RequestId id = world.open(prompt);
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(id), 16u);
  world.give_storage(stored);
  world.advance(milliseconds(250));
  world.settle();
  ASSERT_TRUE(world.admit(id));
  world.settle();
  ASSERT_TRUE(world.compute(id, 0));
  EXPECT_EQ(world.last_explanation().served_tokens(Tier::storage), 40u);
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(PrefetchRetry, ItGivesUpAndTheFirstAnswerStands) {
  CoreWorld world(small_world());
  const RequestId id = world.open(sequence_of(41));
  for (int i = 0; i < 20; ++i) {
    world.settle();
    world.advance(seconds(10));
  }
  EXPECT_EQ(stats_of(world).prefetch_retries, 4u);
  EXPECT_EQ(world.core().next_deadline(), kNoDeadline);
  world.advance(seconds(10));
  ASSERT_TRUE(world.admit(id));
  world.settle();
  ASSERT_TRUE(world.compute(id, 0));
  EXPECT_EQ(world.last_explanation().missed.front(), (MissedSpan{MissReason::storage_miss, 0, 40}));
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(PrefetchRetry, AnAdmissionInTheMiddleKeepsTheFirstAnswer) {
  CoreWorld world(small_world());
  const RequestId id = world.open(sequence_of(41));
  world.settle();
  world.advance(milliseconds(250));  // the second question is on its way
  ASSERT_FALSE(world.storage_queue().empty());
  ASSERT_TRUE(world.admit(id));
  while (world.device_commands() > 0) world.step_device();
  ASSERT_TRUE(world.compute(id, 0));
  EXPECT_EQ(world.last_explanation().missed.front(), (MissedSpan{MissReason::storage_miss, 0, 40}));
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(PrefetchRetry, NoRetriesWhereNoneAreWanted) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_retries_max = 0;
  CoreWorld world(options);
  const RequestId id = world.open(sequence_of(41));
  world.settle();
  EXPECT_EQ(world.core().next_deadline(), kNoDeadline);
  world.release(id);
  EXPECT_WORLD_OK(world);
}

// Declined since others were at it: asked when they are done.
TEST(PrefetchRetry, ADeclinedPrefetchIsTriedWhenThereIsRoom) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_occupancy_max = 0.2;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const RequestId first = world.open(sequence_of(41, 1000));
  const RequestId second = world.open(prompt);
  EXPECT_EQ(world.core().state(second), PrefixState::ready);
  world.settle();
  world.release(first);
  world.advance(milliseconds(250));
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(second), 40u);
  world.release(second);
  world.settle();
  EXPECT_WORLD_OK(world);
}

// Two requests computed the same pages: those of the second are given back, and it goes on with the
// first one's.
TEST(Duplicates, PagesComputedTwiceAreKeptOnce) {
  for (const std::uint32_t sequences : {8u, 0u}) {
    WorldOptions options = small_world();
    options.core.device_sequences = sequences;
    CoreWorld world(options);
    const Tokens prompt = sequence_of(21);
    const RequestId a = world.open(prompt);
    const RequestId b = world.open(prompt);
    world.settle();
    ASSERT_TRUE(world.admit(a));
    ASSERT_TRUE(world.admit(b));
    EXPECT_EQ(stats_of(world).device.pages_free, 4u);
    ASSERT_TRUE(world.compute(a, 0));
    ASSERT_TRUE(world.compute(b, 0));
    EXPECT_EQ(stats_of(world).device.pages_free, 9u) << "five pages twice, given back at once";
    const std::vector<PageId> of_a = world.core().pages(a);
    const std::vector<PageId> of_b = world.core().pages(b);
    EXPECT_TRUE(std::equal(of_a.begin(), of_a.begin() + 5, of_b.begin()));
    ASSERT_TRUE(world.compute(b, 6));  // what it reads now is the first one's
    world.release(a);
    world.release(b);
    world.settle();
    EXPECT_WORLD_OK(world);
  }
}

// The same pages fetched for two requests at once take host pages once.
TEST(Duplicates, PagesFetchedTwiceAreKeptOnce) {
  for (std::uint64_t seed = 1; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldOptions options = small_world();
    options.seed = seed;
    CoreWorld world(options);
    const Tokens prompt = sequence_of(41);
    world.run(prompt);
    world.flush();
    const std::array ids = {world.open(prompt), world.open(prompt)};
    world.settle();
    EXPECT_EQ(world.core().tree().resident_pages(Tier::host), 10u);
    EXPECT_EQ(stats_of(world).host.pages_in_flight, 0u);
    for (const RequestId id : ids) {
      EXPECT_EQ(world.core().cached_tokens(id), 40u);
      world.release(id);
    }
    EXPECT_WORLD_OK(world);
  }
}

}  // namespace
}  // namespace hitide
