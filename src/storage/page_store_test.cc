#include "storage/page_store.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/log.h"
#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using Codes = std::vector<StatusCode>;
constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;

PoolSpec pool(std::string name, std::uint64_t page_bytes) {
  PoolSpec spec;
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  if (name != "kv") spec.index_source = "kv";
  spec.name = std::move(name);
  return spec;
}

ModelSpec one_pool() {
  ModelSpec model;
  model.model_name = "tiny";
  model.weights_digest = "abc";
  model.pools = {pool("kv", 1000)};
  return model;
}

// An anchor, a side pool that is needed, a draft that is not, and a pool without bytes.
ModelSpec four_pools() {
  ModelSpec model = one_pool();
  model.pools.push_back(pool("side", 500));
  model.pools.push_back(pool("draft", 300));
  model.pools.back().required = false;
  model.pools.push_back(pool("ids", 0));
  return model;
}

PageKey page_key(int n) {
  PageKey key;
  key.bytes[0] = static_cast<std::uint8_t>(n);
  key.bytes[1] = static_cast<std::uint8_t>(n >> 8);
  return key;
}

class PageStoreTest : public testing::Test {
 protected:
  PageStoreTest() {
    set_log_sink([](LogLevel, std::string_view) {});
    use(one_pool());
  }
  ~PageStoreTest() override { set_log_sink({}); }

  void use(const ModelSpec& model) {
    model_ = model;
    ASSERT_TRUE(validate(model_).ok());
    pages_ = std::make_unique<PageStore>(faults_, model_, clock_);
  }

  // Slots of one pool for the pages [first, first + count), filled with what each must hold.
  struct Slots {
    std::vector<std::vector<std::byte>> memory;
    std::vector<PageSlot> pages;
  };
  std::size_t object_bytes(std::uint32_t pool) const {
    return page_layout(model_.pools[pool]).object_bytes();
  }
  std::vector<std::byte> payload(int page, std::uint32_t pool) const {
    return bytes_of(std::to_string(page) + "/" + model_.pools[pool].name,
                    model_.pools[pool].page_bytes);
  }
  Slots slots(int first, int count, std::uint32_t pool = 0, bool filled = true) {
    Slots slots;
    slots.memory.assign(static_cast<std::size_t>(count),
                        std::vector<std::byte>(object_bytes(pool) + 64, std::byte{0xdd}));
    for (int i = 0; i < count; ++i) {
      auto& memory = slots.memory[static_cast<std::size_t>(i)];
      if (filled) {
        const auto bytes = payload(first + i, pool);
        std::copy(bytes.begin(), bytes.end(), memory.begin() + kEnvelopeBytes);
      }
      slots.pages.push_back({.key = page_key(first + i), .slot = memory, .pool = pool});
    }
    return slots;
  }
  bool holds(const Slots& slots, int page, std::size_t at) const {
    const std::uint32_t pool = slots.pages[at].pool;
    const auto want = payload(page, pool);
    const auto& memory = slots.memory[at];
    return std::equal(want.begin(), want.end(), memory.begin() + kEnvelopeBytes) &&
           std::all_of(memory.end() - 64, memory.end(),
                       [](std::byte byte) { return byte == std::byte{0xdd}; });
  }

