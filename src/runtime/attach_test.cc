// Storage that comes, goes and is cleared while requests are served.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <hitide/cache.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/memory/memory_store.h"
#include "tests/support/cache_rig.h"
#include "tests/support/fault_store.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

// A store that several caches use, one after the other: closing it closes nothing.
class LentStore final : public ObjectStore {
 public:
  explicit LentStore(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  StoreCapabilities capabilities() const override { return store_->capabilities(); }
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return store_->exists(keys, out, options);
  }
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    return store_->get(items, out, options);
  }
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    return store_->put(items, out, options);
  }
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return store_->remove(keys, out, options);
  }
  Result<std::uint64_t> remove_prefix(std::string_view prefix,
                                      const CallOptions& options) override {
    return store_->remove_prefix(prefix, options);
  }
  Status register_memory(const MemoryRegion& region) override {
    return store_->register_memory(region);
  }
  Status unregister_memory(std::span<std::byte> bytes) override {
    return store_->unregister_memory(bytes);
  }
  StoreStats stats() const override { return store_->stats(); }
  Status close(TimePoint) override { return {}; }

 private:
  const std::shared_ptr<ObjectStore> store_;
};

std::unique_ptr<ObjectStore> memory_store() { return std::make_unique<MemoryStore>(64u << 20); }

PolicyOptions policy() { return small_options().policy; }

// What storage is for: device and host forget, and it brings everything back.
void expect_storage_holds(Rig& rig, const Tokens& prompt) {
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  const auto pages = static_cast<std::uint32_t>((prompt.size() - 1) / kPageSize);
  EXPECT_EQ(rig.run(prompt).served_tokens(Tier::storage), pages * kPageSize);
}

// Every page is free or in the tree, and nothing is pinned: no operation has kept any.
void expect_all_returned(Rig& rig) {
  rig.settle();
  EXPECT_TRUE(rig.cache().check().ok()) << rig.cache().check().to_string();
  ASSERT_TRUE(rig.cache().flush().ok());
  const CacheStats stats = rig.cache().stats();
  for (const PoolStats& pool : {stats.device, stats.host}) {
    EXPECT_EQ(pool.pages_free, pool.pages_total);
    EXPECT_EQ(pool.pages_pinned, 0u);
    EXPECT_EQ(pool.pages_in_flight, 0u);
  }
  EXPECT_EQ(stats.sequences_free, stats.sequences_total);
  EXPECT_EQ(stats.late_completions_dropped, 0u) << "some operation was answered twice";
  EXPECT_EQ(stats.bypass_trips, 0u);
}

TEST(AttachStorage, WhatWasComputedBeforeIsStoredByTheNextCommit) {
  Rig rig(small_options());
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::none);
  ASSERT_TRUE(rig.cache().attach_storage(memory_store(), policy(), soon()).ok());
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::on);
  EXPECT_EQ(rig.cache().stats().storage_backend, "memory");
  rig.run(prompt);
  expect_storage_holds(rig, prompt);
}

// K5 B068: nodes made before the attach; their children must not begin a chain of their own.
TEST(AttachStorage, K5_B068_AChainOfKeysIsNotBegunInTheMiddle) {
  Rig rig(small_options());
  const Tokens ab = sequence_of(2 * kPageSize);
  rig.run(ab);
  rig.settle();
  ASSERT_TRUE(rig.cache().attach_storage(memory_store(), policy(), soon()).ok());
  const Tokens abc = sequence_of(6 * kPageSize);
  rig.run(abc);
  rig.settle();
  const Tokens c(abc.begin() + 2 * kPageSize, abc.end());
  EXPECT_EQ(rig.run(c).served_tokens(), 0u) << "a suffix was taken for a prefix";
  expect_storage_holds(rig, abc);
}

