// From options and a model file to a context that is ready to serve: which KV type, how many cells,
// whether its cache can be copied, and how exact it is.
#pragma once

#include <cstdint>
#include <string>

#include <hitide/model_spec.h>
#include <hitide/result.h>

#include "engine/engine.h"
#include "engine/llama/llama_device.h"
#include "engine/llama/llama_model.h"
#include "spec/serve_options.h"

namespace hitide {

struct EngineSetup {
  LlamaModelPtr model;
  LlamaContextPtr context;  // empty of tokens
  LlamaDeviceOptions device;
  ModelSpec spec;                     // only when info.cache_on
  EngineInfo info;                    // without the storage part
  double prefill_tokens_per_s = 0.0;  // measured; 0: not
};

// Errors as open_llama_engine.
Result<EngineSetup> set_up_engine(const EngineOptions& options, const CacheOptions& cache);

}  // namespace hitide
