// What `hitide serve` needs before it serves: settings out of files and the environment, a first
// look at the model file, and the lines that say what was started.
#pragma once

#include <string>
#include <string_view>

#include "engine/engine.h"
#include "spec/serve_options.h"

namespace hitide {

// `level` is one of those of --log-level.
void set_log_level_by_name(std::string_view level);

// Says in the log what would name a directory for the file store.
void warn_of_no_store_path();

// Finds what is wrong with a model path before minutes of loading, in words: not there, a
// directory, not readable, not GGUF.
Status check_model_file(const std::string& path);

// Lines about model, exactness and cache, each with its line break.
std::string start_lines(const EngineInfo& info, const CacheStats& stats,
                        const ServeOptions& options, std::string_view version);

}  // namespace hitide
