#include "spec/serve_options.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/log.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

constexpr std::uint32_t kContextMin = 64;
// Where the CPU computes: docs/performance.md, "Idle tokens".
constexpr std::uint32_t kCpuIdleTokens = 2048;

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

// Room for the running requests and as many cached paths again, within what the engine can hold.
std::uint32_t default_sequences(const EngineOptions& engine) {
  constexpr std::uint32_t kSequencesMax = 192;
  const std::uint32_t wanted = engine.running_requests_max + engine.sequences_max / 2;
  return std::min(kSequencesMax, std::max(engine.sequences_max, wanted));
}

}  // namespace

void log_accepted_options(const ServeOptions& options) {
  if (options.mem_layout != "page_packed" || !options.io_backend.empty()) {
    log_info("memory_layout",
             {{"given", fmt::format("{}{}{}", options.mem_layout,
                                    options.io_backend.empty() ? "" : ", ", options.io_backend)},
              {"effect", "none: pages are stored as page_packed and copied by the engine"}});
  }
  const HostOptions& host = options.cache.host;
  if (options.cache.enabled && host.bytes == 0 && host.ratio > 0.0 && host.ratio <= 1.0) {
    log_warning("hicache_ratio",
                {{"given", host.ratio},
                 {"effect",
                  "the host tier is no larger than the device tier, and can hold little "
                  "that is not there too: raise --hicache-ratio, or give --hicache-size"}});
  }
  if (options.prefetch_retry_passes != 0) {
    log_info("prefetch_retry_poll_interval",
             {{"given", options.prefetch_retry_passes},
              {"effect", fmt::format("none: storage is asked again after {} s, doubled each time "
                                     "(key prefetch_retry_interval)",
                                     options.cache.policy.prefetch_retry_interval_s)}});
  }
  if (options.tensor_parallel_size > 1) {
    log_info("tensor_parallel_size",
             {{"given", options.tensor_parallel_size},
              {"effect", "none: llama.cpp computes as one rank, and sizes are not divided"}});
  }
  if (!options.engine_flags.empty()) {
    log_info("flags_without_effect",
             {{"given", fmt::format("{}", fmt::join(options.engine_flags, ", "))}});
  }
}

Status validate(const ServeOptions& options) {
  HITIDE_RETURN_IF_ERROR(validate_engine(options.engine));
  if (options.server.port > 65535) {
    return invalid(fmt::format("--port: {} is not in 0..65535", options.server.port));
  }
  const HostOptions& host = options.cache.host;
  const bool store_memory =
      host.allocator == "store" ||
      std::any_of(host.pool_allocators.begin(), host.pool_allocators.end(),
                  [](const HostAllocatorChoice& choice) { return choice.kind == "store"; });
  if (store_memory && options.cache.storage.backend != "mooncake") {
    return invalid(fmt::format(
        "--host-allocator: store is memory of the backend mooncake, and --hicache-storage-backend "
        "is {}",
        options.cache.storage.backend));
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
  if (!is_given("--device-idle-tokens") && engine.gpu_layers == 0) {
    options.cache.policy.device_idle_tokens = kCpuIdleTokens;
  }
  if (!is_given("--device-sequences")) engine.sequences_max = default_sequences(engine);
  if (!is_given("--prefill-chunk") && engine.page_size != 0) {
    const std::uint32_t pages =
        (engine.prefill_chunk_tokens + engine.page_size - 1) / engine.page_size;
    engine.prefill_chunk_tokens = pages * engine.page_size;
  }
  return validate(options);
}

}  // namespace hitide
