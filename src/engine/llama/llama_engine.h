// The llama.cpp engine: opens a GGUF model and serves it from the cache.
#pragma once

#include <memory>

#include <hitide/object_store.h>
#include <hitide/result.h>

#include "engine/engine.h"
#include "spec/serve_options.h"

namespace hitide {

// Loads the model, tries its cache (page_probe.h), opens the cache and starts the step loop. A
// model whose cache cannot be copied, or `cache.enabled` false, is served without a cache: info()
// says why, and one warning is logged in the first case. invalid_argument: an option, or the model
// file; not_found and other file codes: its path; resource_exhausted: memory.
Result<std::unique_ptr<Engine>> open_llama_engine(const EngineOptions& options,
                                                  const CacheOptions& cache);
// As above, with a store of the caller's (tests).
Result<std::unique_ptr<Engine>> open_llama_engine(const EngineOptions& options,
                                                  const CacheOptions& cache,
                                                  std::unique_ptr<ObjectStore> store);

}  // namespace hitide
