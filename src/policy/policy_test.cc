#include <gtest/gtest.h>

#include "policy/prefetch_policy.h"
#include "policy/write_policy.h"

namespace hitide {
namespace {

using std::chrono::duration;
double timeout_s(std::uint32_t tokens, double tokens_per_s) {
  return duration<double>(prefetch_wait({}, {.tokens = tokens}, PrefillSpeed(tokens_per_s)))
      .count();
}

TEST(PrefetchTimeout, FormulaCapAndRecomputeTime) {
  EXPECT_NEAR(timeout_s(0, 0), 1.0, 1e-6);
  EXPECT_NEAR(timeout_s(1024, 0), 1.25, 1e-6);
  EXPECT_NEAR(timeout_s(1 << 20, 0), 30.0, 1e-6) << "257 s without the cap";
  EXPECT_NEAR(timeout_s(1024, 2048.0), 0.5, 1e-6) << "never longer than computing it again";
  EXPECT_NEAR(timeout_s(1024, 1e9), 1e-6, 1e-6);
}

TEST(PrefetchWait, WaitCompleteIsBoundedByTheCallsAlone) {
  PolicyOptions policy;
  policy.prefetch_policy = PrefetchPolicy::wait_complete;
  policy.prefetch_timeout_base_s = 0;
  policy.prefetch_timeout_max_s = 0;
  const PrefetchSpan span{.tokens = 1024, .bytes = 640ull << 20};
  const Duration wait = prefetch_wait(policy, span, PrefillSpeed(1e9));
  EXPECT_GT(wait, storage_call_limit(0) + storage_call_limit(span.bytes));
  EXPECT_LT(wait, std::chrono::seconds(20));
}

TEST(PrefetchChoice, ThresholdAndOccupancy) {
  const PolicyOptions policy;
  EXPECT_EQ(choose_prefetch(policy, 255, 0, 100), PrefetchChoice::below_threshold);
  EXPECT_EQ(choose_prefetch(policy, 256, 49, 100), PrefetchChoice::ask);
  EXPECT_EQ(choose_prefetch(policy, 256, 50, 100), PrefetchChoice::rate_limited);
}

TEST(PrefillSpeed, FollowsMeasurementsAndIgnoresShortRuns) {
  PrefillSpeed speed(0);
  EXPECT_FALSE(speed.known());
  EXPECT_EQ(speed.predict(100), Duration::max());
  speed.note(4, std::chrono::seconds(1));
  EXPECT_FALSE(speed.known());
  speed.note(100, std::chrono::seconds(1));
  EXPECT_DOUBLE_EQ(speed.tokens_per_s(), 100.0);
  speed.note(200, std::chrono::seconds(1));
  EXPECT_DOUBLE_EQ(speed.tokens_per_s(), 125.0);
  speed.note(200, Duration::zero());
  EXPECT_DOUBLE_EQ(speed.tokens_per_s(), 125.0);
}

TEST(WritePolicy, WriteThroughAtTheFirstCommit) {
  EXPECT_FALSE(backup_now(WritePolicy::write_through, 0));
  EXPECT_FALSE(backup_now(WritePolicy::write_through_selective, 1));
  EXPECT_TRUE(backup_now(WritePolicy::write_through_selective, 2));
  EXPECT_TRUE(backup_now(WritePolicy::write_through, 1));
}

}  // namespace
}  // namespace hitide
