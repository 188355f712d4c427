#include "cache/cache_core.h"

#include <gtest/gtest.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

TEST(CacheCore, SecondRequestIsServedFromTheDevice) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(22);
  EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{0, 0, 0}));
  EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{20, 0, 0}));
  EXPECT_EQ(world.last_explanation().missed,
            (std::vector<MissedSpan>{{MissReason::partial_page, 20, 22}}));
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, TheLastTokenIsAlwaysComputed) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(16);
  world.run(prompt);
  EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{12, 0, 0}));
  EXPECT_EQ(world.last_explanation().missed,
            (std::vector<MissedSpan>{{MissReason::last_token, 12, 16}}));
  EXPECT_EQ(world.run({1}), (std::array<std::uint32_t, 3>{0, 0, 0}));
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, EvictedFromTheDeviceIsLoadedFromTheHost) {
  CoreWorld world(small_world());
  const Tokens first = sequence_of(40);
  world.run(first);
  world.run(sequence_of(60, 1000));  // needs 15 of 16 device pages
  EXPECT_WORLD_OK(world);
  const auto served = world.run(first);
  EXPECT_EQ(served[0] + served[1], 36u);
  EXPECT_GT(served[1], 0u);
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, WhatLiesIdleBeyondTheLimitIsLeftToTheHost) {
  WorldOptions options = small_world();
  options.core.policy.device_idle_tokens = 19;  // 4 pages
  CoreWorld world(options);
  const Tokens first = sequence_of(40);
  world.run(first);
  EXPECT_EQ(world.core().tree().resident_pages(Tier::device), 4u);
  EXPECT_EQ(world.core().tree().resident_pages(Tier::host), 10u);
  EXPECT_EQ(world.run(first), (std::array<std::uint32_t, 3>{16, 20, 0}));
  EXPECT_EQ(world.core().tree().resident_pages(Tier::device), 4u);
  world.run(sequence_of(12, 1000));
  EXPECT_EQ(world.run(first), (std::array<std::uint32_t, 3>{4, 32, 0})) << "used longest ago goes";
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, TheLimitOnIdleTokensCountsNoPageInUseAndLosesNone) {
  WorldOptions options = small_world();
  options.core.policy.device_idle_tokens = 0;
  CoreWorld world(options);
  const Tokens first = sequence_of(40);
  const RequestId id = world.open(first);
  world.settle();
  ASSERT_TRUE(world.admit(id));
  world.settle();
  ASSERT_TRUE(world.compute(id, 0));
  world.settle();
  EXPECT_EQ(world.core().tree().resident_pages(Tier::device), 10u) << "it runs";
  world.release(id);
  world.settle();
  EXPECT_EQ(world.core().tree().resident_pages(Tier::device), 0u);
  EXPECT_EQ(stats_of(world).sequences_free, stats_of(world).sequences_total);
  EXPECT_EQ(world.run(first), (std::array<std::uint32_t, 3>{0, 36, 0}));
  EXPECT_WORLD_OK(world);

  for (const std::uint32_t host_pages : {0u, 4u}) {
    options.core.host_pages = host_pages;
    options.core.storage = host_pages == 0 ? StorageState::none : StorageState::on;
    CoreWorld little(options);
    little.run(first);
    EXPECT_EQ(little.core().tree().resident_pages(Tier::device), 10u)
        << "what the host has no room for stays";
    EXPECT_EQ(little.run(first), (std::array<std::uint32_t, 3>{36, 0, 0}));
    EXPECT_WORLD_OK(little);
  }
}

TEST(CacheCore, ARestartFindsItsPagesInStorage) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  EXPECT_EQ(world.stored_pages(), 10u);
  world.flush();
  EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{0, 0, 40}));
  EXPECT_EQ(world.run(prompt), (std::array<std::uint32_t, 3>{40, 0, 0}));
}

TEST(CacheCore, StorageIsNotAskedBelowTheThreshold) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_threshold_tokens = 100;
  CoreWorld world(options);
  world.run(sequence_of(41));
  CacheStats stats;
  world.core().fill_stats(stats);
  EXPECT_EQ(stats.prefetch_queries, 0u);
  EXPECT_EQ(world.last_explanation().missed.front(),
            (MissedSpan{MissReason::below_threshold, 0, 40}));
}

