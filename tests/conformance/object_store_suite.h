// The contract of ObjectStore (include/hitide/object_store.h), as tests over every backend.
//
// To run it over a backend, add a line to the list in the one file of a test program that includes
// this header: a name, and a function that opens an empty store. Needs GoogleTest and the public
// headers alone.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <hitide/object_store.h>

#include "../support/store_bytes.h"
#include "store_kind.h"

namespace hitide {

class ObjectStoreSuite : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    under_test_ = GetParam().open();
    ASSERT_NE(under_test_.store, nullptr);
  }

  ObjectStore& store() { return *under_test_.store; }
  bool keeps() const { return GetParam().keeps; }
  // What a get answers after a successful put.
  StatusCode kept() const { return keeps() ? StatusCode::ok : StatusCode::not_found; }
  static TimePoint past() { return std::chrono::steady_clock::now() - std::chrono::seconds(1); }
  static TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

 private:
  StoreUnderTest under_test_;
};

// For stores whose limit on one object a test can reach.
class SizeLimitSuite : public ObjectStoreSuite {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SizeLimitSuite);

// For stores that a test can fill and that make room at once.
class FullStoreSuite : public ObjectStoreSuite {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullStoreSuite);

inline void expect_codes(std::span<const ItemResult> results, std::vector<StatusCode> codes) {
  ASSERT_EQ(results.size(), codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(results[i].code, codes[i]) << i;
}

TEST_P(ObjectStoreSuite, CapabilitiesCanBeLivedWith) {
  const StoreCapabilities capabilities = store().capabilities();
  EXPECT_FALSE(capabilities.name.empty());
  EXPECT_GE(capabilities.object_bytes_max, 1u << 20);
  EXPECT_GE(capabilities.key_bytes_max, 255u);
  EXPECT_GE(capabilities.batch_items_max, 1u);
  EXPECT_GE(capabilities.buffer_alignment, 1u);
}

TEST_P(ObjectStoreSuite, PutThenGetGivesTheSameBytes) {
  for (const std::size_t size : {1u, 2u, 127u, 4095u, 4096u, 4097u, 100'003u, 1u << 20}) {
    const std::string key = "key/" + std::to_string(size);
    EXPECT_EQ(exists_object(store(), key), StatusCode::not_found);
    EXPECT_EQ(put_object(store(), key, bytes_of(key, size)), StatusCode::ok);
    EXPECT_EQ(exists_object(store(), key), kept());
    EXPECT_EQ(check_object(store(), key, size), kept());
  }
}

TEST_P(ObjectStoreSuite, AbsentKeysAreNotFound) {
  EXPECT_EQ(exists_object(store(), "nothing"), StatusCode::not_found);
  EXPECT_EQ(check_object(store(), "nothing", 10), StatusCode::not_found);
  EXPECT_EQ(remove_object(store(), "nothing"), StatusCode::ok);
}

TEST_P(ObjectStoreSuite, EmptyBatchesAreAnsweredWithoutWork) {
  const StoreStats before = store().stats();
  EXPECT_TRUE(store().exists({}, {}, {}).status.ok());
  EXPECT_TRUE(store().get({}, {}, {}).status.ok());
  EXPECT_TRUE(store().put({}, {}, {}).status.ok());
  EXPECT_TRUE(store().remove({}, {}, {}).status.ok());
  const StoreStats after = store().stats();
  EXPECT_EQ(before.gets, after.gets);
  EXPECT_EQ(before.puts, after.puts);
}

TEST_P(ObjectStoreSuite, ScatterAndGatherKeepTheOrder) {
  const auto whole = bytes_of("gather", 10'000);
  const std::span<const std::byte> all(whole);
  const std::vector<std::span<const std::byte>> pieces = {
      all.subspan(0, 1), all.subspan(1, 0), all.subspan(1, 4999), all.subspan(5000, 5000)};
  const PutItem put{.key = "gather", .buffers = pieces, .group = "group"};
  ItemResult result;
  EXPECT_TRUE(store().put({&put, 1}, {&result, 1}, {}).status.ok());
  EXPECT_EQ(result.code, StatusCode::ok);
  EXPECT_EQ(result.bytes, 10'000u);

  std::vector<std::byte> read(10'000);
  const std::span<std::byte> target(read);
  const std::vector<std::span<std::byte>> buffers = {
      target.subspan(0, 4097), target.subspan(4097, 0), target.subspan(4097, 3),
      target.subspan(4100, 5900)};
  const GetItem get{.key = "gather", .buffers = buffers};
  EXPECT_TRUE(store().get({&get, 1}, {&result, 1}, {}).status.ok());
  EXPECT_EQ(result.code, kept());
  EXPECT_EQ(result.bytes, keeps() ? 10'000u : 0u);
  if (keeps()) {
    EXPECT_EQ(read, whole);
  }
}

TEST_P(ObjectStoreSuite, LongScatterListsWork) {
  constexpr std::size_t kPieces = 3000;  // more than one system call takes
  const auto whole = bytes_of("pieces", kPieces * 3);
  std::vector<std::span<const std::byte>> pieces;
  std::vector<std::byte> read(whole.size());
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t i = 0; i < kPieces; ++i) {
    pieces.push_back(std::span(whole).subspan(i * 3, 3));
    buffers.push_back(std::span(read).subspan(i * 3, 3));
  }
  const PutItem put{.key = "pieces", .buffers = pieces};
  ItemResult result;
  EXPECT_TRUE(store().put({&put, 1}, {&result, 1}, {}).status.ok());
  EXPECT_EQ(result.code, StatusCode::ok);
  const GetItem get{.key = "pieces", .buffers = buffers};
  EXPECT_TRUE(store().get({&get, 1}, {&result, 1}, {}).status.ok());
  EXPECT_EQ(result.code, kept());
  if (keeps()) {
    EXPECT_EQ(read, whole);
  }
}

TEST_P(ObjectStoreSuite, OneResultPerItemInOrderWithDuplicates) {
  const std::vector<std::string> names = {"a", "b", "a", "c", "a"};
  std::vector<std::vector<std::byte>> values;
  for (const auto& name : names) values.push_back(bytes_of(name, 100));
  std::vector<std::span<const std::byte>> sources(values.begin(), values.end());
  std::vector<PutItem> puts(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    puts[i] = {.key = names[i], .buffers = std::span(&sources[i], 1)};
  }
  std::vector<ItemResult> results(names.size());
  EXPECT_TRUE(store().put(puts, results, {}).status.ok());
  for (const ItemResult& result : results) {
    EXPECT_TRUE(result.code == StatusCode::ok || result.code == StatusCode::already_exists);
  }

  const std::vector<std::string_view> asked = {"c", "no", "a", "a", "no", "b"};
  const std::vector<StatusCode> want = {kept(), StatusCode::not_found, kept(),
                                        kept(), StatusCode::not_found, kept()};
  std::vector<ItemResult> found(asked.size());
  EXPECT_TRUE(store().exists(asked, found, {}).status.ok());
  expect_codes(found, want);

  std::vector<std::vector<std::byte>> read(asked.size(), std::vector<std::byte>(100));
  std::vector<std::span<std::byte>> targets(read.begin(), read.end());
  std::vector<GetItem> gets(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    gets[i] = {.key = asked[i], .buffers = std::span(&targets[i], 1)};
  }
  std::vector<ItemResult> got(asked.size());
  EXPECT_TRUE(store().get(gets, got, {}).status.ok());
  expect_codes(got, want);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (got[i].code == StatusCode::ok) {
      EXPECT_EQ(got[i].bytes, 100u);
      EXPECT_EQ(read[i], bytes_of(asked[i], 100));
    }
  }
}

TEST_P(ObjectStoreSuite, BatchesAboveTheLimitAreLegal) {
  const std::size_t count = store().capabilities().batch_items_max * 2 + 3;
  std::vector<std::string> names;
  std::vector<std::vector<std::byte>> values;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back("many/" + std::to_string(i));
    values.push_back(bytes_of(names.back(), 100 + i % 7));
  }
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<ItemResult> results(count);
  EXPECT_TRUE(store().exists(keys, results, {}).status.ok());
  expect_codes(results, std::vector<StatusCode>(count, StatusCode::not_found));
  std::vector<std::span<const std::byte>> sources(values.begin(), values.end());
  std::vector<PutItem> puts(count);
  std::vector<std::vector<std::byte>> read;
  for (std::size_t i = 0; i < count; ++i) {
    puts[i] = {.key = names[i], .buffers = std::span(&sources[i], 1)};
    read.emplace_back(values[i].size());
  }
  EXPECT_TRUE(store().put(puts, results, {}).status.ok());
  expect_codes(results, std::vector<StatusCode>(count, StatusCode::ok));
  std::vector<std::span<std::byte>> targets(read.begin(), read.end());
  std::vector<GetItem> gets(count);
  for (std::size_t i = 0; i < count; ++i) {
    gets[i] = {.key = names[i], .buffers = std::span(&targets[i], 1)};
  }
  EXPECT_TRUE(store().get(gets, results, {}).status.ok());
  expect_codes(results, std::vector<StatusCode>(count, kept()));
  EXPECT_EQ(read == values, keeps());
}

// K11 B141: a put of a key that exists is no failure, and changes nothing, whatever its bytes.
TEST_P(ObjectStoreSuite, K11_B141_TheFirstValueIsKept) {
  EXPECT_EQ(put_object(store(), "key", bytes_of("key", 500)), StatusCode::ok);
  for (const std::size_t size : {500u, 600u, 1u}) {
    const StatusCode again = put_object(store(), "key", bytes_of("other content", size));
    EXPECT_TRUE(again == StatusCode::ok || again == StatusCode::already_exists) << size;
    EXPECT_EQ(check_object(store(), "key", 500), keeps() ? StatusCode::ok : StatusCode::not_found);
  }
}

// K11 B143: a duplicate spoils nothing of the batches that it comes in, at once or not.
TEST_P(ObjectStoreSuite, K11_B143_ADuplicateSpoilsNeitherBatch) {
  for (int round = 0; round < 10; ++round) {
    const auto put_names = [&](const std::vector<std::string>& names) {
      std::vector<std::string> keys;
      std::vector<std::vector<std::byte>> values;
      for (const std::string& name : names) {
        keys.push_back(name + std::to_string(round));
        values.push_back(bytes_of(keys.back(), 2000));
      }
      std::vector<std::span<const std::byte>> sources(values.begin(), values.end());
      std::vector<PutItem> items(keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        items[i] = {.key = keys[i], .buffers = std::span(&sources[i], 1)};
      }
      std::vector<ItemResult> results(items.size());
      EXPECT_TRUE(store().put(items, results, {}).status.ok());
      for (const ItemResult& result : results) {
        EXPECT_TRUE(result.code == StatusCode::ok || result.code == StatusCode::already_exists)
            << to_string(result.code);
      }
    };
    std::thread other([&] { put_names({"c", "d", "e"}); });
    put_names({"a", "b", "c"});
    other.join();
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      EXPECT_EQ(check_object(store(), name + std::to_string(round), 2000), kept()) << name;
    }
  }
  if (keeps()) {
    EXPECT_EQ(store().stats().objects, 50u);
  }
}

// K11 B149: null and empty keys are refused by themselves, and of equal keys each gets its own
// right answer, in order.
TEST_P(ObjectStoreSuite, K11_B149_EmptyAndEqualKeysGetTheirOwnAnswers) {
  const std::vector<std::string_view> keys = {"a", "", "a", std::string_view()};
  const auto value = bytes_of("a", 300);
  const std::span<const std::byte> source(value);
  std::vector<PutItem> puts;
  for (const auto key : keys) puts.push_back({.key = key, .buffers = std::span(&source, 1)});
  std::vector<ItemResult> results(keys.size());
  constexpr auto kBad = StatusCode::invalid_argument;
  EXPECT_TRUE(store().put(puts, results, {}).status.ok());
  EXPECT_TRUE(results[0].code == StatusCode::ok || results[0].code == StatusCode::already_exists);
  EXPECT_TRUE(results[2].code == StatusCode::ok || results[2].code == StatusCode::already_exists);
  EXPECT_EQ(results[1].code, kBad);
  EXPECT_EQ(results[3].code, kBad);
  EXPECT_TRUE(store().exists(keys, results, {}).status.ok());
  expect_codes(results, {kept(), kBad, kept(), kBad});
  std::vector<std::vector<std::byte>> read(keys.size(), std::vector<std::byte>(300));
  std::vector<std::span<std::byte>> targets(read.begin(), read.end());
  std::vector<GetItem> gets(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    gets[i] = {.key = keys[i], .buffers = std::span(&targets[i], 1)};
  }
  EXPECT_TRUE(store().get(gets, results, {}).status.ok());
  expect_codes(results, {kept(), kBad, kept(), kBad});
  if (keeps()) {
    EXPECT_EQ(read[0], value);
    EXPECT_EQ(read[2], value);
  }
  EXPECT_TRUE(store().remove(keys, results, {}).status.ok());
  expect_codes(results, {StatusCode::ok, kBad, StatusCode::ok, kBad});
}

// A model's objects go, and those of all others stay; also of one whose name begins like its own.
TEST_P(ObjectStoreSuite, RemovingAPrefixLeavesEverythingElse) {
  const std::vector<std::string> ours = {"model-a/1", "model-a/2", "model-a/.*", "model-a/2/side"};
  const std::vector<std::string> others = {"model-b/1", "model-a", "model-ab/1", "x/model-a/1",
                                           "MODEL-A/1"};
  for (const auto* keys : {&ours, &others}) {
    for (const std::string& key : *keys) {
      ASSERT_EQ(put_object(store(), key, bytes_of(key, 700)), StatusCode::ok) << key;
    }
  }
  const auto count = [&](std::string_view prefix) {
    return store().remove_prefix(prefix, {.deadline = soon()});
  };
  if (count("model-a/").status().code() == StatusCode::unimplemented) {  // a store may be so
    for (const std::string& key : ours) EXPECT_EQ(check_object(store(), key, 700), kept()) << key;
    return;
  }
  for (const std::string& key : ours) put_object(store(), key, bytes_of(key, 700));
  EXPECT_EQ(count("").status().code(), StatusCode::invalid_argument) << "would be everything";
  EXPECT_EQ(count("model-c/").value(), 0u);
  EXPECT_EQ(count("model-a/").value(), keeps() ? ours.size() : 0u);
  for (const std::string& key : ours) {
    EXPECT_EQ(exists_object(store(), key), StatusCode::not_found) << key;
  }
  for (const std::string& key : others) EXPECT_EQ(check_object(store(), key, 700), kept()) << key;
  EXPECT_EQ(count("model-a/").value(), 0u);
  EXPECT_EQ(put_object(store(), ours[0], bytes_of(ours[0], 900)), StatusCode::ok);
  EXPECT_EQ(check_object(store(), ours[0], 900), kept()) << "what comes after it stays";
  EXPECT_TRUE(store().close(soon()).ok());
  EXPECT_EQ(count("model-a/").status().code(), StatusCode::failed_precondition);
}

TEST_P(ObjectStoreSuite, LengthMustBeExact) {
  ASSERT_EQ(put_object(store(), "key", bytes_of("key", 500)), StatusCode::ok);
  const StatusCode wrong = keeps() ? StatusCode::data_loss : StatusCode::not_found;
  StatusCode code = StatusCode::ok;
  for (const std::size_t size : {0u, 1u, 499u, 501u, 5000u}) {
    get_object(store(), "key", size, code);
    EXPECT_EQ(code, wrong) << size;
  }
}

TEST_P(ObjectStoreSuite, RemovedKeysAreAbsentAndCanBePutAgain) {
  ASSERT_EQ(put_object(store(), "key", bytes_of("key", 500)), StatusCode::ok);
  EXPECT_EQ(remove_object(store(), "key"), StatusCode::ok);
  EXPECT_EQ(exists_object(store(), "key"), StatusCode::not_found);
  EXPECT_EQ(check_object(store(), "key", 500), StatusCode::not_found);
  EXPECT_EQ(put_object(store(), "key", bytes_of("key", 700)), StatusCode::ok);
  EXPECT_EQ(check_object(store(), "key", 700), kept());
}

TEST_P(ObjectStoreSuite, BadKeysSpoilTheirItemOnly) {
  const std::string longest(store().capabilities().key_bytes_max, 'k');
  const std::string too_long = longest + "k";
  std::string binary = "zero";
  binary += '\0';
  binary += "\xff/../\n";
  const std::vector<std::string_view> keys = {"a", "", longest, too_long, binary};
  const auto bytes = bytes_of("value", 64);
  const std::span<const std::byte> source(bytes);
  std::vector<PutItem> puts;
  for (const auto key : keys) puts.push_back({.key = key, .buffers = std::span(&source, 1)});
  std::vector<ItemResult> results(keys.size());
  EXPECT_TRUE(store().put(puts, results, {}).status.ok());
  constexpr auto kBad = StatusCode::invalid_argument;
  expect_codes(results, {StatusCode::ok, kBad, StatusCode::ok, kBad, StatusCode::ok});
  EXPECT_TRUE(store().exists(keys, results, {}).status.ok());
  expect_codes(results, {kept(), kBad, kept(), kBad, kept()});
  StatusCode code = StatusCode::ok;
  EXPECT_EQ(get_object(store(), binary, 64, code) == bytes, keeps());
  EXPECT_EQ(get_object(store(), longest, 64, code) == bytes, keeps());
  get_object(store(), "", 64, code);
  EXPECT_EQ(code, kBad);
  EXPECT_TRUE(store().remove(keys, results, {}).status.ok());
  expect_codes(results, {StatusCode::ok, kBad, StatusCode::ok, kBad, StatusCode::ok});
}

TEST_P(ObjectStoreSuite, EmptyObjectsAreRefused) {
  EXPECT_EQ(put_object(store(), "empty", {}), StatusCode::invalid_argument);
  EXPECT_EQ(exists_object(store(), "empty"), StatusCode::not_found);
}

// K12 B163: what is taken can be read.
TEST_P(SizeLimitSuite, K12_B163_ObjectsAboveTheLimitAreRefusedAndThoseBelowReadBack) {
  const std::uint64_t limit = store().capabilities().object_bytes_max;
  ASSERT_LE(limit, 64u << 20) << "out of a test's reach";
  for (const std::uint64_t size : {limit - 1, limit}) {
    const std::string key = "big/" + std::to_string(size);
    EXPECT_EQ(put_object(store(), key, bytes_of(key, size)), StatusCode::ok);
    EXPECT_EQ(check_object(store(), key, size), kept()) << size << " of " << limit;
  }
  EXPECT_EQ(put_object(store(), "over", bytes_of("over", limit + 1)), StatusCode::invalid_argument);
  EXPECT_EQ(exists_object(store(), "over"), StatusCode::not_found);
}

TEST_P(ObjectStoreSuite, PassedDeadlinesAreNotWorkedOn) {
  ASSERT_EQ(put_object(store(), "key", bytes_of("key", 100)), StatusCode::ok);
  const CallOptions late{.deadline = past()};
  EXPECT_EQ(put_object(store(), "late", bytes_of("late", 100), late),
            StatusCode::deadline_exceeded);
  StatusCode code = StatusCode::ok;
  get_object(store(), "key", 100, code, late);
  EXPECT_EQ(code, StatusCode::deadline_exceeded);
  EXPECT_EQ(exists_object(store(), "late"), StatusCode::not_found);
  const std::string_view key = "key";
  ItemResult result;
  EXPECT_EQ(store().exists({&key, 1}, {&result, 1}, late).status.code(),
            StatusCode::deadline_exceeded);
  EXPECT_EQ(store().remove({&key, 1}, {&result, 1}, late).status.code(),
            StatusCode::deadline_exceeded);
  EXPECT_EQ(check_object(store(), "key", 100), kept());
}

TEST_P(FullStoreSuite, FullStoresEvictAndNeverGiveWrongBytes) {
  const std::uint64_t limit = store().stats().bytes_limit;
  ASSERT_GT(limit, 0u);
  ASSERT_LE(limit, 256u << 20) << "out of a test's reach";
  constexpr std::size_t kSize = 200'000;
  const std::size_t count = limit / kSize * 3;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string key = "fill/" + std::to_string(i);
    ASSERT_EQ(put_object(store(), key, bytes_of(key, kSize)), StatusCode::ok) << i;
    ASSERT_LE(store().stats().bytes_used, limit);
  }
  // A store may go on evicting for a moment, to have room for the next put.
  std::size_t held = 0;
  StoreStats stats;
  do {
    stats = store().stats();
    held = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const StatusCode code = check_object(store(), "fill/" + std::to_string(i), kSize);
      EXPECT_TRUE(code == StatusCode::ok || code == StatusCode::not_found) << to_string(code);
      if (code == StatusCode::ok) ++held;
    }
  } while (store().stats().evicted_objects != stats.evicted_objects);
  EXPECT_GE(held * kSize, limit / 2) << "a full store should hold about its limit";
  EXPECT_EQ(check_object(store(), "fill/" + std::to_string(count - 1), kSize), StatusCode::ok);
  EXPECT_EQ(stats.objects, held);
  EXPECT_EQ(stats.evicted_objects, count - held);
}

