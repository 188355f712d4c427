// From a prompt of a file to the tokens that a request with it has.
#pragma once

#include <vector>

#include <hitide/result.h>

#include "engine/engine.h"
#include "warm_prompts.h"

namespace hitide::cli {

// With the model's chat template where the prompt is a chat. invalid_argument: no template fits.
Result<std::vector<TokenId>> prompt_tokens(const Engine& engine, const WarmPrompt& prompt);

}  // namespace hitide::cli