  Codes store(int first, int count, std::uint32_t pool = 0) {
    Slots source = slots(first, count, pool);
    Codes codes(source.pages.size(), StatusCode::internal);
    last_ = pages_->store(source.pages, codes, {});
    return codes;
  }
  // Loads and checks: ok with wrong bytes is turned into internal.
  Codes load(int first, int count, std::uint32_t pool = 0) {
    Slots target = slots(first, count, pool, false);
    Codes codes(target.pages.size(), StatusCode::internal);
    last_ = pages_->load(target.pages, codes, {});
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] == kOk && !holds(target, first + static_cast<int>(i), i)) {
        codes[i] = StatusCode::internal;
      }
    }
    return codes;
  }
  Codes exists(int first, int count) {
    std::vector<PageKey> keys;
    for (int i = 0; i < count; ++i) keys.push_back(page_key(first + i));
    PrefixStops stops;
    last_ = pages_->exists_prefix(keys, stops, {});
    return stops.codes;
  }
  std::string object_key(int page, std::uint32_t pool = 0) const {
    return pages_->keys().object_key(page_key(page), model_.pools[pool].name);
  }
  std::size_t calls(StoreCall call) const {
    const auto log = faults_.log();
    return static_cast<std::size_t>(std::count_if(
        log.begin(), log.end(), [&](const auto& entry) { return entry.call == call; }));
  }
  std::uint64_t failures(EnvelopeFault fault) const {
    return pages_->stats().verification_failures[static_cast<std::size_t>(fault)];
  }

  FaultStore faults_{std::make_unique<MemoryStore>(16u << 20)};
  ManualClock clock_;
  ModelSpec model_;
  std::unique_ptr<PageStore> pages_;
  CallOutcome last_;
};

TEST_F(PageStoreTest, WhatWasStoredIsLoaded) {
  EXPECT_EQ(exists(0, 3), Codes(3, kMiss));
  EXPECT_EQ(store(0, 3), Codes(3, kOk));
  EXPECT_EQ(exists(0, 4), (Codes{kOk, kOk, kOk, kMiss}));
  EXPECT_EQ(load(0, 4), (Codes{kOk, kOk, kOk, kMiss}));
  const PageStoreStats stats = pages_->stats();
  EXPECT_EQ(stats.queries, 7u);
  EXPECT_EQ(stats.query_hits, 3u);
  EXPECT_EQ(stats.stores, 3u);
  EXPECT_EQ(stats.store_bytes, 3 * (1000u + kEnvelopeBytes));
  EXPECT_EQ(stats.loads, 3u);
  EXPECT_EQ(stats.load_misses, 1u);
  EXPECT_EQ(stats.load_bytes, stats.store_bytes);
  EXPECT_EQ(stats.failures(), 0u);
  EXPECT_EQ(stats.verification_failures_total(), 0u);
}

TEST_F(PageStoreTest, EmptyCallsDoNotReachTheStore) {
  PrefixStops stops;
  EXPECT_TRUE(pages_->exists_prefix({}, stops, {}).status.ok());
  EXPECT_TRUE(pages_->load({}, {}, {}).status.ok());
  EXPECT_TRUE(pages_->store({}, {}, {}).status.ok());
  EXPECT_TRUE(faults_.log().empty());
}

TEST_F(PageStoreTest, OnlyMissingPagesAreWritten) {
  ASSERT_EQ(store(1, 2), Codes(2, kOk));
  faults_.clear_log();
  EXPECT_EQ(store(0, 4), Codes(4, kOk));
  const auto log = faults_.log();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].call, StoreCall::exists);
  EXPECT_EQ(log[0].keys.size(), 4u);
  EXPECT_EQ(log[1].call, StoreCall::put);
  EXPECT_EQ(log[1].keys, (std::vector<std::string>{object_key(0), object_key(3)}));
  EXPECT_EQ(pages_->stats().stores_present, 2u);
  EXPECT_EQ(pages_->stats().stores, 4u);
}

TEST_F(PageStoreTest, WhatAQueryHasJustMissedIsNotAskedForAgain) {
  ASSERT_EQ(store(1, 1), Codes(1, kOk));
  ASSERT_EQ(exists(0, 4), Codes(4, kMiss)) << "no prefix ends behind a gap";
  faults_.clear_log();
  EXPECT_EQ(store(0, 4), Codes(4, kOk));
  auto log = faults_.log();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(log[0].call, StoreCall::exists);
  EXPECT_EQ(log[0].keys, std::vector<std::string>{object_key(1)});
  EXPECT_EQ(log[1].keys.size(), 3u);
  // What has been written is asked for: its absence is news no longer.
  faults_.clear_log();
  EXPECT_EQ(store(0, 4), Codes(4, kOk));
  log = faults_.log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].call, StoreCall::exists);
  EXPECT_EQ(log[0].keys.size(), 4u);
  EXPECT_EQ(pages_->stats().stores, 4u);
}

