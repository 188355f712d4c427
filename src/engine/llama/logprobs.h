// Log probabilities of tokens as the model gives them: from its logits as they are, before
// temperature, penalties, biases and grammar.
#pragma once

#include <cstdint>
#include <span>

#include <hitide/types.h>

#include "engine/engine.h"

namespace hitide {

// Of `token`, with the `top` most likely ones (the lower id first among equals); without the bytes.
// logits: [vocabulary], n >= 1; not-a-number counts as minus infinity, and what has no probability
// is said to have -9999. Cost: linear in the vocabulary.
TokenLogprob logprob_of(std::span<const float> logits, TokenId token, std::uint32_t top);

}  // namespace hitide
