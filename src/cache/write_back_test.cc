#include <array>

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

WorldOptions lazy_world() {
  WorldOptions options = small_world();
  options.core.policy.write_policy = WritePolicy::write_back;
  return options;
}

std::uint64_t host_pages(CoreWorld& world) {
  return world.core().tree().resident_pages(Tier::host);
}
std::uint64_t device_pages(CoreWorld& world) {
  return world.core().tree().resident_pages(Tier::device);
}

TEST(WriteBack, NothingIsCopiedWhileNothingLeaves) {
  CoreWorld world(lazy_world());
  world.run(sequence_of(40));
  world.run(sequence_of(40));
  EXPECT_EQ(host_pages(world), 0u);
  EXPECT_EQ(world.stored_pages(), 0u);
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, WhatLeavesTheDeviceIsFoundOnTheHost) {
  CoreWorld world(lazy_world());
  const Tokens first = sequence_of(41);
  world.run(first);
  world.run(sequence_of(60, 1000));  // 15 of 16 device pages
  EXPECT_EQ(host_pages(world), 10u);
  EXPECT_EQ(world.stored_pages(), 0u) << "the host has room";
  const auto served = world.run(first);
  EXPECT_EQ(served[0] + served[1], 40u);
  EXPECT_EQ(served[2], 0u);
  EXPECT_EQ(stats_of(world).backup_dropped_pages_host, 0u);
  EXPECT_WORLD_OK(world);
}

// Room is refused until the copies are answered, and given then; nothing is copied twice, however
// often room is asked for.
TEST(WriteBack, AnAdmissionWaitsForItsCopiesAndNoLonger) {
  CoreWorld world(lazy_world());
  world.run(sequence_of(41));
  const RequestId id = world.open(sequence_of(60, 1000));
  world.settle();
  ASSERT_FALSE(world.admit(id));
  const std::uint32_t commands = world.device_commands();
  for (int i = 0; i < 5; ++i) ASSERT_FALSE(world.admit(id));
  EXPECT_EQ(world.device_commands(), commands);
  EXPECT_EQ(stats_of(world).device.pages_free, 6u)
      << "nothing is freed before its copy is answered";
  EXPECT_WORLD_OK(world);
  world.settle();
  EXPECT_GE(stats_of(world).device.pages_free, 15u);
  ASSERT_TRUE(world.admit(id));
  world.settle();
  ASSERT_TRUE(world.compute(id, 0));
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, APageThatIsUsedAgainWhileItIsCopiedStays) {
  CoreWorld world(lazy_world());
  const Tokens first = sequence_of(41);
  world.run(first);
  const RequestId other = world.open(sequence_of(60, 1000));
  world.settle();
  ASSERT_FALSE(world.admit(other));  // copies of the first are under way
  const RequestId again = world.open(first);
  world.advance(std::chrono::seconds(40));
  ASSERT_TRUE(world.admit(again));
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(again), 40u);
  ASSERT_TRUE(world.compute(again, 0));
  EXPECT_EQ(world.last_explanation().served_tokens(Tier::device), 40u);
  world.release(again);
  world.release(other);
  world.settle();
  EXPECT_WORLD_OK(world);
}

// faults.md B119: parents become candidates, and device pages come free with the answers.
TEST(WriteBack, AChainOfNodesLeavesTheDeviceWhole) {
  CoreWorld world(lazy_world());
  for (std::uint32_t pages = 1; pages <= 5; ++pages) world.run(sequence_of(4 * pages));
  ASSERT_EQ(device_pages(world), 5u);
  world.run(sequence_of(63, 1000));
  EXPECT_EQ(host_pages(world), 5u);
  EXPECT_EQ(stats_of(world).evicted_pages[0], 5u);
  EXPECT_WORLD_OK(world);
}