TEST_F(PageStoreTest, AnOldMissIsAskedForAgain) {
  ASSERT_EQ(exists(0, 1), Codes(1, kMiss));
  clock_.advance(2 * AbsentKeys::kKeptFor);
  faults_.clear_log();
  EXPECT_EQ(store(0, 1), Codes(1, kOk));
  EXPECT_EQ(calls(StoreCall::exists), 1u);
}

TEST_F(PageStoreTest, ARememberedMissNeverAnswersAReader) {
  ASSERT_EQ(exists(0, 1), Codes(1, kMiss));
  PageStore other(faults_, model_, clock_);
  Slots source = slots(0, 1);
  Codes codes(1, StatusCode::internal);
  other.store(source.pages, codes, {}).status.ignore();
  ASSERT_EQ(codes, Codes(1, kOk));
  EXPECT_EQ(exists(0, 1), Codes(1, kOk));
  EXPECT_EQ(load(0, 1), Codes(1, kOk));
  EXPECT_EQ(store(0, 1), Codes(1, kOk)) << "somebody else was quicker";
}

// Another writer comes between the question and the put.
TEST_F(PageStoreTest, AlreadyThereCountsAsStored) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  faults_.add({.call = StoreCall::exists, .kind = StoreFault::Kind::error, .code = kMiss});
  EXPECT_EQ(store(0, 1), Codes(1, kOk));
  EXPECT_EQ(pages_->stats().stores_present, 1u);
}

TEST_F(PageStoreTest, DuplicatePagesInOneCallAllSucceed) {
  Slots source = slots(0, 1);
  const std::vector<PageSlot> twice = {source.pages[0], source.pages[0]};
  Codes codes(2, StatusCode::internal);
  pages_->store(twice, codes, {});
  EXPECT_EQ(codes, Codes(2, kOk));
  EXPECT_EQ(load(0, 1), Codes(1, kOk));
}

TEST_F(PageStoreTest, CallsAreSplitAsTheStoreWants) {
  faults_.set_batch_items_max(4);
  use(one_pool());
  EXPECT_EQ(store(0, 10), Codes(10, kOk));
  EXPECT_EQ(exists(0, 10), Codes(10, kOk));
  EXPECT_EQ(load(0, 10), Codes(10, kOk));
  EXPECT_EQ(calls(StoreCall::put), 3u);
  EXPECT_EQ(calls(StoreCall::get), 3u);
  EXPECT_EQ(calls(StoreCall::exists), 2u) << "queries hold no pages: one call each";
  for (const auto& entry : faults_.log()) {
    EXPECT_LE(entry.keys.size(), entry.call == StoreCall::exists ? 10u : 4u);
  }
}

TEST_F(PageStoreTest, AFailingBatchDoesNotHideItsTail) {
  faults_.set_batch_items_max(4);
  use(one_pool());
  faults_.add({.call = StoreCall::put, .code = StatusCode::unavailable, .skip = 1, .times = 1});
  Codes want(10, kOk);
  want[1] = StatusCode::unavailable;
  EXPECT_EQ(store(0, 10), want);
  want[1] = kMiss;
  EXPECT_EQ(load(0, 10), want);
  EXPECT_EQ(pages_->stats().failures(), 1u);
}

// Every bit of the object, wherever it is flipped, is a miss and never a wrong byte; the object is
// removed so that it can be stored anew.
TEST_F(PageStoreTest, FlippedBitsAreMissesAndTheObjectGoes) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  for (const std::uint64_t bit :
       {0u, 40u, 100u, 340u, 600u, 720u, 800u, 900u, 1000u, 1030u, 9000u}) {
    clock_.advance(std::chrono::minutes(2));
    faults_.add(
        {.call = StoreCall::get, .kind = StoreFault::Kind::flipped_bit, .times = 1, .bit = bit});
    EXPECT_EQ(load(0, 1), Codes(1, StatusCode::data_loss)) << bit;
    EXPECT_EQ(exists(0, 1), Codes(1, kMiss)) << bit;
    EXPECT_EQ(store(0, 1), Codes(1, kOk));
    EXPECT_EQ(load(0, 1), Codes(1, kOk));
  }
  EXPECT_EQ(pages_->stats().verification_failures_total(), 11u);
  EXPECT_EQ(pages_->stats().removals, 11u);
  EXPECT_EQ(failures(EnvelopeFault::payload_checksum), 2u);
}