TEST_P(ObjectStoreSuite, StatsCount) {
  ASSERT_EQ(put_object(store(), "a", bytes_of("a", 100)), StatusCode::ok);
  ASSERT_EQ(put_object(store(), "b", bytes_of("b", 50)), StatusCode::ok);
  put_object(store(), "a", bytes_of("a", 100));
  check_object(store(), "a", 100);
  check_object(store(), "none", 100);
  const StoreStats stats = store().stats();
  EXPECT_EQ(stats.gets, 2u);
  EXPECT_EQ(stats.get_misses, keeps() ? 1u : 2u);
  EXPECT_EQ(stats.get_bytes, keeps() ? 100u : 0u);
  EXPECT_EQ(stats.puts, 3u);
  EXPECT_EQ(stats.puts_existing, keeps() ? 1u : 0u);
  EXPECT_EQ(stats.objects, keeps() ? 2u : 0u);
  if (keeps()) {
    EXPECT_EQ(stats.put_bytes, 150u);
    EXPECT_GE(stats.bytes_used, 150u);
  }
  EXPECT_EQ(stats.failures, 0u);
}

TEST_P(ObjectStoreSuite, MemoryMayBeRegisteredTwice) {
  constexpr std::size_t kBytes = 1 << 16;
  // Shared: a helper process may have to map it.
  const int file = ::memfd_create("region", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, kBytes), 0);
  void* base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(base, MAP_FAILED);
  const std::span<std::byte> region(static_cast<std::byte*>(base), kBytes);
  EXPECT_TRUE(store().register_memory({.bytes = region, .fd = file}).ok());
  EXPECT_TRUE(store().register_memory({.bytes = region, .fd = file}).ok());
  EXPECT_TRUE(store().unregister_memory(region).ok());
  EXPECT_TRUE(store().unregister_memory(region).ok());
  ::munmap(base, kBytes);
  ::close(file);
}