TEST(AttachStorage, AnotherStoreGetsEverythingAnew) {
  const auto first = std::make_shared<MemoryStore>(64u << 20);
  const auto second = std::make_shared<MemoryStore>(64u << 20);
  Rig rig(small_options(), std::make_unique<LentStore>(first));
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  EXPECT_EQ(first->stats().objects, 12u);
  ASSERT_TRUE(rig.cache().detach_storage(soon()).ok());
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::none);
  EXPECT_EQ(rig.run(sequence_of(50, 500)).missed.front().reason, MissReason::storage_off);
  rig.settle();
  EXPECT_EQ(first->stats().objects, 12u) << "nothing is stored or lost behind a detach";
  ASSERT_TRUE(
      rig.cache().attach_storage(std::make_unique<LentStore>(second), policy(), soon()).ok());
  rig.run(prompt);
  rig.settle();
  EXPECT_EQ(second->stats().objects, 12u);
  expect_storage_holds(rig, prompt);
  ASSERT_TRUE(rig.cache().detach_storage(soon()).ok());
  ASSERT_TRUE(
      rig.cache().attach_storage(std::make_unique<LentStore>(first), policy(), soon()).ok());
  expect_storage_holds(rig, prompt);
  expect_all_returned(rig);
}

TEST(AttachStorage, TheSameStoreAgainIsAChangeOfPolicy) {
  const TempDirectory directory;
  CacheOptions options = small_options();
  options.storage.backend = "file";
  options.storage.path = directory / "store";
  options.storage.bytes_max = 64 << 20;
  Rig rig(options);
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  PolicyOptions strict = policy();
  strict.prefetch_threshold_tokens = 10'000;
  ASSERT_TRUE(rig.cache().attach_storage(options.storage, strict, soon()).ok());
  EXPECT_EQ(rig.run(prompt).served_tokens(), 0u) << "below the new threshold";
  ASSERT_TRUE(rig.cache().attach_storage(options.storage, policy(), soon()).ok());
  expect_storage_holds(rig, prompt);

  StorageOptions elsewhere = options.storage;
  elsewhere.path = directory / "other";
  const Status refused = rig.cache().attach_storage(elsewhere, policy(), soon());
  EXPECT_EQ(refused.code(), StatusCode::failed_precondition);
  EXPECT_NE(refused.message().find(options.storage.path), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("detach it first"), std::string::npos);
  EXPECT_EQ(rig.cache().attach_storage(memory_store(), policy(), soon()).code(),
            StatusCode::failed_precondition);
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::on);
}

TEST(AttachStorage, AFailureAttachesNothingAndSaysWhy) {
  Rig rig(small_options());
  StorageOptions storage;
  storage.backend = "file";
  storage.path = "/proc/no/such/place";
  const Status failed = rig.cache().attach_storage(storage, policy(), soon());
  EXPECT_EQ(failed.code(), StatusCode::unavailable);
  EXPECT_NE(failed.message().find("/proc/no/such/place"), std::string::npos) << failed.message();
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::off);
  EXPECT_NE(rig.cache().stats().storage_detail.find("/proc/no/such/place"), std::string::npos);
  storage.backend = "none";
  EXPECT_EQ(rig.cache().attach_storage(storage, policy(), soon()).code(),
            StatusCode::invalid_argument);
  storage.backend = "tape";
  EXPECT_EQ(rig.cache().attach_storage(storage, policy(), soon()).code(),
            StatusCode::invalid_argument);
  EXPECT_EQ(rig.cache().detach_storage(soon()).code(), StatusCode::failed_precondition);
  EXPECT_EQ(rig.cache().clear_storage(soon()).status().code(), StatusCode::failed_precondition);
  ASSERT_TRUE(rig.cache().attach_storage(memory_store(), policy(), soon()).ok());
  rig.run(sequence_of(50));
  expect_storage_holds(rig, sequence_of(50));
  expect_all_returned(rig);
}

// Whoever asks for statistics sees a tier that is just coming up, or one that could not be opened.
TEST(AttachStorage, StatisticsMayBeReadMeanwhile) {
  set_log_level(LogLevel::error);
  Rig rig(small_options());
  StorageOptions nowhere;
  nowhere.backend = "file";
  nowhere.path = "/proc/no/such/place";
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> seen_on = 0;
  {
    std::jthread reader([&] {
      while (!stop) {
        const bool on = rig.cache().stats().storage_status == StorageStatus::on;
        const std::string metrics = rig.cache().storage_metrics();
        if (on && metrics.find("hitide_failed_keys") != std::string::npos) ++seen_on;
      }
    });
    // At least until the two have met, however the threads are scheduled.
    const TimePoint limit = soon();
    for (int round = 0; round < 40 || (seen_on == 0 && limit > std::chrono::steady_clock::now());
         ++round) {
      EXPECT_FALSE(rig.cache().attach_storage(nowhere, policy(), soon()).ok());
      EXPECT_TRUE(rig.cache().attach_storage(memory_store(), policy(), soon()).ok());
      EXPECT_TRUE(rig.cache().detach_storage(soon()).ok());
    }
    stop = true;
  }
  set_log_level(LogLevel::info);
  EXPECT_GT(seen_on, 0u);
  expect_all_returned(rig);
}

