#include "prompt_engine.h"

#include <chrono>
#include <memory>
#include <utility>

#include <hitide/page_hash.h>

#include "engine/llama/llama_engine.h"
#include "engine_prompt.h"
#include "serve_options_of.h"
#include "server/setup.h"

namespace hitide::cli {
namespace {

Result<std::vector<std::int64_t>> tokens_of(const Engine& engine, const NamedPrompt& prompt) {
  if (prompt.tokens) return *prompt.tokens;
  HITIDE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, prompt_tokens(engine, prompt.text));
  return std::vector<std::int64_t>(ids.begin(), ids.end());
}

}  // namespace

Result<LocatedPrompt> locate_prompt(const GivenOptions& given, const NamedPrompt* prompt) {
  HITIDE_ASSIGN_OR_RETURN(ReadOptions read, read_serve_options(given));
  set_log_level_by_name(read.options.server.log_level);
  log_storage_config(read.storage);
  EngineOptions& engine_options = read.options.engine;
  HITIDE_RETURN_IF_ERROR(check_model_file(engine_options.model_path));
  CacheOptions cache = read.options.cache;
  cache.storage = StorageOptions{.backend = "none"};
  HITIDE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                          open_llama_engine(engine_options, cache));
  LocatedPrompt located{.model = engine->model_spec(), .storage = read.options.cache.storage};
  if (!engine->info().cache_on) {
    return Status(StatusCode::failed_precondition,
                  "this model is served without a cache: " + engine->info().cache_detail);
  }
  if (prompt != nullptr) {
    HITIDE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> tokens, tokens_of(*engine, *prompt));
    located.tokens = tokens.size();
    PageHashOptions hash{.page_size = engine_options.page_size};
    if (prompt->text.extra_key) hash.extra_key = *prompt->text.extra_key;
    if (prompt->text.cache_salt) hash.cache_salt = *prompt->text.cache_salt;
    HITIDE_ASSIGN_OR_RETURN(located.keys, page_hashes(tokens, hash));
  }
  HITIDE_RETURN_IF_ERROR(engine->close(std::chrono::steady_clock::now()));
  return located;
}

}  // namespace hitide::cli
