#include "engine/llama/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hitide {
namespace {

// More likely first; the lower id among equals, so that the order does not depend on the sort.
constexpr auto kMoreLikely = [](const auto& a, const auto& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
};

}  // namespace

Sampler::Sampler(const SamplingOptions& options, std::uint64_t seed)
    : options_(options), random_(options.seed ? *options.seed : seed) {}

TokenId Sampler::pick(std::span<const float> logits) {
  if (!(options_.temperature > 0.0f)) {
    TokenId best = 0;
    float best_logit = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > best_logit) {
        best_logit = logits[i];
        best = static_cast<TokenId>(i);
      }
    }
    return best;
  }
  candidates_.clear();
  candidates_.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float scaled = logits[i] / options_.temperature;
    candidates_.push_back(
        {.weight = std::isnan(scaled) ? -std::numeric_limits<float>::infinity() : scaled,
         .token = static_cast<TokenId>(i)});
  }
  keep_top_k();
  to_probabilities();
  keep_top_p();
  keep_min_p();
  return draw();
}

void Sampler::keep_top_k() {
  if (options_.top_k <= 0 || static_cast<std::size_t>(options_.top_k) >= candidates_.size()) return;
  const auto end = candidates_.begin() + options_.top_k;
  std::nth_element(candidates_.begin(), end - 1, candidates_.end(), kMoreLikely);
  candidates_.erase(end, candidates_.end());
  std::sort(candidates_.begin(), candidates_.end(), kMoreLikely);
}

void Sampler::to_probabilities() {
  float max = -std::numeric_limits<float>::infinity();
  for (const Candidate& candidate : candidates_) max = std::max(max, candidate.weight);
  double sum = 0.0;
  for (Candidate& candidate : candidates_) {
    // Infinite logits: those at the maximum share all of the probability.
    candidate.weight = candidate.weight == max ? 1.0f : std::exp(candidate.weight - max);
    sum += candidate.weight;
  }
  for (Candidate& candidate : candidates_) {
    candidate.weight = static_cast<float>(candidate.weight / sum);
  }
}

// The smallest set of the most likely tokens whose probabilities reach top_p.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1.0f) return;
  // What lies below this threshold sums to less than 1 - top_p, so the set is found without it, and
  // only the rest needs sorting.
  const float floor =
      std::max(0.0f, 1.0f - options_.top_p) / static_cast<float>(candidates_.size());
  const auto likely = std::partition(candidates_.begin(), candidates_.end(),
                                     [floor](const Candidate& c) { return c.weight >= floor; });
  if (likely != candidates_.begin()) candidates_.erase(likely, candidates_.end());
  std::sort(candidates_.begin(), candidates_.end(), kMoreLikely);
  double sum = 0.0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    sum += candidates_[i].weight;
    if (sum >= static_cast<double>(options_.top_p)) {
      candidates_.resize(i + 1);
      return;
    }
  }
}

// Tokens at least min_p times as likely as the most likely one.
void Sampler::keep_min_p() {
  if (options_.min_p <= 0.0f) return;
  float max = 0.0f;
  for (const Candidate& candidate : candidates_) max = std::max(max, candidate.weight);
  const float floor = std::min(options_.min_p, 1.0f) * max;
  std::erase_if(candidates_, [floor](const Candidate& c) { return c.weight < floor; });
}

TokenId Sampler::draw() {
  double sum = 0.0;
  for (const Candidate& candidate : candidates_) sum += candidate.weight;
  double point = static_cast<double>(random_.next() >> 11) * 0x1.0p-53 * sum;
  for (const Candidate& candidate : candidates_) {
    point -= candidate.weight;
    if (point < 0.0) return candidate.token;
  }
  return candidates_.back().token;  // rounding
}

}  // namespace hitide