TEST(AttachStorage, AFileStoreThatWasDetachedIsFreeForOthers) {
  const TempDirectory directory;
  CacheOptions options = small_options();
  options.storage.backend = "file";
  options.storage.path = directory / "store";
  options.storage.bytes_max = 64 << 20;
  Rig first(options);
  first.run(sequence_of(50));
  first.settle();
  Rig second(small_options());
  EXPECT_EQ(second.cache().attach_storage(options.storage, policy(), soon()).code(),
            StatusCode::unavailable)
      << "one process at a time";
  ASSERT_TRUE(first.cache().detach_storage(soon()).ok());
  ASSERT_TRUE(second.cache().attach_storage(options.storage, policy(), soon()).ok());
  EXPECT_EQ(second.run(sequence_of(50)).served_tokens(Tier::storage), 48u);
}

TEST(DetachStorage, WaitsForABackupThatIsUnderWay) {
  const auto kept = std::make_shared<MemoryStore>(64u << 20);
  auto owned = std::make_unique<FaultStore>(std::make_unique<LentStore>(kept));
  FaultStore& store = *owned;
  Rig rig(small_options(), std::move(owned));
  store.hold(StoreCall::put);
  rig.run(sequence_of(50));
  ASSERT_TRUE(store.wait_until_held(StoreCall::put, 1, soon()));
  std::atomic<bool> ended = false;
  std::jthread detach([&] {
    EXPECT_TRUE(rig.cache().detach_storage(soon()).ok());
    ended = true;
  });
  // Requests go on meanwhile.
  EXPECT_EQ(rig.run(sequence_of(50)).served_tokens(), 48u);
  EXPECT_FALSE(ended) << "a backup is under way";
  store.release(StoreCall::put);
  detach.join();
  EXPECT_EQ(kept->stats().objects, 12u) << "nothing in flight is lost";
  expect_all_returned(rig);
}

