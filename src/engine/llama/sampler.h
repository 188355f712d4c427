// Sampler: picks the next token from logits. Deterministic: equal options, seed and logits give
// equal tokens, whatever else runs.
//
// Order: biases, penalties, what may not end yet, grammar, temperature, top-k, top-p, min-p, draw.
// Without the first four the logits are used as they come. Threading: one thread per object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <hitide/types.h>

#include "base/random.h"
#include "engine/engine.h"

namespace hitide {

class Grammar;

constexpr TokenId kNoToken = -1;

class Sampler {
 public:
  // `seed` is used when the options have none.
  Sampler(const SamplingOptions& options, std::uint64_t seed);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Before the first pick(). `ends`: tokens that end the text, which options.tokens_min holds back.
  void begin(std::span<const TokenId> prompt, std::vector<TokenId> ends);
  void follow(std::unique_ptr<Grammar> grammar);

  // logits: [vocabulary], n >= 1. Not-a-number counts as minus infinity. With temperature <= 0 the
  // largest logit wins, the lowest id among equals. kNoToken: the grammar allows none.
  TokenId pick(std::span<const float> logits);
  // The token is part of the answer. False: the grammar does not allow it.
  bool accept(TokenId token);

 private:
  struct Candidate {
    float weight = 0.0f;  // a scaled logit, later a probability
    TokenId token = 0;
  };
  bool changes_logits() const;
  void change(std::span<float> logits) const;
  TokenId choose(std::span<const float> logits);
  void keep_top_k();
  void to_probabilities();
  void keep_top_p();
  void keep_min_p();
  TokenId draw();

  const SamplingOptions options_;
  Random random_;
  std::unique_ptr<Grammar> grammar_;         // none: any token
  std::vector<TokenId> ends_;                // only with tokens_min
  std::unordered_set<TokenId> seen_;         // in the prompt; only with a repetition penalty
  std::unordered_map<TokenId, int> counts_;  // in the answer; only with a penalty
  std::uint32_t accepted_ = 0;               // tokens of the answer
  std::vector<float> changed_;               // [vocabulary], reused from call to call
  std::vector<Candidate> candidates_;        // reused from call to call
};

}  // namespace hitide
