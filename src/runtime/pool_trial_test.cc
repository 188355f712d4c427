#include "runtime/pool_trial.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"

namespace hitide {
namespace {

using Path = RegistrationPath;
using Verdict = RegistrationVerdict;

PoolSpec pool(const std::string& name, std::uint64_t page_bytes, bool required = true) {
  PoolSpec spec;
  spec.name = name;
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  if (name != "kv") spec.index_source = "kv";
  spec.required = required;
  return spec;
}

// A target with a draft, or a logical anchor with a side pool, over a store that fails on command.
class PoolTrialTest : public testing::Test {
 protected:
  void use(bool logical, std::uint64_t store_bytes = 16u << 20) {
    store_ = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(store_bytes));
    model_.pools = {pool("kv", logical ? 0 : 9000), pool("draft", 3000, logical)};
    host_.clear();
    rows_.clear();
    for (const PoolSpec& spec : model_.pools) {
      host_.push_back(spec.page_bytes == 0 ? nullptr : HostPool::create(spec, 5).value());
      rows_.push_back({.pool = spec.name, .required = spec.required});
      rows_.back().path = spec.page_bytes == 0 ? Path::markers_only : Path::zero_copy;
    }
  }
  void run() { try_pools(*store_, model_, host_, SystemClock::instance().now() + kWait, rows_); }

  static constexpr Duration kWait = std::chrono::seconds(60);
  ModelSpec model_;
  std::unique_ptr<FaultStore> store_;
  std::vector<std::unique_ptr<HostPool>> host_;
  std::vector<PoolRegistration> rows_;
};

TEST_F(PoolTrialTest, WhatComesBackIsOnAndNothingStaysBehind) {
  for (const bool logical : {false, true}) {
    use(logical);
    run();
    for (const PoolRegistration& row : rows_) {
      EXPECT_TRUE(row.on()) << row.reason;
      EXPECT_NE(row.measured.find("5 pages put in"), std::string::npos) << row.measured;
    }
    const StoreStats stats = store_->stats();
    EXPECT_EQ(stats.puts, 10u);
    EXPECT_EQ(stats.objects, 0u);
  }
}

TEST_F(PoolTrialTest, PoolsThatAreOffAreLeftAlone) {
  use(false);
  rows_[1].path = Path::off;
  run();
  EXPECT_EQ(store_->stats().puts, 5u);
  EXPECT_EQ(rows_[1].path, Path::off);
  EXPECT_EQ(rows_[1].measured, "");
  EXPECT_TRUE(rows_[0].on());
}

TEST_F(PoolTrialTest, AnOptionalPoolWhosePagesDoNotComeBackIsOffByItself) {
  for (const auto kind : {StoreFault::Kind::flipped_bit, StoreFault::Kind::lost}) {
    use(false);
    store_->add({.call = StoreCall::get, .kind = kind, .key_part = "draft", .skip = 3, .times = 1});
    run();
    EXPECT_EQ(rows_[1].path, Path::off);
    EXPECT_EQ(rows_[1].verdict, Verdict::ok);
    EXPECT_NE(rows_[1].reason.find("get of page 3 of 5"), std::string::npos) << rows_[1].reason;
    EXPECT_TRUE(rows_[0].on());
    EXPECT_TRUE(storage_on(rows_));
  }
}

TEST_F(PoolTrialTest, ARequiredPoolThatCannotBePutTurnsL3Off) {
  use(true);
  store_->add({.call = StoreCall::put, .code = StatusCode::unavailable, .key_part = "draft"});
  run();
  EXPECT_EQ(rows_[1].verdict, Verdict::client_down);
  EXPECT_NE(rows_[1].reason.find("put of page 0 of 5"), std::string::npos) << rows_[1].reason;
  EXPECT_EQ(rows_[0].path, Path::off);
  EXPECT_FALSE(storage_on(rows_));
}

TEST_F(PoolTrialTest, AStoreThatIsTooSmallSaysSo) {
  use(false, 20'000);
  run();
  EXPECT_EQ(rows_[0].path, Path::off);
  EXPECT_FALSE(storage_on(rows_));
}

TEST_F(PoolTrialTest, NothingBeginsAfterTheDeadline) {
  use(false);
  try_pools(*store_, model_, host_, SystemClock::instance().now() - kWait, rows_);
  EXPECT_FALSE(storage_on(rows_));
  EXPECT_EQ(rows_[0].verdict, Verdict::client_down);
  EXPECT_EQ(store_->stats().puts, 0u);
}

}  // namespace
}  // namespace hitide
