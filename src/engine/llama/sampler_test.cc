#include "engine/llama/sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

namespace hitide {
namespace {

// How often each token came up.
std::map<TokenId, int> draw_many(const SamplingOptions& options, std::vector<float> logits,
                                 int times) {
  Sampler sampler(options, 1);
  std::map<TokenId, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sampler.pick(logits)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler({.temperature = 0.0f, .seed = {}}, 1);
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(sampler.pick(std::vector<float>{-5, -4, -4.5}), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampler.pick(std::vector<float>{nan, 1, 2}), 2);
  EXPECT_EQ(sampler.pick(std::vector<float>{nan, nan}), 0);
}

TEST(Sampler, DrawsInProportionToProbabilities) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const auto counts = draw_many({.temperature = 1.0f, .seed = 7}, logits, 20000);
  EXPECT_NEAR(counts.at(0), 10000, 400);
  EXPECT_NEAR(counts.at(1), 6000, 400);
  EXPECT_NEAR(counts.at(2), 4000, 400);
}

TEST(Sampler, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits{1.0f, 0.0f};
  const auto cold = draw_many({.temperature = 0.1f, .seed = 7}, logits, 5000);
  const auto hot = draw_many({.temperature = 10.0f, .seed = 7}, logits, 5000);
  EXPECT_GT(cold.at(0), 4990);
  EXPECT_NEAR(hot.at(0), 5000 * 0.525, 200);
}

TEST(Sampler, TopKKeepsExactlyK) {
  const std::vector<float> logits{0, 1, 2, 3, 3};
  const auto counts = draw_many({.temperature = 1.0f, .top_k = 2, .seed = 3}, logits, 2000);
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts.at(3), 1000, 150);
  EXPECT_NEAR(counts.at(4), 1000, 150);
  EXPECT_EQ(draw_many({.temperature = 1.0f, .top_k = 1, .seed = 3}, {1, 5, 5}, 50).at(1), 50);
  // More than there are tokens: all of them.
  EXPECT_EQ(draw_many({.temperature = 1.0f, .top_k = 9, .seed = 3}, {1, 1}, 200).size(), 2u);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
  EXPECT_EQ(draw_many({.top_p = 0.4f, .seed = 1}, logits, 300).size(), 1u);
  EXPECT_EQ(draw_many({.top_p = 0.7f, .seed = 1}, logits, 3000).size(), 2u);
  EXPECT_EQ(draw_many({.top_p = 0.85f, .seed = 1}, logits, 3000).size(), 3u);
  EXPECT_EQ(draw_many({.top_p = 1.0f, .seed = 1}, logits, 3000).size(), 4u);
  // Nothing reaches zero: the most likely one stays.
  EXPECT_EQ(draw_many({.top_p = 0.0f, .seed = 1}, logits, 300).size(), 1u);
  // Equal logits all lie at the threshold of what is sorted.
  EXPECT_EQ(draw_many({.top_p = 0.5f, .seed = 1}, std::vector<float>(8, 1.0f), 3000).size(), 4u);
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.31f), std::log(0.09f)};
  EXPECT_EQ(draw_many({.min_p = 0.5f, .seed = 1}, logits, 3000).size(), 2u);
  EXPECT_EQ(draw_many({.min_p = 0.1f, .seed = 1}, logits, 3000).size(), 3u);
  EXPECT_EQ(draw_many({.min_p = 1.0f, .seed = 1}, logits, 300).size(), 1u);
}

