#include "engine/llama/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/llama/grammar.h"

namespace hitide {
namespace {

// More likely first; the lower id among equals, so that the order does not depend on the sort.
constexpr auto kMoreLikely = [](const auto& a, const auto& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
};

}  // namespace

Sampler::Sampler(const SamplingOptions& options, std::uint64_t seed)
    : options_(options), random_(options.seed ? *options.seed : seed) {}

Sampler::~Sampler() = default;

void Sampler::begin(std::span<const TokenId> prompt, std::vector<TokenId> ends) {
  if (options_.repetition_penalty != 1.0f) seen_.insert(prompt.begin(), prompt.end());
  if (options_.tokens_min > 0) ends_ = std::move(ends);
}

void Sampler::follow(std::unique_ptr<Grammar> grammar) { grammar_ = std::move(grammar); }

bool Sampler::changes_logits() const {
  const bool penalties = options_.presence_penalty != 0.0f || options_.frequency_penalty != 0.0f ||
                         options_.repetition_penalty != 1.0f;
  return penalties || !options_.logit_bias.empty() || accepted_ < options_.tokens_min;
}

void Sampler::change(std::span<float> logits) const {
  const auto at = [&](TokenId token) -> float& { return logits[static_cast<std::size_t>(token)]; };
  for (const auto& [token, bias] : options_.logit_bias) at(token) += bias;
  const float repetition = options_.repetition_penalty;
  const auto repeat = [&](TokenId token) {
    float& logit = at(token);
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
  };
  if (repetition != 1.0f) {
    for (const TokenId token : seen_) repeat(token);
  }
  for (const auto& [token, count] : counts_) {
    if (repetition != 1.0f && seen_.count(token) == 0) repeat(token);
    at(token) -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count);
  }
  if (accepted_ < options_.tokens_min) {
    for (const TokenId token : ends_) at(token) = -std::numeric_limits<float>::infinity();
  }
}

TokenId Sampler::pick(std::span<const float> logits) {
  if (!changes_logits() && !grammar_) return choose(logits);
  changed_.assign(logits.begin(), logits.end());
  change(changed_);
  TokenId token = choose(changed_);
  // Most often what the model likes best is allowed, which is cheaper to ask than all tokens.
  if (!grammar_ || grammar_->allows(token)) return token;
  if (!grammar_->mask(changed_)) return kNoToken;
  token = choose(changed_);
  return token;
}

bool Sampler::accept(TokenId token) {
  ++accepted_;
  const bool counts = options_.presence_penalty != 0.0f || options_.frequency_penalty != 0.0f ||
                      options_.repetition_penalty != 1.0f;
  if (counts) ++counts_[token];
  return !grammar_ || grammar_->accept(token);
}

TokenId Sampler::choose(std::span<const float> logits) {
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
  TokenId last = candidates_.back().token;  // for what rounding leaves over
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight > 0.0f) last = candidate.token;
    point -= candidate.weight;
    if (point < 0.0) return candidate.token;
  }
  return last;
}

}  // namespace hitide
