#include "storage/failed_keys.h"

#include <string>

#include <gtest/gtest.h>

#include "base/clock.h"

namespace hitide {
namespace {

using std::chrono::seconds;

class FailedKeysTest : public testing::Test {
 protected:
  TimePoint now() { return clock_.now(); }
  std::optional<StatusCode> why(std::string_view key) { return keys_.why(key, now()); }

  ManualClock clock_;
  FailedKeys keys_{{.keys_max = 3, .pause = seconds(30)}};
};

TEST_F(FailedKeysTest, APlainMissIsNeverNoted) {
  keys_.failed("k", StatusCode::not_found, now());
  keys_.failed("k", StatusCode::deadline_exceeded, now());
  EXPECT_EQ(why("k"), std::nullopt);
  EXPECT_EQ(keys_.size(now()), 0u);
}

TEST_F(FailedKeysTest, WhatWasThereAndCouldNotBeLoadedIsNoted) {
  keys_.seen("gone", now());
  keys_.failed("gone", StatusCode::not_found, now());
  keys_.seen("slow", now());
  keys_.failed("slow", StatusCode::deadline_exceeded, now());
  keys_.failed("damaged", StatusCode::data_loss, now());
  EXPECT_EQ(why("gone"), StatusCode::not_found);
  EXPECT_EQ(why("slow"), StatusCode::deadline_exceeded);
  EXPECT_EQ(why("damaged"), StatusCode::data_loss);
  EXPECT_EQ(why("other"), std::nullopt);
  EXPECT_EQ(keys_.counters().noted.value(), 3u);
  EXPECT_EQ(keys_.counters().spared.value(), 3u);
}

// A store that is away says nothing of a key.
TEST_F(FailedKeysTest, FailuresOfTheStoreAreNotTheKeys) {
  keys_.seen("k", now());
  for (const StatusCode code : {StatusCode::ok, StatusCode::unavailable, StatusCode::internal,
                                StatusCode::cancelled, StatusCode::resource_exhausted}) {
    keys_.failed("k", code, now());
  }
  EXPECT_EQ(why("k"), std::nullopt);
}

TEST_F(FailedKeysTest, ItEndsWithThePauseOrAStore) {
  keys_.failed("a", StatusCode::data_loss, now());
  clock_.advance(seconds(20));
  keys_.failed("b", StatusCode::data_loss, now());
  keys_.failed("c", StatusCode::data_loss, now());
  keys_.forget("c");
  EXPECT_EQ(why("c"), std::nullopt);
  clock_.advance(seconds(10));
  EXPECT_EQ(why("a"), std::nullopt);
  EXPECT_EQ(why("b"), StatusCode::data_loss);
  clock_.advance(seconds(20));
  EXPECT_EQ(why("b"), std::nullopt);
}

TEST_F(FailedKeysTest, ANewFailureBeginsThePauseAnew) {
  keys_.failed("a", StatusCode::data_loss, now());
  clock_.advance(seconds(29));
  keys_.failed("a", StatusCode::data_loss, now());
  clock_.advance(seconds(29));
  EXPECT_EQ(why("a"), StatusCode::data_loss);
  EXPECT_EQ(keys_.size(now()), 1u);
}

TEST_F(FailedKeysTest, TheOldestGoWhereThereAreTooMany) {
  for (int i = 0; i < 10; ++i) {
    keys_.failed(std::to_string(i), StatusCode::data_loss, now());
    EXPECT_LE(keys_.size(now()), 3u);
  }
  EXPECT_EQ(why("6"), std::nullopt);
  EXPECT_EQ(why("7"), StatusCode::data_loss);
}

TEST_F(FailedKeysTest, NoneAreKeptWhereNoneAreWanted) {
  FailedKeys off({.keys_max = 0});
  off.failed("k", StatusCode::data_loss, now());
  EXPECT_EQ(off.why("k", now()), std::nullopt);
}

TEST_F(FailedKeysTest, WhatWasSeenLongAgoIsAPlainMissAgain) {
  keys_.seen("k", now());
  clock_.advance(seconds(200));
  keys_.seen("j", now());
  keys_.failed("k", StatusCode::not_found, now());
  EXPECT_EQ(why("k"), std::nullopt);
}

}  // namespace
}  // namespace hitide