TEST_F(PageStoreTest, OneBadPageDoesNotTouchItsNeighbours) {
  ASSERT_EQ(store(0, 4), Codes(4, kOk));
  faults_.add({.call = StoreCall::get,
               .kind = StoreFault::Kind::flipped_bit,
               .key_part = object_key(2),
               .bit = 5000});
  EXPECT_EQ(load(0, 4), (Codes{kOk, kOk, StatusCode::data_loss, kOk}));
  EXPECT_EQ(exists(0, 4), (Codes{kOk, kOk, kMiss, kMiss}));
  EXPECT_EQ(exists(3, 1), Codes(1, kOk));
}

TEST_F(PageStoreTest, BackendsThatLieAboutLengthsAreNotBelieved) {
  ASSERT_EQ(store(0, 2), Codes(2, kOk));
  faults_.add(
      {.call = StoreCall::get, .kind = StoreFault::Kind::short_bytes, .key_part = object_key(0)});
  EXPECT_EQ(load(0, 2), (Codes{StatusCode::data_loss, kOk}));
  EXPECT_EQ(failures(EnvelopeFault::length), 1u);
}

TEST_F(PageStoreTest, ItemsThatTheBackendForgotAreFailures) {
  ASSERT_EQ(store(0, 2), Codes(2, kOk));
  for (const StoreCall call : {StoreCall::get, StoreCall::exists}) {
    faults_.add({.call = call,
                 .kind = StoreFault::Kind::unanswered,
                 .key_part = object_key(0),
                 .times = 1});
  }
  EXPECT_EQ(load(0, 2), (Codes{StatusCode::internal, kOk}));
  EXPECT_EQ(exists(0, 2), Codes(2, StatusCode::internal));
}

TEST_F(PageStoreTest, LossBetweenExistsAndGetIsAMiss) {
  ASSERT_EQ(store(0, 2), Codes(2, kOk));
  ASSERT_EQ(exists(0, 2), Codes(2, kOk));
  faults_.add({.call = StoreCall::get, .kind = StoreFault::Kind::lost, .key_part = object_key(1)});
  EXPECT_EQ(load(0, 2), (Codes{kOk, kMiss}));
  EXPECT_EQ(pages_->stats().verification_failures_total(), 0u);
}

// The right key, but somebody put another page's bytes there.
// A store that says that it holds a page, and never gives it.
TEST_F(PageStoreTest, APageThatCannotBeLoadedIsNotAskedForAgainAtOnce) {
  ASSERT_EQ(store(0, 4), Codes(4, kOk));
  ASSERT_EQ(exists(0, 4), Codes(4, kOk));
  faults_.add({.call = StoreCall::get, .code = kMiss, .key_part = object_key(1)});
  faults_.add(
      {.call = StoreCall::get, .code = StatusCode::deadline_exceeded, .key_part = object_key(2)});
  EXPECT_EQ(load(0, 4), (Codes{kOk, kMiss, StatusCode::deadline_exceeded, kOk}));
  faults_.clear_log();
  EXPECT_EQ(exists(0, 4), (Codes{kOk, kMiss, kMiss, kMiss})) << "a prefix ends before it";
  ASSERT_EQ(calls(StoreCall::exists), 1u);
  EXPECT_EQ(faults_.log()[0].keys, (std::vector<std::string>{object_key(0), object_key(3)}));
  EXPECT_EQ(pages_->failed_keys(), 2u);
  clock_.advance(std::chrono::seconds(30));
  EXPECT_EQ(exists(0, 4), Codes(4, kOk));
  EXPECT_EQ(pages_->failed_keys(), 0u);
}