// faults.md B121: what storage gets begins at position 0.
TEST(WriteBack, HeadPagesAreWrittenWithTheFirstPageBelowThem) {
  WorldOptions options = lazy_world();
  options.core.host_pages = 8;
  CoreWorld world(options);
  Tokens left = sequence_of(24);
  Tokens right = sequence_of(24);
  for (std::size_t i = 8; i < 24; ++i) right[i] += 500;  // two pages are shared
  left.push_back(7);
  right.push_back(7);
  world.run(left);
  world.run(right);
  for (TokenId start = 1000; start < 4000; start += 1000) world.run(sequence_of(60, start));
  world.flush();
  world.settle();
  EXPECT_EQ(device_pages(world) + host_pages(world), 0u);
  // The host had no room for all of it; what it took has come to storage with its head.
  const auto served = world.run(left);
  EXPECT_GE(served[2], 8u);
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, AFailedCopyLetsItsPageGoAndIsCounted) {
  WorldOptions options = lazy_world();
  options.faults.copy_fails = 1.0;
  CoreWorld world(options);
  const Tokens first = sequence_of(41);
  world.run(first);
  world.run(sequence_of(60, 1000));
  EXPECT_EQ(host_pages(world), 0u);
  EXPECT_GE(stats_of(world).backup_dropped_pages_host, 9u);
  EXPECT_EQ(world.run(first)[1], 0u);
  EXPECT_EQ(world.last_explanation().missed.front().reason, MissReason::evicted_device);
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, WithoutStorageAFullHostDropsTheOldestAndSaysSo) {
  WorldOptions options = lazy_world();
  options.core.storage = StorageState::none;
  options.core.host_pages = 12;
  CoreWorld world(options);
  const Tokens first = sequence_of(41);
  world.run(first);
  world.run(sequence_of(60, 1000));
  world.run(sequence_of(60, 2000));
  world.run(first);
  EXPECT_EQ(world.last_explanation().missed.front().reason, MissReason::evicted_host);
  EXPECT_WORLD_OK(world);
}

// faults.md B117: with a host tier smaller than the device, all pages reach storage.
TEST(WriteBack, ASmallHostFeedsStorage) {
  WorldOptions options = lazy_world();
  options.core.device_pages = 8;
  options.core.host_pages = 4;
  CoreWorld world(options);
  for (TokenId start = 0; start < 5000; start += 1000) world.run(sequence_of(16, start));
  world.drain();
  world.settle();
  const CacheStats stats = stats_of(world);
  EXPECT_EQ(
      world.stored_pages() + stats.backup_dropped_pages_host + stats.backup_dropped_pages_storage,
      20u);
  EXPECT_GE(world.stored_pages(), 16u);
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, ADrainBringsEverythingToStorage) {
  for (const std::uint32_t host : {32u, 10u, 6u}) {
    SCOPED_TRACE(testing::Message() << "host pages " << host);
    WorldOptions options = lazy_world();
    options.core.host_pages = host;
    CoreWorld world(options);
    world.run(sequence_of(24));
    world.run(sequence_of(12));
    world.run(sequence_of(20, 1000));
    world.drain();
    world.settle();
    EXPECT_EQ(world.stored_pages(), 11u);
    EXPECT_EQ(device_pages(world), 11u) << "a drain forgets nothing";
    EXPECT_EQ(stats_of(world).backup_dropped_pages_host, 0u);
    EXPECT_EQ(world.core().operations_in_flight(), 0u);
    EXPECT_WORLD_OK(world);
  }
}

TEST(WriteBack, AFlushWritesBeforeItForgets) {
  CoreWorld world(lazy_world());
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  EXPECT_EQ(device_pages(world), 10u);
  world.settle();
  EXPECT_EQ(device_pages(world) + host_pages(world), 0u);
  EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{0, 0, 40}));
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, ADrainEndsWhereStorageTakesNothing) {
  WorldOptions options = lazy_world();
  options.faults.storage_fails = 1.0;
  CoreWorld world(options);
  world.run(sequence_of(41));
  world.drain();
  world.settle();
  EXPECT_EQ(world.core().operations_in_flight(), 0u);
  EXPECT_EQ(device_pages(world), 10u);
  world.flush();
  world.settle();
  EXPECT_EQ(device_pages(world) + host_pages(world), 0u);
  EXPECT_GE(stats_of(world).backup_dropped_pages_storage, 10u);
  EXPECT_WORLD_OK(world);
}

// faults.md B125: a store that never answers, a host full of what it owes it. Whoever needs room
// gets it as soon as the device has answered.
TEST(WriteBack, AHungStoreStallsNoAdmission) {
  WorldOptions options = lazy_world();
  options.core.host_pages = 8;
  CoreWorld world(options);
  for (TokenId start = 0; start < 20000; start += 1000) {
    const RequestId id = world.open(sequence_of(40, start));
    world.advance(std::chrono::seconds(40));  // its deadline for storage
    bool admitted = world.admit(id);
    for (int round = 0; !admitted && round < 2; ++round) {
      while (world.device_commands() > 0) world.step_device();
      world.deliver_all();
      admitted = world.admit(id);
    }
    ASSERT_TRUE(admitted) << start;
    ASSERT_TRUE(world.compute(id, 0));
    world.release(id);
    EXPECT_WORLD_OK(world);
  }
  EXPECT_GT(stats_of(world).backup_dropped_pages_host, 0u) << "what was lost is counted";
  world.settle();
  EXPECT_WORLD_OK(world);
}

