#include "engine/llama/logprobs.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace hitide {
namespace {

TEST(Logprobs, AreThoseOfTheSoftmax) {
  const std::vector<float> logits = {std::log(0.5f) + 9, std::log(0.3f) + 9, std::log(0.2f) + 9};
  const TokenLogprob logprob = logprob_of(logits, 1, 2);
  EXPECT_EQ(logprob.token, 1);
  EXPECT_NEAR(logprob.logprob, std::log(0.3), 1e-5);
  ASSERT_EQ(logprob.top.size(), 2u);
  EXPECT_EQ(logprob.top[0].token, 0);
  EXPECT_NEAR(logprob.top[0].logprob, std::log(0.5), 1e-5);
  EXPECT_EQ(logprob.top[1].token, 1);
  EXPECT_EQ(logprob.top[1].logprob, logprob.logprob);
}

TEST(Logprobs, LargeLogitsDoNotOverflow) {
  const TokenLogprob logprob = logprob_of(std::vector<float>{3e38f, -3e38f, 0.0f}, 0, 3);
  EXPECT_EQ(logprob.logprob, 0.0f);
  EXPECT_EQ(logprob.top[1].logprob, -9999.0f);
}

TEST(Logprobs, EqualOnesComeByIdAndNoMoreThanThereAre) {
  const TokenLogprob logprob = logprob_of(std::vector<float>{1, 1, 1}, 2, 20);
  ASSERT_EQ(logprob.top.size(), 3u);
  for (TokenId i = 0; i < 3; ++i) EXPECT_EQ(logprob.top[static_cast<std::size_t>(i)].token, i);
  EXPECT_TRUE(logprob_of(std::vector<float>{1, 1, 1}, 2, 0).top.empty());
}

TEST(Logprobs, WhatIsNoNumberHasNoProbability) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(logprob_of(std::vector<float>{nan, 1.0f}, 0, 0).logprob, -9999.0f);
  EXPECT_EQ(logprob_of(std::vector<float>{nan, 1.0f}, 1, 0).logprob, 0.0f);
  EXPECT_EQ(logprob_of(std::vector<float>{-infinity, 1.0f}, 0, 0).logprob, -9999.0f);
  EXPECT_EQ(logprob_of(std::vector<float>{nan, nan}, 1, 2).logprob, -9999.0f);
}

}  // namespace
}  // namespace hitide
