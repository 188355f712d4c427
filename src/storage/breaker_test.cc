#include "storage/breaker.h"

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"
#include "tests/support/file_store_fixture.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using Kind = Breaker::Kind;
using Pass = Breaker::Pass;
using Verdict = Breaker::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr BreakerOptions kOptions = {.failures_to_open = 3,
                                     .failed_share_to_open = 0.5,
                                     .window_calls_min = 8,
                                     .window = seconds(10),
                                     .pause_first = milliseconds(500),
                                     .pause_max = seconds(3)};

constexpr Breaker::Report kGood = {.verdict = Verdict::good};
constexpr Breaker::Report kBad = {.verdict = Verdict::bad, .failed_share = 1};
constexpr Breaker::Report kUnknown = {};

class BreakerTest : public testing::Test {
 protected:
  void call(const Breaker::Report& report, Kind kind = Kind::move) {
    breaker_.report(kind, breaker_.admit(kind), report);
  }
  void fail(int times, Kind kind = Kind::move) {
    for (int i = 0; i < times; ++i) call(kBad, kind);
  }
  bool open() { return breaker_.state().open; }

  ManualClock clock_;
  Breaker breaker_{kOptions, clock_};
};

TEST_F(BreakerTest, OpensAfterFailuresInARow) {
  fail(2);
  call(kGood);
  fail(2);
  call(kUnknown);
  EXPECT_FALSE(open());
  fail(1);
  EXPECT_TRUE(open());
  EXPECT_EQ(breaker_.state().opened, 1u);
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::refused);
  EXPECT_EQ(breaker_.admit(Kind::query), Pass::refused);
  EXPECT_EQ(breaker_.state().refused, 2u);
}

// A row of each kind: queries that go well say nothing about gets that do not.
TEST_F(BreakerTest, QueriesInBetweenDoNotHideThatEveryGetFails) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(open()) << i;
    call(kGood, Kind::query);
    fail(1, Kind::move);
  }
  EXPECT_TRUE(open());
}

TEST_F(BreakerTest, OpensWhenHalfOfWhatWasAskedForLatelyFailed) {
  for (int i = 0; i < 3; ++i) {
    call(kGood);
    call(kBad);
  }
  call(kGood);
  EXPECT_FALSE(open()) << "seven calls say nothing";
  call(kBad);
  EXPECT_TRUE(open());
}

TEST_F(BreakerTest, SharesOfItemsAddUp) {
  constexpr Breaker::Report kFewer = {.verdict = Verdict::good, .failed_share = 0.49};
  constexpr Breaker::Report kHalf = {.verdict = Verdict::good, .failed_share = 0.5};
  for (int i = 0; i < 100; ++i) call(kFewer);
  EXPECT_FALSE(open());
  for (int i = 0; i < 100; ++i) call(kHalf, Kind::query);
  EXPECT_TRUE(open());
}

TEST_F(BreakerTest, WhatIsLongAgoDoesNotCount) {
  for (int i = 0; i < 3; ++i) {
    call(kGood);
    call(kBad);
  }
  clock_.advance(seconds(11));
  call(kGood);
  call(kBad);
  EXPECT_FALSE(open());
  // Slice by slice: one bad call of four a second is under the share for ever.
  for (int i = 0; i < 100; ++i) {
    clock_.advance(milliseconds(250));
    call(i % 4 == 0 ? kBad : kGood);
  }
  EXPECT_FALSE(open());
}

TEST_F(BreakerTest, OneProbeAtATimeAfterThePause) {
  fail(3);
  clock_.advance(milliseconds(499));
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::refused);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::probe);
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::refused) << "the probe is still on its way";
  breaker_.report(Kind::move, Pass::probe, kGood);
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::call);
}

// Half open after failed gets: a query must find something before anybody gets it.
TEST_F(BreakerTest, QueriesPassBesideTheProbeAndProveNothing) {
  fail(3, Kind::move);
  EXPECT_EQ(breaker_.admit(Kind::query), Pass::refused) << "not before the pause is over";
  clock_.advance(milliseconds(500));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(breaker_.admit(Kind::query), Pass::beside);
    breaker_.report(Kind::query, Pass::beside, kGood);
    EXPECT_TRUE(open());
  }
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::probe);
  breaker_.report(Kind::move, Pass::probe, kGood);
  EXPECT_FALSE(open());
}

TEST_F(BreakerTest, AQueryThatFailsBesideTheProbePutsItOff) {
  fail(3, Kind::move);
  clock_.advance(milliseconds(500));
  breaker_.report(Kind::query, breaker_.admit(Kind::query), kBad);
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::refused);
  EXPECT_EQ(breaker_.admit(Kind::query), Pass::refused);
  clock_.advance(seconds(1));
  EXPECT_EQ(breaker_.admit(Kind::query), Pass::probe) << "it is of a kind that failed now";
}

