#include "storage/breaker.h"

#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using Pass = Breaker::Pass;
using Verdict = Breaker::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr BreakerOptions kOptions = {
    .failures_to_open = 3, .pause_first = milliseconds(500), .pause_max = seconds(3)};

class BreakerTest : public testing::Test {
 protected:
  void fail(int times) {
    for (int i = 0; i < times; ++i) breaker_.report(breaker_.admit(), Verdict::bad);
  }
  ManualClock clock_;
  Breaker breaker_{kOptions, clock_};
};

TEST_F(BreakerTest, OpensAfterFailuresInARowOnly) {
  fail(2);
  breaker_.report(breaker_.admit(), Verdict::good);
  fail(2);
  breaker_.report(breaker_.admit(), Verdict::unknown);
  EXPECT_FALSE(breaker_.state().open);
  fail(1);
  EXPECT_TRUE(breaker_.state().open);
  EXPECT_EQ(breaker_.state().opened, 1u);
  EXPECT_EQ(breaker_.admit(), Pass::refused);
  EXPECT_EQ(breaker_.state().refused, 1u);
}

TEST_F(BreakerTest, OneProbeAtATimeAfterThePause) {
  fail(3);
  clock_.advance(milliseconds(499));
  EXPECT_EQ(breaker_.admit(), Pass::refused);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(breaker_.admit(), Pass::probe);
  EXPECT_EQ(breaker_.admit(), Pass::refused) << "the probe is still on its way";
  breaker_.report(Pass::probe, Verdict::good);
  EXPECT_EQ(breaker_.admit(), Pass::call);
}

TEST_F(BreakerTest, FailedProbesDoubleThePauseUpToItsLimit) {
  fail(3);
  Duration pause = milliseconds(500);
  for (int i = 0; i < 5; ++i) {
    clock_.advance(pause - Duration(1));
    EXPECT_EQ(breaker_.admit(), Pass::refused) << i;
    clock_.advance(Duration(1));
    ASSERT_EQ(breaker_.admit(), Pass::probe) << i;
    breaker_.report(Pass::probe, Verdict::bad);
    pause = std::min<Duration>(pause * 2, seconds(3));
  }
  clock_.advance(pause);
  breaker_.report(breaker_.admit(), Verdict::good);
  fail(3);
  EXPECT_EQ(breaker_.state().next_probe, clock_.now() + milliseconds(500)) << "it starts anew";
  EXPECT_EQ(breaker_.state().opened, 2u);
}

TEST_F(BreakerTest, AProbeOfUnknownOutcomeIsFollowedByAnother) {
  fail(3);
  clock_.advance(milliseconds(500));
  breaker_.report(breaker_.admit(), Verdict::unknown);
  EXPECT_TRUE(breaker_.state().open);
  EXPECT_EQ(breaker_.admit(), Pass::probe);
}

TEST_F(BreakerTest, LateReportsOfOldCallsChangeNothing) {
  const Pass old = breaker_.admit();
  fail(3);
  breaker_.report(old, Verdict::good);
  EXPECT_TRUE(breaker_.state().open);
  breaker_.report(old, Verdict::bad);
  EXPECT_EQ(breaker_.state().opened, 1u);
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

}  // namespace
}  // namespace hitide
