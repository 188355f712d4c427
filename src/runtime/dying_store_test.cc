// A store that fails, fills up or hangs: what requests notice of it, and that it serves again.
#include <thread>

#include <gtest/gtest.h>
#include <hitide/cache.h>

#include "base/log.h"
#include "storage/memory/memory_store.h"
#include "tests/support/cache_rig.h"
#include "tests/support/fault_store.h"

namespace hitide {
namespace {

constexpr Duration kWaitMost = std::chrono::milliseconds(50);

CacheOptions dying_options() {
  CacheOptions options = small_options();
  options.policy.prefetch_timeout_base_s = to_seconds(kWaitMost);
  options.policy.prefetch_timeout_per_ki_token_s = 0;
  options.storage.breaker.hang_limit = std::chrono::milliseconds(100);
  options.storage.breaker.hang_slack = std::chrono::milliseconds(100);
  options.storage.breaker.pause_first = std::chrono::milliseconds(10);
  options.storage.breaker.pause_max = std::chrono::milliseconds(50);
  options.storage.failed_key_pause = std::chrono::milliseconds(10);
  return options;
}

class DyingStoreTest : public testing::Test {
 protected:
  static constexpr int kPrompts = 40;  // that the store holds

  DyingStoreTest() {
    set_log_level(LogLevel::error);
    auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
    store_ = owned.get();
    rig_ = std::make_unique<Rig>(dying_options(), std::move(owned));
    for (int i = 0; i < kPrompts; ++i) {
      rig_->run(prompt(i));
      rig_->settle();
      EXPECT_TRUE(rig_->cache().flush().ok());
    }
  }
  ~DyingStoreTest() override {
    rig_.reset();
    set_log_level(LogLevel::info);
  }

  static Tokens prompt(int number) { return sequence_of(50, 1000 * number); }
  // A prompt that neither device nor host have.
  Explanation ask_next() {
    EXPECT_LT(next_, kPrompts) << "it took too long";
    return rig_->run(prompt(next_++));
  }
  bool serves_again() {
    const TimePoint deadline = soon();
    while (std::chrono::steady_clock::now() < deadline) {
      const Explanation explanation = rig_->run(prompt(0));
      if (explanation.served_tokens(Tier::storage) == 48) return true;
      rig_->settle();
      EXPECT_TRUE(rig_->cache().flush().ok());
    }
    return false;
  }

  int next_ = 1;
  FaultStore* store_ = nullptr;
  std::unique_ptr<Rig> rig_;
};

TEST_F(DyingStoreTest, AHangCostsItsDeadlineOnceAndThenNothing) {
  store_->hold(StoreCall::get, false);  // heeds no deadline, as a disk in trouble does
  Explanation explanation = ask_next();
  EXPECT_EQ(explanation.missed.front().reason, MissReason::deadline);
  EXPECT_GE(explanation.storage_wait, kWaitMost);
  // Once the call is overdue nobody waits any more.
  while (explanation.missed.front().reason == MissReason::deadline && next_ < kPrompts) {
    EXPECT_LT(explanation.storage_wait, 20 * kWaitMost);
    explanation = ask_next();
  }
  EXPECT_EQ(explanation.missed.front().reason, MissReason::storage_failed);
  EXPECT_LT(explanation.storage_wait, kWaitMost);
  EXPECT_EQ(rig_->cache().stats().storage_status, StorageStatus::failing);
  EXPECT_NE(rig_->cache().stats().storage_detail.find("does not return"), std::string::npos);
  store_->release(StoreCall::get);
  EXPECT_TRUE(serves_again());
  EXPECT_EQ(rig_->cache().stats().storage_status, StorageStatus::on);
  EXPECT_GE(rig_->cache().stats().storage.outages, 1u);
}

TEST_F(DyingStoreTest, EioIsRefusedAtOnceAndServesAgainByItself) {
  store_->add({.call = StoreCall::get, .code = StatusCode::unavailable});
  store_->add({.call = StoreCall::exists, .code = StatusCode::unavailable});
  const TimePoint deadline = soon();
  while (rig_->cache().stats().storage_status != StorageStatus::failing &&
         std::chrono::steady_clock::now() < deadline) {
    EXPECT_EQ(ask_next().missed.front().reason, MissReason::storage_failed);
  }
  EXPECT_EQ(rig_->cache().stats().storage_status, StorageStatus::failing);
  store_->clear_faults();
  EXPECT_TRUE(serves_again());
}

TEST_F(DyingStoreTest, EnospcCostsBackupsAlone) {
  store_->add({.call = StoreCall::put, .code = StatusCode::resource_exhausted});
  const Tokens other = sequence_of(50, 700);
  for (int i = 0; i < 5; ++i) {
    rig_->run(other);
    rig_->settle();
    EXPECT_EQ(rig_->cache().stats().storage_status, StorageStatus::on);
  }
  EXPECT_GT(rig_->cache().stats().backup_dropped_pages_storage, 0u);
  EXPECT_TRUE(serves_again()) << "what is there is still served";
  store_->clear_faults();
  rig_->run(other);
  rig_->settle();
  ASSERT_TRUE(rig_->cache().flush().ok());
  EXPECT_EQ(rig_->run(other).served_tokens(Tier::storage), 48u);
}

// What nobody asks for again costs no writes; the core's retries are no second touch.
TEST(SecondTouchTest, APromptIsStoredWhenItIsUsedAgain) {
  auto owned = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
  FaultStore& store = *owned;
  CacheOptions options = small_options();
  options.storage.second_touch = true;
  Rig rig(options, std::move(owned));
  for (int i = 0; i < 20; ++i) {
    rig.run(sequence_of(50, 1000 * i));
    rig.settle();
    ASSERT_TRUE(rig.cache().flush().ok());
  }
  EXPECT_EQ(store.stats().objects, 0u);
  rig.run(sequence_of(50, 3000));
  rig.settle();
  EXPECT_EQ(store.stats().objects, 12u);
  ASSERT_TRUE(rig.cache().flush().ok());
  EXPECT_EQ(rig.run(sequence_of(50, 3000)).served_tokens(Tier::storage), 48u);
}

}  // namespace
}  // namespace hitide