TEST_P(ObjectStoreSuite, AfterCloseEverythingIsRefused) {
  ASSERT_EQ(put_object(store(), "key", bytes_of("key", 100)), StatusCode::ok);
  EXPECT_TRUE(store().close(soon()).ok());
  EXPECT_TRUE(store().close(soon()).ok());
  constexpr auto kClosed = StatusCode::failed_precondition;
  EXPECT_EQ(put_object(store(), "b", bytes_of("b", 10)), kClosed);
  EXPECT_EQ(check_object(store(), "key", 100), kClosed);
  EXPECT_EQ(exists_object(store(), "key"), kClosed);
  EXPECT_EQ(remove_object(store(), "key"), kClosed);
  store().stats();
}

// Readers, writers and removers of the same few keys at once. No answer may be wrong bytes.
TEST_P(ObjectStoreSuite, ManyThreadsNeverSeeWrongBytes) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  constexpr int kKeys = 12;
  std::atomic<int> wrong = 0;
  std::atomic<int> odd = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const int n = (round * 7 + t * 5) % kKeys;
        const std::string key = "shared/" + std::to_string(n);
        const std::size_t size = 1000 + static_cast<std::size_t>(n) * 777;
        StatusCode code = StatusCode::ok;
        switch ((round + t) % 5) {
          case 0:
            code = remove_object(store(), key);
            break;
          case 1:
          case 2:
            code = put_object(store(), key, bytes_of(key, size));
            break;
          default:
            code = check_object(store(), key, size);
            break;
        }
        if (code == StatusCode::internal) ++wrong;
        if (code != StatusCode::ok && code != StatusCode::already_exists &&
            code != StatusCode::not_found) {
          ++odd;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(odd, 0);
}

