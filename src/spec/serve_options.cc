#include "spec/serve_options.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "spec/option_table.h"

namespace hitide {
namespace {

constexpr std::uint32_t kContextMin = 64;

Status invalid(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

Status validate_engine(const EngineOptions& engine) {
  if (engine.model_path.empty()) return invalid("--model-path: say which model to serve");
  if (engine.context_length != 0 && engine.context_length < kContextMin) {
    return invalid(fmt::format("--context-length: {} is less than {} (0: the model's)",
                               engine.context_length, kContextMin));
  }
  if (engine.page_size == 0) return invalid("--page-size: '0' is not in 1..1024");
  if (engine.prefill_chunk_tokens % engine.page_size != 0) {
    return invalid(fmt::format(
        "--prefill-chunk: {} is not a multiple of --page-size {}; give {} or another multiple",
        engine.prefill_chunk_tokens, engine.page_size,
        (engine.prefill_chunk_tokens / engine.page_size + 1) * engine.page_size));
  }
  if (engine.context_length != 0 && engine.context_length < engine.page_size) {
    return invalid(fmt::format("--page-size: {} is more than --context-length {}", engine.page_size,
                               engine.context_length));
  }
  if (engine.device_tokens != 0 && engine.device_tokens < engine.context_length) {
    return invalid(
        fmt::format("--device-tokens: {} is less than --context-length {}; one request must fit",
                    engine.device_tokens, engine.context_length));
  }
  if (engine.sequences_max <= engine.running_requests_max) {
    return invalid(fmt::format("--device-sequences: {} must be more than --max-running-requests {}",
                               engine.sequences_max, engine.running_requests_max));
  }
  return {};
}

}  // namespace

Status validate(const ServeOptions& options) {
  HITIDE_RETURN_IF_ERROR(validate_engine(options.engine));
  if (options.server.port > 65535) {
    return invalid(fmt::format("--port: {} is not in 0..65535", options.server.port));
  }
  return validate(options.cache);
}

Status settle_options(ServeOptions& options, std::span<const std::string> given) {
  const auto is_given = [&](std::string_view name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  if (is_given("--disable-radix-cache")) {
    constexpr std::array<std::string_view, 5> kExcluded = {
        "--enable-hierarchical-cache", "--hicache-size", "--hicache-ratio",
        "--hicache-storage-backend", "--hicache-storage-backend-extra-config"};
    for (const std::string_view name : kExcluded) {
      if (!is_given(name)) continue;
      if (name == "--hicache-storage-backend" && options.cache.storage.backend == "none") continue;
      return invalid(fmt::format("{} and --disable-radix-cache exclude each other", name));
    }
    options.cache.enabled = false;  // whatever the order of the two toggles was
  }
  EngineOptions& engine = options.engine;
  if (!is_given("--prefill-chunk") && engine.page_size != 0) {
    const std::uint32_t pages =
        (engine.prefill_chunk_tokens + engine.page_size - 1) / engine.page_size;
    engine.prefill_chunk_tokens = pages * engine.page_size;
  }
  return validate(options);
}

}  // namespace hitide