TEST_F(BreakerTest, FailedProbesDoubleThePauseUpToItsLimit) {
  fail(3);
  Duration pause = milliseconds(500);
  for (int i = 0; i < 5; ++i) {
    clock_.advance(pause - Duration(1));
    EXPECT_EQ(breaker_.admit(Kind::move), Pass::refused) << i;
    clock_.advance(Duration(1));
    ASSERT_EQ(breaker_.admit(Kind::move), Pass::probe) << i;
    breaker_.report(Kind::move, Pass::probe, kBad);
    pause = std::min<Duration>(pause * 2, seconds(3));
  }
  clock_.advance(pause);
  call(kGood);
  EXPECT_FALSE(open());
  fail(2);
  EXPECT_FALSE(open()) << "what was before it opened is forgotten";
  fail(1);
  EXPECT_EQ(breaker_.state().next_probe, clock_.now() + milliseconds(500)) << "it starts anew";
  EXPECT_EQ(breaker_.state().opened, 2u);
}

TEST_F(BreakerTest, AProbeOfUnknownOutcomeIsFollowedByAnother) {
  fail(3);
  clock_.advance(milliseconds(500));
  call(kUnknown);
  EXPECT_TRUE(open());
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::probe);
}

TEST_F(BreakerTest, LateReportsOfOldCallsChangeNothing) {
  const Pass old = breaker_.admit(Kind::move);
  fail(3);
  breaker_.report(Kind::move, old, kGood);
  EXPECT_TRUE(open());
  breaker_.report(Kind::move, old, kBad);
  EXPECT_EQ(breaker_.state().opened, 1u);
}

TEST_F(BreakerTest, OpensWhenAQuarterOfTheMemoryIsInQuarantine) {
  breaker_.set_memory_bytes(1000);
  breaker_.quarantine(250, clock_.now() + seconds(12));
  EXPECT_FALSE(open());
  clock_.advance(seconds(1));
  breaker_.quarantine(1, clock_.now() + seconds(12));
  EXPECT_TRUE(open());
  EXPECT_EQ(breaker_.state().quarantined_bytes, 251u);
  clock_.advance(seconds(10));
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::refused) << "the pause is over, the quarantine not";
  EXPECT_EQ(breaker_.admit(Kind::query), Pass::refused);
  EXPECT_EQ(breaker_.state().next_probe, clock_.now() + seconds(1)) << "then 250 are free again";
  clock_.advance(seconds(1));
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::probe);
  breaker_.report(Kind::move, Pass::probe, kGood);
  EXPECT_FALSE(open());
  EXPECT_EQ(breaker_.state().quarantined_bytes, 1u);
}

TEST_F(BreakerTest, AQuarantineThatIsOverOrOfUnknownMemoryIsNone) {
  breaker_.quarantine(1 << 30, clock_.now() + seconds(12));
  EXPECT_FALSE(open()) << "a share of nothing";
  breaker_.set_memory_bytes(1000);
  breaker_.quarantine(1 << 30, clock_.now());
  EXPECT_EQ(breaker_.state().quarantined_bytes, 1u << 30) << "only the first one";
  clock_.advance(seconds(12));
  EXPECT_EQ(breaker_.admit(Kind::move), Pass::call);
  EXPECT_EQ(breaker_.state().quarantined_bytes, 0u);
}

class BreakerStoreTest : public testing::Test {
 protected:
  BreakerStoreTest() {
    auto faults = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(1 << 20));
    faults_ = faults.get();
    store_ = std::make_unique<BreakerStore>(std::move(faults), kOptions, clock_);
  }
  void go_away() {
    for (const StoreCall call : {StoreCall::get, StoreCall::put, StoreCall::exists}) {
      faults_->add({.call = call, .code = StatusCode::unavailable});
    }
  }
  ManualClock clock_;
  FaultStore* faults_;
  std::unique_ptr<BreakerStore> store_;
};