// Every thread puts the same keys: each key ends up stored once, whoever came first.
TEST_P(ObjectStoreSuite, OverlappingBatchesOfSeveralWritersAllSucceed) {
  constexpr int kThreads = 3;
  constexpr int kKeys = 20;
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int n = 0; n < kKeys; ++n) {
        const std::string key = "same/" + std::to_string(n);
        const StatusCode code = put_object(store(), key, bytes_of(key, 3000));
        if (code != StatusCode::ok && code != StatusCode::already_exists) ++failed;
        if (check_object(store(), key, 3000) != kept()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  if (keeps()) {
    EXPECT_EQ(store().stats().objects, static_cast<std::uint64_t>(kKeys));
  }
}

TEST_P(ObjectStoreSuite, CloseWaitsForCallsInFlight) {
  std::atomic<bool> stop = false;
  std::atomic<int> odd = 0;
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; !stop; ++round) {
        const std::string key = std::to_string(t) + "/" + std::to_string(round % 50);
        const StatusCode code = put_object(store(), key, bytes_of(key, 2000));
        ++calls;
        if (code == StatusCode::failed_precondition) return;
        if (code != StatusCode::ok && code != StatusCode::already_exists) ++odd;
      }
    });
  }
  while (calls < 30) std::this_thread::yield();
  EXPECT_TRUE(store().close(soon()).ok());
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(odd, 0);
}

}  // namespace hitide