TEST(CacheCore, AMissAllocatesAndEvictsNothing) {
  CoreWorld world(small_world());
  for (TokenId start = 0; start < 3000; start += 1000) world.run(sequence_of(44, start));
  CacheStats before;
  world.core().fill_stats(before);
  ASSERT_EQ(before.host.pages_free, 0u);
  world.forget_storage();
  const RequestId id = world.open(sequence_of(60, 50000));
  world.settle();
  CacheStats after;
  world.core().fill_stats(after);
  EXPECT_EQ(after.prefetch_queries, before.prefetch_queries + 1);
  EXPECT_EQ(after.evicted_pages, before.evicted_pages);
  world.release(id);
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, SaltsNeverShareAndTheReasonSaysSo) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(21);
  world.run(prompt, "tenant a");
  EXPECT_EQ(world.run(prompt, "tenant b"), (std::array<std::uint32_t, 3>{0, 0, 0}));
  EXPECT_EQ(world.last_explanation().missed.front().reason, MissReason::other_namespace);
  EXPECT_EQ(world.run(prompt, "tenant a"), (std::array<std::uint32_t, 3>{20, 0, 0}));
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, ADeadlineEndsTheWaitAndWhatArrivesLaterIsKept) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const RequestId id = world.open(prompt);
  world.step_storage();  // query
  world.deliver();
  world.step_storage();  // agree
  world.deliver();
  ASSERT_EQ(world.core().state(id), PrefixState::waiting);
  world.advance(std::chrono::seconds(31));
  ASSERT_EQ(world.core().state(id), PrefixState::ready);
  EXPECT_TRUE(world.core().check().ok());
  ASSERT_TRUE(world.admit(id));
  ASSERT_TRUE(world.compute(id, 0));
  EXPECT_EQ(world.last_explanation().missed.front(), (MissedSpan{MissReason::deadline, 0, 40}));
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, WaitCompleteWaitsForTheWholeHit) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_policy = PrefetchPolicy::wait_complete;
  options.core.prefill_tokens_per_s = 1e9;  // recomputing would be faster
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const RequestId id = world.open(prompt);
  world.advance(std::chrono::seconds(5));
  ASSERT_EQ(world.core().state(id), PrefixState::waiting);
  world.settle();
  ASSERT_EQ(world.core().state(id), PrefixState::ready);
  ASSERT_TRUE(world.admit(id));
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(id), 40u);
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, WaitCompleteEndsWhenStorageNeverAnswers) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_policy = PrefetchPolicy::wait_complete;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  const RequestId id = world.open(prompt);
  world.advance(std::chrono::seconds(30));
  EXPECT_EQ(world.core().state(id), PrefixState::ready);
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, BestEffortNeverDelaysAndKeepsWhatComesLater) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_policy = PrefetchPolicy::best_effort;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const RequestId id = world.open(prompt);
  ASSERT_EQ(world.core().state(id), PrefixState::ready);
  ASSERT_TRUE(world.admit(id));
  ASSERT_TRUE(world.compute(id, 0));
  EXPECT_EQ(world.last_explanation().missed.front(), (MissedSpan{MissReason::deadline, 0, 40}));
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);

  world.flush();
  const RequestId queued = world.open(prompt);
  world.settle();
  ASSERT_TRUE(world.admit(queued));
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(queued), 40u) << "it has come while the request waited";
  world.release(queued);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, ABestEffortPrefetchWithoutAWaiterServesTheNextRequest) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_policy = PrefetchPolicy::best_effort;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const RequestId left = world.open(prompt);
  world.release(left);
  world.settle();
  const RequestId next = world.open(prompt);
  ASSERT_TRUE(world.admit(next));
  world.settle();
  EXPECT_EQ(world.core().cached_tokens(next), 40u);
  world.release(next);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, SelectiveWritesCopyDownWhatIsUsedTwice) {
  WorldOptions options = small_world();
  options.core.policy.write_policy = WritePolicy::write_through_selective;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  EXPECT_EQ(world.stored_pages(), 0u);
  EXPECT_EQ(world.core().tree().resident_pages(Tier::host), 0u);
  world.run(prompt);
  EXPECT_EQ(world.core().tree().resident_pages(Tier::host), 10u);
  EXPECT_EQ(world.stored_pages(), 10u);
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, ALongPrefetchGivesEachReadTheTimeOfThoseBeforeIt) {
  WorldOptions options = small_world();
  options.core.page_bytes = 64ull << 20;
  CoreWorld world(options);
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.flush();
  const RequestId id = world.open(prompt);
  world.step_storage();  // query
  world.deliver();
  world.step_storage();  // agree
  world.deliver();
  TimePoint last = world.now();
  std::size_t reads = 0;
  for (const PlanOp& op : world.storage_queue()) {
    const auto* read = std::get_if<StorageReadOp>(&op);
    ASSERT_NE(read, nullptr);
    EXPECT_GT(read->deadline, last);
    last = read->deadline;
    ++reads;
  }
  EXPECT_EQ(reads, 5u);
  EXPECT_GE(last - world.now(), std::chrono::seconds(13)) << "640 MiB at 64 MiB/s, and 3 s";
  world.release(id);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, AGapInAPrefetchKeepsWhatLiesBeforeIt) {
  WorldOptions options = small_world();
  options.core.device_sequences = 0;
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    options.seed = seed;
    options.faults.page_damaged = 0.3;
    CoreWorld world(options);
    const Tokens prompt = sequence_of(41);
    world.run(prompt);
    world.flush();
    const auto served = world.run(prompt);
    EXPECT_EQ(served[0] + served[1], 0u);
    if (served[2] < 40) {
      EXPECT_EQ(world.last_explanation().missed.front().reason, MissReason::verification_failed);
    }
    EXPECT_WORLD_OK(world);
  }
}