TEST_F(PageStoreTest, APageThatIsStoredAnewIsAskedForAgain) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  faults_.add(
      {.call = StoreCall::get, .kind = StoreFault::Kind::flipped_bit, .times = 1, .bit = 9000});
  faults_.add({.call = StoreCall::remove, .times = 1});
  ASSERT_EQ(load(0, 1), Codes(1, StatusCode::data_loss));
  EXPECT_EQ(exists(0, 1), Codes(1, StatusCode::data_loss)) << "it could not be removed";
  EXPECT_EQ(calls(StoreCall::exists), 1u) << "of the first store";
  ASSERT_EQ(remove_object(faults_, object_key(0)), kOk);
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  EXPECT_EQ(exists(0, 1), Codes(1, kOk));
  EXPECT_EQ(load(0, 1), Codes(1, kOk));
}

TEST_F(PageStoreTest, APlainMissIsAskedForEveryTime) {
  EXPECT_EQ(exists(0, 1), Codes(1, kMiss));
  EXPECT_EQ(load(0, 1), Codes(1, kMiss));
  EXPECT_EQ(pages_->failed_keys(), 0u);
  Slots source = slots(0, 1);
  PageStore other(faults_, model_, clock_);
  Codes codes(1, StatusCode::internal);
  other.store(source.pages, codes, {}).status.ignore();
  EXPECT_EQ(exists(0, 1), Codes(1, kOk)) << "another process has stored it meanwhile";
}

TEST_F(PageStoreTest, SwappedObjectsAreMisses) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  StatusCode code = kOk;
  const auto object = get_object(faults_, object_key(0), object_bytes(0), code);
  ASSERT_EQ(code, kOk);
  ASSERT_EQ(put_object(faults_, object_key(1), object), kOk);
  EXPECT_EQ(load(1, 1), Codes(1, StatusCode::data_loss));
  EXPECT_EQ(failures(EnvelopeFault::other_key), 1u);
}

TEST_F(PageStoreTest, OtherModelsDoNotSeeThesePages) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  ModelSpec other = one_pool();
  other.numerics = {"kv_type=f16"};
  use(other);
  EXPECT_EQ(exists(0, 1), Codes(1, kMiss));
  EXPECT_EQ(load(0, 1), Codes(1, kMiss));
}

TEST_F(PageStoreTest, NewerEnvelopesAreMissesAndStay) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  StatusCode code = kOk;
  auto object = get_object(faults_, object_key(0), object_bytes(0), code);
  ASSERT_EQ(code, kOk);
  object[4] = std::byte{9};
  const std::uint64_t checksum = checksum64(std::span(object).first(120));
  std::memcpy(object.data() + 120, &checksum, sizeof checksum);
  ASSERT_EQ(remove_object(faults_, object_key(0)), kOk);
  ASSERT_EQ(put_object(faults_, object_key(0), object), kOk);
  EXPECT_EQ(load(0, 1), Codes(1, StatusCode::data_loss));
  EXPECT_EQ(failures(EnvelopeFault::newer_version), 1u);
  EXPECT_EQ(exists_object(faults_, object_key(0)), kOk);
}

TEST_F(PageStoreTest, OneKeyIsNotRemovedTwiceWithinAMinute) {
  ASSERT_EQ(store(0, 1), Codes(1, kOk));
  faults_.add({.call = StoreCall::get, .kind = StoreFault::Kind::flipped_bit, .bit = 9000});
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(load(0, 1), Codes(1, StatusCode::data_loss));
    store(0, 1);
  }
  EXPECT_EQ(calls(StoreCall::remove), 1u);
  clock_.advance(std::chrono::minutes(2));
  EXPECT_EQ(load(0, 1), Codes(1, StatusCode::data_loss));
  EXPECT_EQ(calls(StoreCall::remove), 2u);
}

TEST_F(PageStoreTest, RemovalsAreLimited) {
  ASSERT_EQ(store(0, 100), Codes(100, kOk));
  faults_.add({.call = StoreCall::get, .kind = StoreFault::Kind::flipped_bit, .bit = 9000});
  EXPECT_EQ(load(0, 100), Codes(100, StatusCode::data_loss));
  EXPECT_EQ(pages_->stats().removals, 16u);
  EXPECT_EQ(calls(StoreCall::remove), 1u) << "one call removes them all";
}

