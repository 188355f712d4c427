// The public Cache over a checked device, real lanes and real or failing stores.
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <hitide/cache.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/memory/memory_store.h"
#include "storage/registry.h"
#include "tests/support/cache_rig.h"
#include "tests/support/fault_store.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

// Batches run side by side, so which page a store's n-th answer is for is known only where one
// batch holds them all.
CacheOptions one_batch_options() {
  CacheOptions options = small_options();
  options.policy.storage_batch_pages = 64;
  return options;
}

TEST(Cache, SecondTurnIsServedFromTheDevice) {
  Rig rig(small_options());
  EXPECT_EQ(rig.run(sequence_of(30)).served_tokens(), 0u);
  const Explanation second = rig.run(sequence_of(42));
  EXPECT_EQ(second.served_tokens(Tier::device), 28u);
  EXPECT_EQ(second.missed.back(), (MissedSpan{MissReason::partial_page, 40, 42}));
  EXPECT_TRUE(rig.cache().check().ok()) << rig.cache().check().to_string();
}

TEST(Cache, RestartOnTheSameFileStoreIsWarm) {
  const TempDirectory directory;
  CacheOptions options = small_options();
  options.storage.backend = "file";
  options.storage.path = directory / "store";
  options.storage.bytes_max = 64 << 20;
  const Tokens prompt = sequence_of(50);
  {
    Rig rig(options);
    EXPECT_EQ(rig.run(prompt).served_tokens(), 0u);
    rig.settle();
    EXPECT_EQ(rig.cache().stats().backed_up_pages_storage, 12u);
  }
  Rig rig(options);
  const Explanation warm = rig.run(prompt);
  EXPECT_EQ(warm.served_tokens(Tier::storage), 48u);
  EXPECT_EQ(rig.run(prompt).served_tokens(Tier::device), 48u);
}

TEST(Cache, WhatWriteBackOwesIsWrittenWhenTheCacheIsClosed) {
  const TempDirectory directory;
  CacheOptions options = small_options();
  options.policy.write_policy = WritePolicy::write_back;
  options.storage.backend = "file";
  options.storage.path = directory / "store";
  options.storage.bytes_max = 64 << 20;
  const Tokens prompt = sequence_of(50);
  {
    Rig rig(options);
    rig.run(prompt);
    rig.settle();
    EXPECT_EQ(rig.cache().stats().backed_up_pages_host, 0u);
    EXPECT_TRUE(rig.cache().close(soon()).ok());
  }
  Rig rig(options);
  EXPECT_EQ(rig.run(prompt).served_tokens(Tier::storage), 48u);
}

TEST(Cache, AnotherModelOnTheSameStoreSharesNothing) {
  const TempDirectory directory;
  StorageOptions storage;
  storage.backend = "file";
  storage.path = directory / "store";
  storage.bytes_max = 64 << 20;
  CacheOptions options = small_options();
  options.storage = storage;
  {
    Rig rig(options);
    rig.run(sequence_of(50));
    rig.settle();
  }
  FakeDevice device({64, kPageSize, kPageBytes, 16}, true);
  ModelSpec other = small_model();
  other.numerics = {"micro_batch=other"};
  Result<std::unique_ptr<Cache>> cache = Cache::open(options, other, device, nullptr);
  ASSERT_TRUE(cache.ok());
  const Tokens prompt = sequence_of(50);
  PrefixRequest request;
  request.tokens = prompt;
  Result<PrefixHandle> handle = (*cache)->open_prefix(request);
  ASSERT_TRUE(handle.ok());
  const TimePoint deadline = soon();
  while (handle->state() == PrefixState::waiting && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(handle->cached_tokens(), 0u);
}

TEST(Cache, AStoreThatCannotBeOpenedCostsStorageOnly) {
  CacheOptions options = small_options();
  options.storage.backend = "file";
  options.storage.path = "/proc/no/such/place";
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level >= LogLevel::warning) lines.emplace_back(line);
  });
  {
    Rig rig(options);
    EXPECT_EQ(rig.cache().stats().storage_backend, "none");
    EXPECT_FALSE(rig.cache().stats().storage_detail.empty());
    rig.run(sequence_of(30));
    const Explanation second = rig.run(sequence_of(60));
    EXPECT_EQ(second.served_tokens(Tier::device), 28u);
    EXPECT_EQ(second.missed.front(), (MissedSpan{MissReason::storage_off, 28, 56}));
  }
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u) << "one warning";
  EXPECT_NE(lines[0].find("/proc/no/such/place"), std::string::npos);
}

TEST(Cache, AHungStoreDelaysARequestByItsDeadlineOnly) {
  auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
  FaultStore& store = *owned;
  CacheOptions options = small_options();
  options.policy.prefetch_timeout_base_s = 0.05;
  options.policy.prefetch_timeout_per_ki_token_s = 0;
  Rig rig(options, std::move(owned));
  store.hold(StoreCall::exists);
  const Explanation explanation = rig.run(sequence_of(50));
  EXPECT_EQ(explanation.missed.front(), (MissedSpan{MissReason::deadline, 0, 48}));
  EXPECT_GE(explanation.storage_wait, std::chrono::milliseconds(50));
  EXPECT_LT(explanation.storage_wait, std::chrono::seconds(5));
  store.release(StoreCall::exists);
}