TEST(CacheCore, EveryPrefetchBeyondTheOccupancyIsDeclinedNotQueued) {
  WorldOptions options = small_world();
  options.core.policy.prefetch_occupancy_max = 0.5;
  CoreWorld world(options);
  std::vector<RequestId> ids;
  for (TokenId start = 0; start < 20; ++start) {
    ids.push_back(world.open(sequence_of(41, start * 100)));
  }
  std::size_t waiting = 0;
  for (const RequestId id : ids) {
    waiting += world.core().state(id) == PrefixState::waiting ? 1 : 0;
  }
  EXPECT_EQ(waiting, 2u) << "10 pages each, 16 may be occupied";
  world.settle();
  for (const RequestId id : ids) {
    EXPECT_EQ(world.core().state(id), PrefixState::ready);
    world.release(id);
  }
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, TwoRequestsThatComputeTheSameShareOnePath) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(21);
  const RequestId a = world.open(prompt);
  const RequestId b = world.open(prompt);
  world.settle();
  ASSERT_TRUE(world.admit(a));
  ASSERT_TRUE(world.admit(b));
  ASSERT_TRUE(world.compute(a, 0));
  ASSERT_TRUE(world.compute(b, 5));
  EXPECT_EQ(world.core().tree().resident_pages(Tier::device), 6u);
  world.release(b);
  world.release(a);
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, AbortInMidLoadGivesEverythingBack) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(41);
  world.run(prompt);
  world.run(sequence_of(60, 1000));
  const RequestId id = world.open(prompt);
  world.settle();
  ASSERT_TRUE(world.admit(id));
  ASSERT_EQ(world.core().state(id), PrefixState::loading);
  world.release(id);
  EXPECT_TRUE(world.core().check().ok()) << world.core().check().to_string();
  world.settle();
  EXPECT_WORLD_OK(world);
}

TEST(CacheCore, WrongCallsAnswerAndChangeNothing) {
  CoreWorld world(small_world());
  Plan plan;
  EXPECT_EQ(world.core().admit(99, world.now(), plan).status().code(),
            StatusCode::failed_precondition);
  EXPECT_EQ(world.core().commit(99, {}, world.now(), plan).code(), StatusCode::failed_precondition);
  EXPECT_EQ(world.core().open({}, world.now(), plan).status().code(), StatusCode::invalid_argument);
  const Tokens negative = {1, -2};
  PrefixRequest request;
  request.tokens = negative;
  EXPECT_EQ(world.core().open(request, world.now(), plan).status().code(),
            StatusCode::invalid_argument);
  const RequestId id = world.open(sequence_of(200));
  world.settle();
  EXPECT_EQ(world.core().admit(id, world.now(), plan).status().code(),
            StatusCode::invalid_argument);
  world.release(id);
  world.release(id);
  EXPECT_TRUE(plan.ops.empty());
  EXPECT_WORLD_OK(world);
}