TEST_F(BreakerStoreTest, AStoreThatIsAwayIsLeftAloneAndTriedAgain) {
  ASSERT_EQ(put_object(*store_, "k", bytes_of("k", 10)), StatusCode::ok);
  go_away();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(exists_object(*store_, "k"), StatusCode::unavailable);
  EXPECT_TRUE(store_->state().open);
  faults_->clear_log();
  EXPECT_EQ(check_object(*store_, "k", 10), StatusCode::unavailable);
  EXPECT_EQ(put_object(*store_, "j", bytes_of("j", 10)), StatusCode::unavailable);
  EXPECT_TRUE(faults_->log().empty()) << "nothing is asked of it";
  faults_->clear_faults();
  EXPECT_EQ(exists_object(*store_, "k"), StatusCode::unavailable) << "not before the pause is over";
  clock_.advance(milliseconds(500));
  EXPECT_EQ(check_object(*store_, "k", 10), StatusCode::ok);
  EXPECT_FALSE(store_->state().open);
}

TEST_F(BreakerStoreTest, MissesAndFullStoresAndBadKeysAreNoFailures) {
  faults_->add({.call = StoreCall::put, .code = StatusCode::resource_exhausted});
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(check_object(*store_, "none", 10), StatusCode::not_found);
    EXPECT_EQ(put_object(*store_, "k", bytes_of("k", 10)), StatusCode::resource_exhausted);
    EXPECT_EQ(exists_object(*store_, ""), StatusCode::invalid_argument);
  }
  EXPECT_FALSE(store_->state().open);
}

TEST_F(BreakerStoreTest, ACallersShortTimeIsNoFailure) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(put_object(*store_, "k", bytes_of("k", 10), {.deadline = clock_.now()}),
              StatusCode::deadline_exceeded);
  }
  EXPECT_FALSE(store_->state().open);
}

TEST_F(BreakerStoreTest, SaysWhatFailsUntilItServesAgain) {
  EXPECT_TRUE(store_->health().ok());
  go_away();
  for (int i = 0; i < 4; ++i) exists_object(*store_, "k");
  EXPECT_EQ(store_->health().code(), StatusCode::unavailable);
  EXPECT_NE(store_->health().message().find("calls fail ("), std::string_view::npos);
  EXPECT_EQ(store_->stats().outages, 1u);
  EXPECT_EQ(store_->stats().refused, 1u);
  faults_->clear_faults();
  clock_.advance(milliseconds(500));
  exists_object(*store_, "k");
  EXPECT_TRUE(store_->health().ok());
  EXPECT_EQ(store_->stats().outages, 1u);
}

TEST_F(BreakerStoreTest, EmptyCallsProveNothing) {
  go_away();
  for (int i = 0; i < 3; ++i) exists_object(*store_, "k");
  clock_.advance(milliseconds(500));
  EXPECT_TRUE(store_->exists({}, {}, {}).status.ok());
  EXPECT_TRUE(store_->state().open);
}

TEST_F(BreakerStoreTest, FewUnavailableItemsAreNotTheStore) {
  for (const char* key : {"a", "b", "c"}) put_object(*store_, key, bytes_of(key, 10));
  faults_->add({.call = StoreCall::exists, .code = StatusCode::unavailable, .key_part = "a"});
  const std::vector<std::string_view> keys = {"a", "b", "c"};
  std::vector<ItemResult> out(keys.size());
  for (int i = 0; i < 10; ++i) store_->exists(keys, out, {}).status.ignore();
  EXPECT_EQ(out[1].code, StatusCode::ok);
  EXPECT_FALSE(store_->state().open);
}

// An owner of memory that is gone: existence is still answered well, every get badly.
TEST_F(BreakerStoreTest, AStoreThatAnswersQueriesOnlyIsSeenThrough) {
  ASSERT_EQ(put_object(*store_, "k", bytes_of("k", 10)), StatusCode::ok);
  faults_->add({.call = StoreCall::get, .code = StatusCode::unavailable});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(exists_object(*store_, "k"), StatusCode::ok);
    EXPECT_EQ(check_object(*store_, "k", 10), StatusCode::unavailable);
  }
  EXPECT_TRUE(store_->state().open);
  clock_.advance(milliseconds(500));
  EXPECT_EQ(exists_object(*store_, "k"), StatusCode::ok);
  EXPECT_TRUE(store_->state().open) << "that was never in doubt";
  faults_->clear_faults();
  EXPECT_EQ(check_object(*store_, "k", 10), StatusCode::ok);
  EXPECT_FALSE(store_->state().open);
}