TEST(Cache, AFlippedBitInStorageIsAMiss) {
  auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
  FaultStore& store = *owned;
  Rig rig(one_batch_options(), std::move(owned));
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  StoreFault fault;
  fault.kind = StoreFault::Kind::flipped_bit;
  fault.skip = 2;
  fault.times = 1;
  fault.bit = 8 * 150 + 3;
  store.add(fault);
  const Explanation damaged = rig.run(prompt);
  EXPECT_EQ(damaged.served_tokens(Tier::storage), 8u);
  EXPECT_EQ(damaged.missed.front().reason, MissReason::verification_failed);
  EXPECT_EQ(rig.cache().stats().verification_failures, 1u);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  EXPECT_EQ(rig.run(prompt).served_tokens(Tier::storage), 48u) << "dropped, and stored anew";
}

TEST(Cache, ALostOrFailingStoreIsAMissWithItsReason) {
  auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
  FaultStore& store = *owned;
  Rig rig(one_batch_options(), std::move(owned));
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  StoreFault fault;
  fault.call = StoreCall::exists;
  fault.code = StatusCode::unavailable;
  store.add(fault);
  EXPECT_EQ(rig.run(prompt).missed.front().reason, MissReason::storage_failed);
  store.clear_faults();
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  fault.call = StoreCall::get;
  fault.kind = StoreFault::Kind::lost;
  fault.skip = 4;
  fault.times = 1;
  store.add(fault);
  const Explanation lost = rig.run(prompt);
  EXPECT_EQ(lost.served_tokens(Tier::storage), 16u);
  EXPECT_EQ(lost.missed.front().reason, MissReason::evicted_host) << "and storage lost it too";
}

TEST(Cache, HandlesOutliveTheCacheAndSaySo) {
  auto rig = std::make_unique<Rig>(small_options());
  PrefixHandle handle = std::move(rig->open(sequence_of(30))).value();
  ASSERT_TRUE(rig->cache().close(soon()).ok());
  ASSERT_TRUE(rig->cache().close(soon()).ok());
  EXPECT_EQ(handle.state(), PrefixState::closed);
  EXPECT_EQ(handle.admit().status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(handle.commit(sequence_of(4)).code(), StatusCode::failed_precondition);
  EXPECT_EQ(rig->open(sequence_of(30)).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(rig->cache().flush().code(), StatusCode::failed_precondition);
  rig.reset();
  PrefixHandle moved = std::move(handle);
  moved.release();
  EXPECT_EQ(moved.admit().status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(PrefixHandle().finish(sequence_of(4)).code(), StatusCode::failed_precondition);
}

TEST(Cache, CloseWithAHungWriteEndsAtItsDeadline) {
  auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
  FaultStore& store = *owned;
  auto rig = std::make_unique<Rig>(small_options(), std::move(owned));
  store.hold(StoreCall::put);
  rig->run(sequence_of(50));
  ASSERT_TRUE(store.wait_until_held(StoreCall::put, 1, soon()));
  std::jthread release([&] {
    // The lanes wait for a running call; the store gives it back while close() is waiting.
    std::this_thread::yield();
    store.release(StoreCall::put);
  });
  const Status status = rig->cache().close(std::chrono::steady_clock::now());
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::deadline_exceeded) << status.to_string();
}

TEST(Cache, RefusesWhatDoesNotFit) {
  FakeDevice device({64, kPageSize, kPageBytes, 16});
  ModelSpec model = small_model();
  model.pools[0].page_bytes = 65;
  EXPECT_EQ(Cache::open(small_options(), model, device, nullptr).status().code(),
            StatusCode::invalid_argument);
  CacheOptions options = small_options();
  options.host.bytes = 1;
  EXPECT_EQ(Cache::open(options, small_model(), device, nullptr).status().code(),
            StatusCode::resource_exhausted);
  options = small_options();
  options.storage.backend = "tape";
  EXPECT_EQ(Cache::open(options, small_model(), device, nullptr).status().code(),
            StatusCode::invalid_argument);
}

// Several engines' worth of threads on one small cache, with a store that fails now and then.
TEST(Cache, ConcurrentRequestsNeverSeeAWrongPage) {
  auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(4u << 20));
  for (const StoreCall call : {StoreCall::exists, StoreCall::get, StoreCall::put}) {
    StoreFault fault;
    fault.call = call;
    fault.skip = 40;
    fault.times = 30;
    owned->add(fault);
  }
  CacheOptions options = small_options();
  options.host.bytes = 24 * 4096;
  options.policy.prefetch_timeout_base_s = 0.05;
  Rig rig(options, std::move(owned), {20, kPageSize, kPageBytes, 8});
  std::vector<std::jthread> threads;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&rig, seed] {
      Random random(seed);
      for (int i = 0; i < 60; ++i) {
        Tokens prompt;
        for (std::uint64_t page = random.below(5); page > 0; --page) {
          prompt.insert(prompt.end(), kPageSize, static_cast<TokenId>(random.below(2)));
        }
        prompt.insert(prompt.end(), 1 + random.below(kPageSize), 1);
        const std::string salt = random.chance(0.2) ? "salt" : "";
        PrefixHandle handle = std::move(rig.open(prompt, salt)).value();
        ASSERT_TRUE(rig.wait_while(handle, PrefixState::waiting));
        if (random.chance(0.1)) continue;  // the client went away
        ASSERT_TRUE(rig.admit_in_time(handle));
        ASSERT_TRUE(rig.wait_while(handle, PrefixState::loading));
        rig.verify_and_compute(handle, prompt, salt);
        const Status status = handle.finish(prompt);
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(rig.cache().check().ok()) << rig.cache().check().to_string();
  rig.settle();
  EXPECT_TRUE(rig.cache().check().ok()) << rig.cache().check().to_string();
}

}  // namespace
}  // namespace hitide
