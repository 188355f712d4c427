// The probe: before anything is cached it is tried, on the context that will serve, whether a page
// can be saved and restored so that the logits behind it are the same bits, how many bytes a page
// has, whether the shape of batches changes logits, and how fast prefill is.
//
// Threading: the context must not be used elsewhere meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include <hitide/result.h>

#include "engine/llama/llama_model.h"

namespace hitide {

struct ProbePlan {
  std::uint32_t page_size = 0;
  std::uint32_t physical_count = 0;  // ids of the context, >= 4; the last one is the scratch
  std::uint32_t vocabulary = 0;
};

struct ProbeReport {
  std::uint64_t page_bytes = 0;
  std::string page_digest;  // hex SHA-256 of a page of fixed tokens: changes with the numerics
  bool same_logits_by_token = false;  // token by token gives the same bits as one batch
  double prefill_tokens_per_s = 0.0;
};

// Costs one page and two dozen tokens of computing; the context is empty afterwards.
// unimplemented: the context's cache cannot be copied faithfully, with what was seen; internal:
// llama.cpp could not compute.
Result<ProbeReport> probe_pages(llama_context& context, const ProbePlan& plan);

// Whether this architecture's cache can be copied, as far as its name tells.
enum class Copyability : std::uint8_t {
  yes,      // known to work; probe_pages still verifies it
  no,       // recurrent, hybrid, or aborts the process on a range copy
  unknown,  // try it in a child process first
};
Copyability copyability_of(const std::string& architecture);

// Runs probe_pages in a forked child, where llama.cpp may abort. Takes the time of loading the
// model once more. Call it before this process has initialised a GPU back end or started threads of
// its own that hold locks. unimplemented: the probe failed there, crashed, or took longer than
// `limit`.
Status probe_in_child(const std::string& model_path, const ContextPlan& context,
                      const ProbePlan& plan, Duration limit);

}  // namespace hitide