// With a store that keeps up, the reserve spares every page that leaves the device.
TEST(WriteBack, TheReserveMakesRoomAheadOfNeed) {
  WorldOptions options = lazy_world();
  options.core.host_pages = 64;  // 4 in reserve
  CoreWorld world(options);
  for (TokenId start = 0; start < 40000; start += 1000) world.run(sequence_of(16, start));
  EXPECT_EQ(stats_of(world).backup_dropped_pages_host, 0u);
  EXPECT_GE(stats_of(world).host.pages_free, 4u);
  EXPECT_EQ(world.stored_pages() + device_pages(world) + host_pages(world), 160u);
  EXPECT_WORLD_OK(world);
}

TEST(WriteBack, SecondCopiesLeaveAFullHostFirst) {
  WorldOptions options = lazy_world();
  options.core.storage = StorageState::none;
  options.core.device_pages = 17;
  options.core.host_pages = 8;
  CoreWorld world(options);
  Tokens a = sequence_of(16);
  Tokens b = sequence_of(16, 1000);
  for (TokenId start = 0; start < 5000; start += 1000) world.run(sequence_of(16, start));
  ASSERT_EQ(host_pages(world), 4u) << "a";
  a.push_back(1);
  EXPECT_EQ(world.run(a)[1], 12u);  // a is on both tiers now; b makes room
  ASSERT_EQ(host_pages(world), 8u);
  world.run(sequence_of(16, 5000));  // what leaves now takes the place of a's second copy
  EXPECT_EQ(stats_of(world).backup_dropped_pages_host, 0u);
  b.push_back(1);
  EXPECT_EQ(world.run(b)[1], 16u) << "b had no other copy";
  EXPECT_WORLD_OK(world);
}

// faults.md B111: what storage has below pages that are on the device alone.
TEST(WriteBack, PagesFromStorageFindTheirHeadOnTheHost) {
  for (std::uint64_t seed = 1; seed < 40; ++seed) {  // the copy and the read end in either order
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldOptions options = lazy_world();
    options.seed = seed;
    options.core.policy.prefetch_threshold_tokens = 20;
    CoreWorld world(options);
    const Tokens prompt = sequence_of(41);
    world.run(prompt);
    world.flush();
    world.settle();
    world.run(sequence_of(16));  // the head, computed anew: too short to ask storage for it
    ASSERT_EQ(host_pages(world), 0u);
    const std::uint64_t stored = world.stored_pages();
    EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{16, 0, 24}));
    EXPECT_EQ(world.stored_pages(), stored);
    EXPECT_WORLD_OK(world);
  }
}

TEST(WriteBack, SequencesComeFreeWithTheCopiesOfTheirPages) {
  WorldOptions options = lazy_world();
  options.core.device_pages = 64;
  options.core.device_sequences = 3;
  CoreWorld world(options);
  for (TokenId start = 0; start < 3000; start += 1000) world.run(sequence_of(17, start));
  const RequestId id = world.open(sequence_of(16, 5000));
  world.settle();
  ASSERT_FALSE(world.admit(id));
  const std::uint32_t commands = world.device_commands();
  ASSERT_FALSE(world.admit(id));
  EXPECT_EQ(world.device_commands(), commands) << "one is enough";
  world.settle();
  ASSERT_TRUE(world.admit(id));
  EXPECT_EQ(host_pages(world), 4u);
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

// The pages below come down only after those above them, whichever copy is answered first.
TEST(WriteBack, AnswersInAnyOrderKeepTheHostPrefixClosed) {
  for (std::uint64_t seed = 1; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldOptions options = lazy_world();
    options.seed = seed;
    CoreWorld world(options);
    world.run(sequence_of(16));
    for (TokenId last : {100, 200, 300}) {
      Tokens branch = sequence_of(16);
      branch.insert(branch.end(), 8, last);
      world.run(branch);
    }
    const RequestId id = world.open(sequence_of(63, 5000));
    world.advance(std::chrono::seconds(40));
    for (int round = 0; round < 20 && !world.admit(id); ++round) {
      while (world.device_commands() > 0) world.step_device();
      world.deliver();
      EXPECT_WORLD_OK(world);
    }
    world.settle();
    EXPECT_EQ(stats_of(world).backup_dropped_pages_host, 0u);
    EXPECT_EQ(host_pages(world), 10u);
    world.release(id);
    world.settle();
    EXPECT_WORLD_OK(world);
  }
}

}  // namespace
}  // namespace hitide