// Calls that were given up while somebody may still write to their buffers.
TEST_F(BreakerStoreTest, TooMuchMemoryInQuarantineStopsFurtherCalls) {
  std::vector<std::byte> memory(1000);
  const MemoryRegion region{.bytes = memory};
  ASSERT_TRUE(store_->register_memory(region).ok());
  ASSERT_TRUE(store_->register_memory(region).ok()) << "counted, but no more memory";
  for (const char* key : {"a", "b"}) {
    ASSERT_EQ(put_object(*store_, key, bytes_of(key, 130)), StatusCode::ok);
  }
  faults_->set_buffers_busy_until(clock_.now() + seconds(12));
  EXPECT_EQ(check_object(*store_, "a", 130), StatusCode::ok);
  EXPECT_FALSE(store_->state().open);
  EXPECT_EQ(check_object(*store_, "b", 130), StatusCode::ok);
  EXPECT_EQ(store_->state().quarantined_bytes, 260u);
  EXPECT_TRUE(store_->state().open);
  faults_->clear_log();
  clock_.advance(seconds(11));
  EXPECT_EQ(check_object(*store_, "a", 130), StatusCode::unavailable);
  EXPECT_TRUE(faults_->log().empty());
  faults_->set_buffers_busy_until(TimePoint::min());
  clock_.advance(seconds(1));
  EXPECT_EQ(check_object(*store_, "a", 130), StatusCode::ok);
  EXPECT_FALSE(store_->state().open);
  EXPECT_TRUE(store_->unregister_memory(memory).ok());
  faults_->set_buffers_busy_until(clock_.now() + seconds(12));
  EXPECT_EQ(check_object(*store_, "a", 130), StatusCode::ok);
  EXPECT_FALSE(store_->state().open) << "130 of 1000";
  EXPECT_TRUE(store_->unregister_memory(memory).ok());
}

// A disk that is read-only by now: what it holds is still worth reading.
TEST_F(BreakerStoreTest, PutsThatFailDoNotKeepGetsAway) {
  ASSERT_EQ(put_object(*store_, "k", bytes_of("k", 10)), StatusCode::ok);
  faults_->add({.call = StoreCall::put, .code = StatusCode::unavailable});
  for (int i = 0; i < 3; ++i) put_object(*store_, "j", bytes_of("j", 10));
  EXPECT_TRUE(store_->state().open);
  EXPECT_NE(store_->health().message().find("puts fail ("), std::string_view::npos);
  faults_->clear_log();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(put_object(*store_, "j", bytes_of("j", 10)), StatusCode::unavailable);
    EXPECT_EQ(exists_object(*store_, "k"), StatusCode::ok);
    EXPECT_EQ(check_object(*store_, "k", 10), StatusCode::ok);
  }
  EXPECT_EQ(faults_->log().size(), 40u) << "no put has reached it";
  faults_->clear_faults();
  clock_.advance(milliseconds(500));
  EXPECT_EQ(put_object(*store_, "j", bytes_of("j", 10)), StatusCode::ok);
  EXPECT_TRUE(store_->health().ok());
}

// A call that does not come back costs the one thread that made it, and nobody else any time.
TEST_F(BreakerStoreTest, WhileACallHangsThereAreNoOthers) {
  ASSERT_EQ(put_object(*store_, "k", bytes_of("k", 10)), StatusCode::ok);
  faults_->hold(StoreCall::get, false);
  const TimePoint deadline = clock_.now() + seconds(3);
  std::jthread lost([&] {
    StatusCode code = StatusCode::internal;
    get_object(*store_, "k", 10, code, {.deadline = deadline});
  });
  ASSERT_TRUE(
      faults_->wait_until_held(StoreCall::get, 1, SystemClock::instance().now() + seconds(20)));
  EXPECT_EQ(exists_object(*store_, "k"), StatusCode::ok) << "it may still be in time";
  clock_.advance(seconds(3) + kOptions.hang_slack);
  EXPECT_NE(store_->health().message().find("does not return"), std::string_view::npos);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(exists_object(*store_, "k"), StatusCode::unavailable);
    EXPECT_EQ(put_object(*store_, "j", bytes_of("j", 10)), StatusCode::unavailable);
    clock_.advance(seconds(1));
  }
  faults_->release(StoreCall::get);
  lost.join();
  EXPECT_EQ(check_object(*store_, "k", 10), StatusCode::ok) << "it is the probe";
  EXPECT_TRUE(store_->health().ok());
  EXPECT_EQ(store_->stats().outages, 1u);
}

TEST_F(BreakerStoreTest, ACallWithoutADeadlineHangsAfterTheLimit) {
  faults_->hold(StoreCall::put, false);
  std::jthread lost([&] { put_object(*store_, "k", bytes_of("k", 10)); });
  ASSERT_TRUE(
      faults_->wait_until_held(StoreCall::put, 1, SystemClock::instance().now() + seconds(20)));
  clock_.advance(kOptions.hang_limit - milliseconds(1));
  EXPECT_TRUE(store_->health().ok());
  clock_.advance(milliseconds(1));
  EXPECT_FALSE(store_->health().ok());
  EXPECT_EQ(exists_object(*store_, "k"), StatusCode::not_found) << "reads are not concerned";
  faults_->release(StoreCall::put);
}