TEST(DetachStorage, WhatDoesNotEndInTimeIsTakenBack) {
  auto owned = std::make_unique<FaultStore>(memory_store());
  FaultStore& store = *owned;
  Rig rig(small_options(), std::move(owned));
  store.hold(StoreCall::put);
  rig.run(sequence_of(50));
  rig.run(sequence_of(50, 500));
  const TimePoint give_up = soon();
  while (rig.cache().storage_metrics().find("_waiting{lane=\"write\"} 1") == std::string::npos &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  std::jthread release([&] {
    // The call that hangs ends only after its time is up.
    const TimePoint deadline = soon();
    while (rig.cache().stats().backup_dropped_pages_storage == 0 &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    store.release(StoreCall::put);
  });
  const Status status = rig.cache().detach_storage(std::chrono::steady_clock::now());
  EXPECT_EQ(status.code(), StatusCode::deadline_exceeded) << status.to_string();
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::none) << "detached all the same";
  release.join();
  EXPECT_EQ(rig.run(sequence_of(50)).served_tokens(Tier::device), 48u);
  expect_all_returned(rig);
}

// A request that waits for storage goes on without it.
// For the core, and not just too busy to be asked.
bool storage_is_off(Rig& rig) {
  PrefixHandle probe = std::move(rig.open(sequence_of(50, 900))).value();
  if (probe.state() == PrefixState::waiting) return false;
  EXPECT_TRUE(probe.admit().ok());
  const auto explanation = rig.cache().explain(probe.explanation_id());
  return explanation.ok() &&
         std::any_of(explanation->missed.begin(), explanation->missed.end(),
                     [](const MissedSpan& span) { return span.reason == MissReason::storage_off; });
}

TEST(DetachStorage, AWaitingRequestIsNotForgotten) {
  auto owned = std::make_unique<FaultStore>(memory_store());
  FaultStore& store = *owned;
  CacheOptions options = small_options();
  options.policy.prefetch_policy = PrefetchPolicy::wait_complete;
  Rig rig(options, std::move(owned));
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  store.hold(StoreCall::exists);
  PrefixHandle handle = std::move(rig.open(prompt)).value();
  ASSERT_EQ(handle.state(), PrefixState::waiting);
  ASSERT_TRUE(store.wait_until_held(StoreCall::exists, 1, soon()));
  std::jthread detach([&] { rig.cache().detach_storage(soon()).ignore(); });
  // Once the lanes are left, what was asked ends as it will; no read may follow.
  const TimePoint deadline = soon();
  while (!storage_is_off(rig) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  store.release(StoreCall::exists);
  detach.join();
  ASSERT_TRUE(rig.wait_while(handle, PrefixState::waiting));
  ASSERT_TRUE(handle.admit().ok());
  ASSERT_TRUE(rig.wait_while(handle, PrefixState::loading));
  EXPECT_EQ(handle.cached_tokens(), 0u);
  handle.release();
  expect_all_returned(rig);
}

TEST(ClearStorage, RemovesThisModelsObjectsAndNoOthers) {
  const auto kept = std::make_shared<MemoryStore>(64u << 20);
  const std::string other(64, 'e');
  const std::string alien = other + "/" + std::string(64, '1') + "/kv.t0-p0-c0";
  ASSERT_EQ(put_object(*kept, alien, bytes_of(alien, 200)), StatusCode::ok);
  ASSERT_EQ(put_object(*kept, "somebody's", bytes_of("somebody's", 200)), StatusCode::ok);
  Rig rig(small_options(), std::make_unique<LentStore>(kept));
  rig.run(sequence_of(50));
  rig.run(sequence_of(50), "a salt");
  rig.settle();
  ASSERT_EQ(kept->stats().objects, 26u);
  const Result<std::uint64_t> removed = rig.cache().clear_storage(soon());
  ASSERT_TRUE(removed.ok()) << removed.status().to_string();
  EXPECT_EQ(*removed, 24u);
  EXPECT_EQ(kept->stats().objects, 2u);
  EXPECT_EQ(exists_object(*kept, alien), StatusCode::ok);
  EXPECT_EQ(exists_object(*kept, "somebody's"), StatusCode::ok);
  EXPECT_EQ(rig.run(sequence_of(50)).served_tokens(Tier::device), 48u) << "L1 stays";
  expect_storage_holds(rig, sequence_of(50));
  EXPECT_EQ(rig.run(sequence_of(50), "a salt").served_tokens(), 0u) << "gone with the flush";
  expect_all_returned(rig);
}

// K5 B061: after a flush and a clear nothing of before is served from anywhere.
TEST(ClearStorage, K5_B061_NothingIsLeftBehindAFlushAndAClear) {
  Rig rig(small_options(), memory_store());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(rig.run(sequence_of(50)).served_tokens(), 0u);
    rig.settle();
    ASSERT_TRUE(rig.cache().flush().ok());
    EXPECT_EQ(rig.cache().clear_storage(soon()).value(), 12u);
  }
  EXPECT_EQ(rig.cache().clear_storage(soon()).value(), 0u);
}

// Counters by their first word, from the lines of a metrics page.
std::map<std::string, double> counters_of(const std::string& page) {
  std::map<std::string, double> counters;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.rfind(' ');
    const bool counted = line.find("_total") != std::string::npos && line[0] != '#';
    if (counted) counters[line.substr(0, space)] = std::stod(line.substr(space));
  }
  return counters;
}

// K17: counters never fall, and gauges say what is there now.
TEST(AttachStorage, K17_CountersGoOnAcrossADetach) {
  const auto kept = std::make_shared<MemoryStore>(64u << 20);
  Rig rig(small_options(), std::make_unique<LentStore>(kept));
  rig.run(sequence_of(50));
  rig.settle();
  const CacheStats before = rig.cache().stats();
  const auto lanes_before = counters_of(rig.cache().storage_metrics());
  ASSERT_FALSE(lanes_before.empty());
  ASSERT_TRUE(rig.cache().detach_storage(soon()).ok());
  EXPECT_EQ(rig.cache().stats().storage.objects, 0u);
  ASSERT_TRUE(rig.cache().attach_storage(memory_store(), policy(), soon()).ok());
  EXPECT_EQ(rig.cache().stats().storage.objects, 0u);
  rig.run(sequence_of(50, 300));
  rig.settle();
  const CacheStats after = rig.cache().stats();
  EXPECT_EQ(after.storage.puts, before.storage.puts + 12);
  EXPECT_EQ(after.storage.objects, 12u);
  const auto lanes_after = counters_of(rig.cache().storage_metrics());
  for (const auto& [name, value] : lanes_before) EXPECT_GE(lanes_after.at(name), value) << name;
}

