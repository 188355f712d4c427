// The engine as `export` and `import` need it: which pages a prompt has, and of which model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/options.h>
#include <hitide/result.h>
#include <hitide/types.h>

#include "serve_arguments.h"
#include "warm_prompts.h"

namespace hitide::cli {

// A prompt by its text, or by its tokens.
struct NamedPrompt {
  WarmPrompt text = {};
  std::optional<std::vector<std::int64_t>> tokens = {};
};

struct LocatedPrompt {
  ModelSpec model = {};
  StorageOptions storage = {};     // as configured
  std::uint64_t tokens = 0;        // of the prompt
  std::vector<PageKey> keys = {};  // of its whole pages
};

// Opens the model with the options of `serve` that were given, and closes it again; no store is
// opened. prompt null: no keys. invalid_argument: an option; failed_precondition: a model that is
// served without a cache; else as open_llama_engine().
Result<LocatedPrompt> locate_prompt(const GivenOptions& given, const NamedPrompt* prompt);

}  // namespace hitide::cli