// What throws as the probe must not be the last probe.
TEST_F(BreakerStoreTest, AStoreThatThrowsIsTriedAgain) {
  class Thrower final : public ObjectStore {
   public:
    StoreCapabilities capabilities() const override { return {.name = "thrower"}; }
    CallOutcome exists(std::span<const std::string_view>, std::span<ItemResult> out,
                       const CallOptions&) override {
      if (throws) throw std::runtime_error("planted");  // tidy: allow-throw plays a broken backend
      for (ItemResult& result : out) result.code = StatusCode::ok;
      return {};
    }
    CallOutcome get(std::span<const GetItem>, std::span<ItemResult>, const CallOptions&) override {
      return {};
    }
    CallOutcome put(std::span<const PutItem>, std::span<ItemResult>, const CallOptions&) override {
      return {};
    }
    CallOutcome remove(std::span<const std::string_view>, std::span<ItemResult>,
                       const CallOptions&) override {
      return {};
    }
    Status register_memory(const MemoryRegion&) override { return {}; }
    Status unregister_memory(std::span<std::byte>) override { return {}; }
    StoreStats stats() const override { return {}; }
    Status close(TimePoint) override { return {}; }
    bool throws = true;
  };
  auto owned = std::make_unique<Thrower>();
  Thrower& thrower = *owned;
  BreakerStore store(std::move(owned), kOptions, clock_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(exists_object(store, "k"), StatusCode::internal);
  EXPECT_TRUE(store.state().open);
  EXPECT_NE(store.health().message().find("planted"), std::string_view::npos);
  clock_.advance(milliseconds(500));
  EXPECT_EQ(exists_object(store, "k"), StatusCode::internal);
  thrower.throws = false;
  clock_.advance(seconds(1));
  EXPECT_EQ(exists_object(store, "k"), StatusCode::ok);
  EXPECT_FALSE(store.state().open);
}

// ---- a file store on a dying disk ---------------------------------------------------------------

class DyingDisk : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
    FileStoreOptions options;
    options.path = directory_ / "store";
    options.bytes_max = 8u << 20;
    options.disk_free_bytes_min = 0;
    options.files = &files_;
    auto file = FileStore::open(options);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    store_ = std::make_unique<BreakerStore>(std::move(*file), kOptions, clock_);
    ASSERT_EQ(put_object(*store_, "k", bytes_of("k", 5000)), StatusCode::ok);
  }
  void TearDown() override { set_log_sink({}); }

  FaultyFiles files_;
  TempDirectory directory_;
  ManualClock clock_;
  std::unique_ptr<BreakerStore> store_;
};

TEST_F(DyingDisk, EioOnReadsIsSeenThroughAndServesAgainByItself) {
  files_.read_error = EIO;
  for (int i = 0; i < 3; ++i) EXPECT_NE(check_object(*store_, "k", 5000), StatusCode::ok);
  EXPECT_FALSE(store_->health().ok());
  EXPECT_EQ(exists_object(*store_, "k"), StatusCode::unavailable) << "nobody waits for it";
  files_.read_error = 0;
  clock_.advance(milliseconds(500));
  EXPECT_EQ(check_object(*store_, "k", 5000), StatusCode::ok);
  EXPECT_TRUE(store_->health().ok());
}

TEST_F(DyingDisk, EioOnWritesCostsWritesAlone) {
  files_.write_error = EIO;
  files_.write_errors = 1000;
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(put_object(*store_, "j", bytes_of("j", 5000)), StatusCode::ok);
    EXPECT_EQ(check_object(*store_, "k", 5000), StatusCode::ok);
  }
  EXPECT_FALSE(store_->health().ok());
  EXPECT_EQ(exists_object(*store_, "k"), StatusCode::ok);
  files_.write_errors = 0;
  clock_.advance(milliseconds(500));
  EXPECT_EQ(put_object(*store_, "j", bytes_of("j", 5000)), StatusCode::ok);
  EXPECT_TRUE(store_->health().ok());
}

TEST_F(DyingDisk, AFullDiskIsNoFailureOfTheStore) {
  files_.write_error = ENOSPC;
  files_.write_errors = 1000;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(put_object(*store_, "j", bytes_of("j", 5000)), StatusCode::resource_exhausted);
  }
  EXPECT_FALSE(store_->state().open);
  EXPECT_EQ(check_object(*store_, "k", 5000), StatusCode::ok);
}

}  // namespace
}  // namespace hitide
