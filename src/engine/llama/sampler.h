// Sampler: picks the next token from logits. Deterministic: equal options, seed and logits give
// equal tokens, whatever else runs.
//
// Order: temperature, top-k, top-p, min-p, draw. Threading: one thread per object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <hitide/types.h>

#include "base/random.h"
#include "engine/engine.h"

namespace hitide {

class Sampler {
 public:
  // `seed` is used when the options have none.
  Sampler(const SamplingOptions& options, std::uint64_t seed);

  // logits: [vocabulary], n >= 1. Not-a-number counts as minus infinity. With temperature <= 0 the
  // largest logit wins, the lowest id among equals.
  TokenId pick(std::span<const float> logits);

 private:
  struct Candidate {
    float weight = 0.0f;  // a scaled logit, later a probability
    TokenId token = 0;
  };
  void keep_top_k();
  void to_probabilities();
  void keep_top_p();
  void keep_min_p();
  TokenId draw();

  const SamplingOptions options_;
  Random random_;
  std::vector<Candidate> candidates_;  // reused from call to call
};

}  // namespace hitide