struct Shape {
  std::uint32_t page_size, device_pages, sequences, host_pages;
  StorageState storage;
};

class CacheCoreModel : public testing::TestWithParam<Shape> {};

// Random requests over few tokens, so that they share, split and collide, with every fault on.
TEST_P(CacheCoreModel, RandomWorldsNeverServeAWrongPage) {
  const Shape shape = GetParam();
  std::uint64_t served = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    WorldOptions options = small_world();
    options.seed = seed;
    options.core.page_size = shape.page_size;
    options.core.device_pages = shape.device_pages;
    options.core.device_sequences = shape.sequences;
    options.core.host_pages = shape.host_pages;
    options.core.storage = shape.storage;
    options.core.policy.prefetch_threshold_tokens = shape.page_size * 2;
    options.core.policy.prefetch_policy =
        std::array{PrefetchPolicy::timeout, PrefetchPolicy::best_effort,
                   PrefetchPolicy::wait_complete}[seed % 3];
    options.core.policy.eviction_policy = static_cast<EvictionPolicy>(seed % 7);
    options.core.policy.write_policy =
        std::array{WritePolicy::write_through, WritePolicy::write_back,
                   WritePolicy::write_through_selective, WritePolicy::write_back}[seed / 2 % 4];
    options.core.policy.load_back_threshold_tokens = shape.page_size;
    if (seed % 5 == 0) {
      options.core.policy.device_idle_tokens =
          static_cast<std::uint32_t>(seed % 4) * shape.page_size;
    }
    if (seed % 3 == 0) {  // worlds in which it is not clear what is cheaper
      options.core.prefill_tokens_per_s = 200.0 * shape.page_size;
      options.speeds = {.storage_call = std::chrono::milliseconds(seed % 7),
                        .read_page = std::chrono::milliseconds(seed % 11),
                        .load_page = std::chrono::milliseconds(seed % 9)};
    }
    if (seed % 4 != 0) {  // every fourth world is a calm one
      options.faults = {.copy_fails = 0.05,
                        .storage_fails = 0.05,
                        .page_lost = 0.05,
                        .page_damaged = 0.05,
                        .busy_after = 0.5,
                        .duplicate = 0.1};
    }
    CoreWorld world(options);
    Random& random = world.random();
    std::vector<RequestId> open;
    std::vector<RequestId> running;
    for (int step = 0; step < 600; ++step) {
      switch (random.below(10)) {
        case 0:
        case 1: {
          if (open.size() > 5) break;
          Tokens prompt;
          for (std::uint64_t page = random.below(6); page > 0; --page) {
            prompt.insert(prompt.end(), shape.page_size, static_cast<TokenId>(random.below(2)));
          }
          prompt.insert(prompt.end(), 1 + random.below(shape.page_size), 1);
          open.push_back(world.open(prompt, random.chance(0.2) ? "salt" : ""));
          break;
        }
        case 2:
        case 3: {
          if (open.empty()) break;
          const std::size_t which = random.below(open.size());
          const RequestId id = open[which];
          if (world.core().state(id) != PrefixState::ready || !world.admit(id)) break;
          running.push_back(id);
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
          break;
        }
        case 4: {
          if (running.empty()) break;
          const RequestId id = running[random.below(running.size())];
          if (world.core().state(id) != PrefixState::running) break;
          world.compute(id, static_cast<std::uint32_t>(random.below(shape.page_size * 2)));
          world.release(id);
          served += world.last_explanation().served_tokens();
          std::erase(running, id);
          break;
        }
        case 5: {
          std::vector<RequestId>& from = random.chance(0.5) ? open : running;
          if (from.empty() || !random.chance(0.3)) break;
          world.release(from.back());
          from.pop_back();
          break;
        }
        case 6:
          world.step_device();
          break;
        case 7:
          world.step_storage();
          break;
        case 8:
          world.deliver();
          break;
        case 9:
          world.advance(std::chrono::milliseconds(random.below(400)));
          break;
      }
      EXPECT_WORLD_OK(world);
      if (HasFailure()) return;
    }
    for (const RequestId id : open) world.release(id);
    for (const RequestId id : running) world.release(id);
    world.settle();
    for (int i = 0; i < 8; ++i) {  // retries come to an end
      world.advance(std::chrono::seconds(100));
      world.settle();
    }
    EXPECT_EQ(world.core().next_deadline(), kNoDeadline);
    EXPECT_WORLD_OK(world);
    EXPECT_EQ(world.core().operations_in_flight(), 0u);
    world.run(Tokens(shape.page_size * shape.device_pages - 1, 9));  // room comes for all of it
    EXPECT_WORLD_OK(world);
    for (int i = 0; i < 8; ++i) {
      world.advance(std::chrono::seconds(100));
      world.settle();
    }
    world.flush();
    world.settle();
    world.advance(std::chrono::seconds(20));
    CacheStats stats;
    world.core().fill_stats(stats);
    EXPECT_EQ(stats.device.pages_free, stats.device.pages_total);
    EXPECT_EQ(stats.host.pages_free, stats.host.pages_total);
    EXPECT_EQ(stats.sequences_free, stats.sequences_total);
    if (HasFailure()) return;
  }
  EXPECT_GT(served, 0u) << "a world in which nothing hits tests nothing";
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CacheCoreModel,
    testing::Values(Shape{1, 12, 6, 24, StorageState::on}, Shape{4, 12, 6, 24, StorageState::on},
                    Shape{4, 12, 0, 24, StorageState::on}, Shape{4, 24, 3, 6, StorageState::on},
                    Shape{4, 7, 4, 8, StorageState::none}, Shape{2, 16, 8, 0, StorageState::none},
                    Shape{16, 10, 5, 10, StorageState::off},
                    Shape{3, 40, 20, 80, StorageState::on}));

