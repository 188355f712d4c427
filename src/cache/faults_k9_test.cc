// faults.md K9: invariants of the tree under eviction, locks, splits and writes. Those of
// write_back (B111, B119, B121, B125) are in write_back_test.cc, those of splits during writes
// (B114, B115) in retry_test.cc.
#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

constexpr std::array kWritePolicies = {WritePolicy::write_through, WritePolicy::write_back,
                                       WritePolicy::write_through_selective};

// B109: the host has room for one page; a parent of two pages, a child of one.
TEST(FaultsK9, B109AChildIsNeverOnTheHostWithoutItsParent) {
  for (const WritePolicy policy : kWritePolicies) {
    WorldOptions options = small_world();
    options.core.host_pages = 1;
    options.core.policy.write_policy = policy;
    CoreWorld world(options);
    world.run(sequence_of(8));
    world.run(sequence_of(12));
    world.run(sequence_of(12));
    EXPECT_WORLD_OK(world);  // T4
    world.run(sequence_of(63, 1000));
    EXPECT_WORLD_OK(world);
    world.run(sequence_of(12));
    EXPECT_WORLD_OK(world);
  }
}

// B113: host pages that a load reads stay while the host is filled with others.
TEST(FaultsK9, B113HostPagesStayWhileALoadReadsThem) {
  WorldOptions options = small_world();
  options.core.host_pages = 12;
  options.core.device_pages = 32;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(33);
  world.run(prompt);
  world.run(sequence_of(124, 1000));
  const RequestId id = world.open(prompt);
  world.settle();  // from storage, where the host has dropped it
  ASSERT_TRUE(world.admit(id));
  ASSERT_EQ(world.core().state(id), PrefixState::loading);
  EXPECT_GT(world.core().tree().pinned_pages(Tier::host), 0u);
  for (TokenId start = 5000; start < 9000; start += 1000) {
    world.release(world.open(sequence_of(40, start)));
    world.step_storage();
    EXPECT_WORLD_OK(world);
  }
  world.settle();
  ASSERT_TRUE(world.compute(id, 0)) << "the device holds what it must";
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

// B117: a host smaller than the device; what storage has confirmed makes room.
TEST(FaultsK9, B117AHostSmallerThanTheDeviceFeedsStorage) {
  WorldOptions options = small_world();
  options.core.device_pages = 8;
  options.core.host_pages = 4;
  CoreWorld world(options);
  for (TokenId start = 0; start < 5000; start += 1000) world.run(sequence_of(16, start));
  EXPECT_EQ(world.stored_pages(), 20u);
  EXPECT_WORLD_OK(world);
}

// B123: the page that is loaded is the one that would be evicted next, on both tiers.
TEST(FaultsK9, B123ALoadOfTheNextVictimReadsItsOwnBytes) {
  for (const WritePolicy policy : kWritePolicies) {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      WorldOptions options = small_world();
      options.seed = seed;
      options.core.host_pages = 16;
      options.core.policy.write_policy = policy;
      CoreWorld world(options);
      for (int round = 0; round < 6; ++round) {
        for (const TokenId start : {0, 1000, 2000}) world.run(sequence_of(33, start));
        EXPECT_WORLD_OK(world);
      }
    }
  }
}

// B127: every order of the calls of a request, repeats included.
TEST(FaultsK9, B127EveryOrderOfCallsDrainsAllOperations) {
  constexpr int kCalls = 7;
  constexpr int kDepth = 5;
  int codes = 1;
  for (int i = 0; i < kDepth; ++i) codes *= kCalls;
  const Tokens prompt = sequence_of(41);
  for (const WritePolicy policy : kWritePolicies) {
    for (int code = 0; code < codes; ++code) {
      WorldOptions options = small_world();
      options.core.policy.write_policy = policy;
      CoreWorld world(options);
      RequestId id = world.open(prompt);
      for (int step = 0, rest = code; step < kDepth; ++step, rest /= kCalls) {
        switch (rest % kCalls) {
          case 0:
            world.release(id);
            break;
          case 1:
            id = world.open(prompt);
            break;
          case 2:
            if (world.core().state(id) == PrefixState::ready) world.admit(id);
            break;
          case 3:
            if (world.core().state(id) == PrefixState::running) world.compute(id, 1);
            break;
          case 4:
            world.settle();
            break;
          case 5:
            world.advance(std::chrono::seconds(40));
            break;
          case 6:
            world.flush();
            break;
        }
        ASSERT_TRUE(world.core().check().ok())
            << "sequence " << code << ": " << world.core().check().to_string();
      }
      for (RequestId open = 1; open <= id; ++open) world.release(open);
      for (int i = 0; i < 6; ++i) {
        world.settle();
        world.advance(std::chrono::seconds(100));
      }
      world.settle();
      ASSERT_EQ(world.core().operations_in_flight(), 0u) << "sequence " << code;
      ASSERT_TRUE(world.core().check().ok()) << "sequence " << code;
      ASSERT_TRUE(world.violations().empty()) << world.violations().front();
    }
  }
}

// B129: (pages on the host, pages in storage, pages asked for).
TEST(FaultsK9, B129EveryShapeOfTwoTiersIsServedAsFarAsItGoes) {
  struct Case {
    std::uint32_t host, stored, asked;
  };
  for (const Case& c :
       {Case{3, 2, 4}, Case{2, 3, 4}, Case{4, 4, 4}, Case{0, 0, 0}, Case{0, 4, 4}}) {
    SCOPED_TRACE(testing::Message() << c.host << " " << c.stored << " " << c.asked);
    WorldOptions options = small_world();
    options.core.policy.prefetch_threshold_tokens = 1;
    CoreWorld world(options);
    world.run(sequence_of(16));
    const CoreWorld::Stored stored = world.take_storage();
    world.flush();
    world.give_storage(stored, c.host);
    if (c.host > 0) {
      const RequestId id = world.open(sequence_of(4 * c.host + 1));
      world.settle();
      world.release(id);
    }
    ASSERT_EQ(world.core().tree().resident_pages(Tier::host), c.host);
    world.forget_storage();
    world.give_storage(stored, c.stored);
    const auto served = world.run(sequence_of(4 * c.asked + 1));
    const std::uint32_t reach = std::max(c.host, c.stored);
    EXPECT_EQ(served[1], 4 * std::min(c.host, c.asked));
    EXPECT_EQ(served[1] + served[2], 4 * std::min(reach, c.asked));
    EXPECT_WORLD_OK(world);
  }
}

}  // namespace
}  // namespace hitide