TEST(AttachStorage, NothingIsDoneBehindAClose) {
  Rig rig(small_options(), memory_store());
  ASSERT_TRUE(rig.cache().close(soon()).ok());
  EXPECT_EQ(rig.cache().attach_storage(memory_store(), policy(), soon()).code(),
            StatusCode::failed_precondition);
  EXPECT_EQ(rig.cache().detach_storage(soon()).code(), StatusCode::failed_precondition);
  EXPECT_EQ(rig.cache().clear_storage(soon()).status().code(), StatusCode::failed_precondition);
}

// Prompts of few tokens, so that they share prefixes; every page that is served is compared.
void serve_at_random(Rig& rig, std::uint64_t seed, const std::atomic<bool>& stop) {
  Random random(seed);
  while (!stop) {
    Tokens prompt;
    for (std::uint64_t page = random.below(6); page > 0; --page) {
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
}

// One step of an operator. Whatever it does, it is refused or done, and never both.
void operate_at_random(Rig& rig, Random& random, const std::shared_ptr<ObjectStore>& store) {
  Cache& cache = rig.cache();
  const TimePoint deadline = random.chance(0.3) ? std::chrono::steady_clock::now() : soon();
  // A store whose calls fail is there all the same.
  const StorageStatus before = cache.stats().storage_status;
  const bool on = before == StorageStatus::on || before == StorageStatus::failing;
  switch (random.below(4)) {
    case 0: {
      const Status status =
          cache.attach_storage(std::make_unique<LentStore>(store), policy(), deadline);
      EXPECT_EQ(status.ok(), !on) << status.to_string();
      break;
    }
    case 1: {
      const StatusCode code = cache.detach_storage(deadline).code();
      EXPECT_EQ(code == StatusCode::failed_precondition, !on) << to_string(code);
      EXPECT_NE(cache.stats().storage_status, StorageStatus::on);
      break;
    }
    case 2:
      EXPECT_TRUE(cache.flush().ok());
      break;
    default: {
      const StatusCode code = cache.clear_storage(deadline).status().code();
      EXPECT_EQ(code == StatusCode::failed_precondition, !on) << to_string(code);
      break;
    }
  }
}

// The store loses objects and fails now and then; attaching, detaching, flushing and clearing come
// at any moment. No wrong byte is ever served, and at rest every page and every pin is back.
TEST(AttachStorage, AnyOrderOfStepsUnderLoadReturnsEveryPageOnce) {
  const std::uint64_t first = 20261201;
  for (std::uint64_t seed = first; seed < first + 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto faulty = std::make_shared<FaultStore>(std::make_unique<MemoryStore>(1u << 20));
    for (const StoreCall call : {StoreCall::exists, StoreCall::get, StoreCall::put}) {
      faulty->add({.call = call, .skip = 40, .times = 30});
    }
    faulty->add({.call = StoreCall::get, .kind = StoreFault::Kind::lost, .skip = 60, .times = 20});
    CacheOptions options = small_options();
    options.host.bytes = 24 * 4096;
    options.policy.prefetch_timeout_base_s = 0.05;
    set_log_level(LogLevel::error);
    Rig rig(options, std::make_unique<LentStore>(faulty), {20, kPageSize, kPageBytes, 8});
    std::atomic<bool> stop = false;
    {
      std::vector<std::jthread> threads;
      for (std::uint64_t worker = 1; worker <= 3; ++worker) {
        threads.emplace_back([&, worker] { serve_at_random(rig, seed * 10 + worker, stop); });
      }
      Random random(seed);
      for (int step = 0; step < 60; ++step) operate_at_random(rig, random, faulty);
      stop = true;
    }
    expect_all_returned(rig);
    set_log_level(LogLevel::info);
  }
}

}  // namespace
}  // namespace hitide