TEST(Sampler, EqualSeedsGiveEqualTokensAndOthersDoNot) {
  const std::vector<float> logits(50, 0.0f);
  const auto run = [&](std::uint32_t seed) {
    Sampler sampler({.top_p = 0.9f, .seed = seed}, 99);
    std::vector<TokenId> out;
    for (int i = 0; i < 30; ++i) out.push_back(sampler.pick(logits));
    return out;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

TEST(Sampler, InfiniteLogitsDoNotBreakTheDraw) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(draw_many({.seed = 1}, {0, inf, 1}, 50).at(1), 50);
  EXPECT_EQ(draw_many({.seed = 1}, {-inf, 2, -inf}, 50).at(1), 50);
  EXPECT_EQ(draw_many({.seed = 1}, {-inf, -inf}, 200).size(), 2u);
}

// The answer so far is that of accept(); the prompt counts for repetition alone.
TokenId pick_after(const SamplingOptions& options, std::vector<TokenId> prompt,
                   const std::vector<TokenId>& answer, std::vector<float> logits) {
  Sampler sampler(options, 1);
  sampler.begin(prompt, {});
  for (const TokenId token : answer) EXPECT_TRUE(sampler.accept(token));
  return sampler.pick(logits);
}

SamplingOptions greedy() {
  SamplingOptions options;
  options.temperature = 0.0f;
  return options;
}

TEST(Sampler, PresenceCountsOnceAndFrequencyEachTime) {
  SamplingOptions presence = greedy();
  presence.presence_penalty = 1.0f;
  EXPECT_EQ(pick_after(presence, {0}, {}, {2.0f, 1.5f}), 0) << "the prompt does not count";
  EXPECT_EQ(pick_after(presence, {}, {0}, {2.0f, 1.5f}), 1);
  EXPECT_EQ(pick_after(presence, {}, {0, 0, 0}, {2.0f, 0.5f}), 0) << "once";
  SamplingOptions frequency = greedy();
  frequency.frequency_penalty = 0.5f;
  EXPECT_EQ(pick_after(frequency, {}, {0}, {2.0f, 1.4f}), 0);
  EXPECT_EQ(pick_after(frequency, {}, {0, 0}, {2.0f, 1.4f}), 1);
  frequency.frequency_penalty = -0.5f;
  EXPECT_EQ(pick_after(frequency, {}, {1}, {2.0f, 1.6f}), 1) << "negative ones draw";
}

TEST(Sampler, RepetitionScalesPromptAndAnswerOnce) {
  SamplingOptions options = greedy();
  options.repetition_penalty = 2.0f;
  EXPECT_EQ(pick_after(options, {0}, {}, {2.0f, 1.5f}), 1);
  EXPECT_EQ(pick_after(options, {}, {0}, {2.0f, 1.5f}), 1);
  EXPECT_EQ(pick_after(options, {0, 0}, {0, 0}, {2.0f, 0.9f}), 0) << "once, however often";
  EXPECT_EQ(pick_after(options, {0}, {}, {-1.0f, -1.5f}), 1) << "negative ones are multiplied";
}

TEST(Sampler, BiasesMoveTheChoice) {
  SamplingOptions options = greedy();
  options.logit_bias = {{1, 100.0f}};
  EXPECT_EQ(pick_after(options, {}, {}, {5.0f, -20.0f, 4.0f}), 1);
  options.logit_bias = {{0, -100.0f}};
  EXPECT_EQ(pick_after(options, {}, {}, {5.0f, -20.0f, 4.0f}), 2);
}

TEST(Sampler, EndsAreHeldBackUntilThereAreEnoughTokens) {
  SamplingOptions options = greedy();
  options.tokens_min = 2;
  Sampler sampler(options, 1);
  sampler.begin({}, {0});
  const std::vector<float> logits = {5.0f, 1.0f, 2.0f};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(sampler.pick(logits), 2);
    EXPECT_TRUE(sampler.accept(2));
  }
  EXPECT_EQ(sampler.pick(logits), 0);
}

// Options that change nothing leave the logits as they are, bit for bit.
TEST(Sampler, DefaultsPickWhatTheLogitsSay) {
  Random random(3);
  std::vector<float> logits(500);
  for (float& logit : logits) logit = static_cast<float>(random.next() % 1000) / 100.0f;
  Sampler plain(greedy(), 1);
  const TokenId first = plain.pick(logits);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(plain.accept(first));
    EXPECT_EQ(plain.pick(logits), first);
  }
}

}  // namespace
}  // namespace hitide