// Every order of six steps over two prompts that share a page, on pools of four pages, from a cold
// start and from one where the device has just forgotten the first prompt.
TEST(CacheCore, ExhaustiveSmallWorlds) {
  constexpr int kSteps = 8;
  constexpr int kDepth = 6;
  int codes = 1;
  for (int i = 0; i < kDepth; ++i) codes *= kSteps;
  for (int code = 0; code < 2 * codes; ++code) {
    WorldOptions options = small_world();
    options.core.page_size = 1;
    options.core.device_pages = 4;
    options.core.device_sequences = 2;
    options.core.host_pages = 4;
    options.core.policy.prefetch_threshold_tokens = 1;
    options.core.policy.load_back_threshold_tokens = 1;
    CoreWorld world(options);
    if (code >= codes) {
      world.run({1, 2, 3});
      world.flush();
    }
    RequestId requests[] = {0, 0};
    int rest = code % codes;
    for (int step = 0; step < kDepth; ++step, rest /= kSteps) {
      const int which = rest % 2;
      RequestId& id = requests[which];
      switch (rest % kSteps / 2) {
        case 0:
          if (id == 0) {
            id = world.open(which == 0 ? Tokens{1, 2, 3} : Tokens{1, 4, 5});
          } else {
            world.release(id);
            id = 0;
          }
          break;
        case 1:
          if (world.core().state(id) == PrefixState::ready) {
            world.admit(id);
          } else if (world.core().state(id) == PrefixState::running) {
            world.compute(id, 1);
          }
          break;
        case 2:
          which == 0 ? world.step_device() : world.step_storage();
          break;
        case 3:
          which == 0 ? world.deliver() : world.advance(std::chrono::seconds(40));
          break;
      }
      ASSERT_TRUE(world.core().check().ok())
          << "sequence " << code << ": " << world.core().check().to_string();
    }
    for (const RequestId id : requests) world.release(id);
    world.settle();
    ASSERT_TRUE(world.core().check().ok()) << "sequence " << code;
    ASSERT_TRUE(world.violations().empty())
        << "sequence " << code << ": " << world.violations().front();
  }
}

}  // namespace
}  // namespace hitide
