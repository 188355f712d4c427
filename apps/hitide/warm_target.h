// Who computes the prompts of `hitide warm`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <hitide/result.h>

#include "serve_arguments.h"
#include "warm_prompts.h"

namespace hitide::cli {

struct WarmedPrompt {
  std::uint64_t tokens = 0;
  std::uint64_t cached = 0;  // of which some tier had so many already
};

class WarmTarget {
 public:
  virtual ~WarmTarget() = default;
  // unavailable: nobody is there, and the other prompts need not be tried. Anything else is this
  // prompt's own failure.
  virtual Result<WarmedPrompt> compute(const WarmPrompt& prompt) = 0;
  // Pages that were written to storage meanwhile, once all of them are; -1: not known.
  virtual Result<std::int64_t> finish() = 0;
};

// A model of our own, with the options of `serve` that were given. invalid_argument: an option.
Result<std::unique_ptr<WarmTarget>> open_warm_engine(const GivenOptions& given);

}  // namespace hitide::cli