TEST_F(PageStoreTest, ErrorsOfTheStoreAreReportedPerPage) {
  ASSERT_EQ(store(0, 3), Codes(3, kOk));
  faults_.add({.call = StoreCall::get, .code = StatusCode::unavailable, .key_part = object_key(1)});
  faults_.add({.call = StoreCall::exists,
               .code = StatusCode::deadline_exceeded,
               .key_part = object_key(2)});
  EXPECT_EQ(load(0, 3), (Codes{kOk, StatusCode::unavailable, kOk}));
  EXPECT_EQ(exists(0, 3), (Codes{kOk, kOk, StatusCode::deadline_exceeded}));
  EXPECT_EQ(store(0, 3), (Codes{kOk, kOk, StatusCode::deadline_exceeded}));
  EXPECT_EQ(pages_->stats().failures(), 3u);
}

TEST_F(PageStoreTest, TheCallsOutcomeIsPassedOn) {
  const TimePoint later = SystemClock::instance().now() + std::chrono::hours(1);
  faults_.set_buffers_busy_until(later);
  store(0, 1);
  EXPECT_EQ(last_.buffers_busy_until, later);
  load(0, 1);
  EXPECT_EQ(last_.buffers_busy_until, later);
  Slots target = slots(0, 1);
  Codes codes(1);
  const CallOptions late{.deadline = SystemClock::instance().now() - std::chrono::seconds(1)};
  EXPECT_EQ(pages_->load(target.pages, codes, late).status.code(), StatusCode::deadline_exceeded);
  EXPECT_EQ(codes, Codes(1, StatusCode::deadline_exceeded));
}

TEST_F(PageStoreTest, UnusableSlotsAreRefusedAlone) {
  use(four_pools());
  ASSERT_EQ(store(0, 4, 1), Codes(4, kOk));
  Slots source = slots(0, 4);
  source.pages[0].slot = source.pages[0].slot.first(object_bytes(0) - 1);
  source.pages[1].pool = 3;  // has no bytes
  source.pages[2].pool = 4;  // does not exist
  Codes codes(4, StatusCode::internal);
  pages_->store(source.pages, codes, {});
  constexpr auto kBad = StatusCode::invalid_argument;
  EXPECT_EQ(codes, (Codes{kBad, kBad, kBad, kOk}));
  pages_->load(source.pages, codes, {});
  EXPECT_EQ(codes, (Codes{kBad, kBad, kBad, kOk}));
}

// A page is there when every required pool has it; optional and logical pools do not count.
TEST_F(PageStoreTest, APageNeedsAllItsRequiredPools) {
  use(four_pools());
  EXPECT_EQ(store(0, 3, 0), Codes(3, kMiss)) << "not before what it needs";
  ASSERT_EQ(store(1, 3, 1), Codes(3, kOk));
  EXPECT_EQ(exists(0, 3), Codes(3, kMiss));
  EXPECT_EQ(store(0, 3, 0), (Codes{kMiss, kOk, kOk}));
  EXPECT_EQ(exists(0, 4), Codes(4, kMiss));
  EXPECT_EQ(exists(1, 3), (Codes{kOk, kOk, kMiss}));
  EXPECT_EQ(load(1, 2, 1), Codes(2, kOk));
  EXPECT_EQ(load(1, 2, 2), Codes(2, kMiss));
}

TEST_F(PageStoreTest, AModelOfLogicalPoolsHoldsNothing) {
  ModelSpec model = one_pool();
  model.pools = {pool("kv", 0)};
  use(model);
  EXPECT_EQ(exists(0, 2), Codes(2, kMiss));
}

TEST_F(PageStoreTest, MemoryIsRegisteredBelow) {
  std::vector<std::byte> region(4096);
  EXPECT_TRUE(pages_->register_memory({.bytes = region}).ok());
  EXPECT_EQ(faults_.registrations(), 1u);
  EXPECT_TRUE(pages_->unregister_memory(region).ok());
  EXPECT_EQ(faults_.registrations(), 0u);
}

}  // namespace
}  // namespace hitide
