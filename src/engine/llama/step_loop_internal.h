// StepLoop's requests. Included by step_loop.cc and step_batch.cc only.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/llama/step_loop.h"

namespace hitide {

struct StepLoop::Generation {
  Generation(std::uint64_t number, GenerationRequest what, GenerationSink* where, TimePoint now,
             std::uint64_t seed)
      : id(number),
        request(std::move(what)),
        sink(where),
        tokens(std::move(request.prompt)),
        sampler(request.sampling, seed),
        text(std::move(request.stop), request.keep_stop),
        submitted(now) {
    result.prompt_tokens = static_cast<std::uint32_t>(tokens.size());
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(tokens.size()); }
  // One token is left to compute, and it was generated here.
  bool decoding() const { return started && computed + 1 == size() && !result.tokens.empty(); }

  std::uint64_t id;           // unchanged once it is handed to the loop
  GenerationRequest request;  // its prompt and stop strings have moved into the members below
  GenerationSink* const sink;

  std::vector<TokenId> tokens;  // the prompt and what has been generated
  std::unique_ptr<RequestPages> pages;
  SequenceId sequence;
  std::uint64_t ticket = 0;    // device items that must be executed before computing
  std::uint32_t computed = 0;  // tokens in place
  std::uint32_t reserved = 0;  // tokens for which there are pages
  bool admitted = false;
  bool started = false;                        // computing
  bool reported = false;                       // the sink knows of the admission
  bool committed = false;                      // the prompt is findable
  bool preempted = false;                      // goes back to the queue at the end of the step
  bool done = false;                           // the sink has been told; waits to be forgotten
  TimePoint stalled_since = TimePoint::max();  // has been waiting for room; max: not

  Sampler sampler;
  TextStream text;
  GenerationResult result;
  const TimePoint submitted;
};

}  // namespace hitide
