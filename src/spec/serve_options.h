// Options of `hitide serve`, beside CacheOptions. One row each in option_table.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hitide/options.h>

namespace hitide {

struct EngineOptions {
  std::string model_path;
  std::uint32_t context_length = 0;  // tokens of one request; 0: the model's, at most 8192
  std::uint32_t page_size = 32;      // tokens
  std::uint32_t device_tokens = 0;   // L1 cells; 0: the context and half of it more
  std::uint32_t sequences_max = 64;  // cached leaf paths and running requests, at most 192
  std::uint32_t running_requests_max = 4;
  std::uint32_t threads = 0;                 // 0: one less than the cores, at least one
  std::uint32_t prefill_chunk_tokens = 128;  // a multiple of page_size
  std::uint32_t micro_batch = 0;  // 0: 512 for q8_0 and bf16, 32 for f16 (exact below 64)
  std::uint32_t gpu_layers = 0;
  std::string kv_cache_dtype = "auto";  // auto, q8_0, f16, bf16
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint32_t port = 30000;
  std::string served_model_name;  // empty: the model file's stem
  std::string api_key;            // empty: none asked
  std::string admin_api_key;      // of the addresses for operators; empty: api_key
  bool cache_report = false;      // --enable-cache-report
  bool metrics = true;            // --enable-metrics
  std::uint32_t queue_max = 256;  // requests waiting; more get 429
  // Of a request's body; 0: 4 MiB, or 32 for each token of the context, 32 MiB at most.
  std::uint64_t body_bytes_max = 0;
  std::uint64_t head_bytes_max = 64u << 10;  // of all its headers with the first line
  std::uint32_t connections_max = 256;       // that send, wait or are sent to
  std::string log_level = "info";            // debug, info, warning, error
};

struct ServeOptions {
  std::string config_file;  // empty: none
  EngineOptions engine;
  ServerOptions server;
  CacheOptions cache;
  // JSON text or @FILE, as given; storage_config_table() (option_table.h) says what is in it, and
  // apply_storage_config() (storage_config.h) reads it into `cache`.
  std::string storage_extra_config;
  bool strict_config = false;  // unknown and unused keys of the storage configuration are errors

  // Accepted for the sake of launch lines that come from SGLang; of no effect here.
  std::string mem_layout = "page_packed";
  std::string io_backend;  // empty: not given
  std::uint32_t tensor_parallel_size = 1;
  std::uint32_t prefetch_retry_passes = 0;  // of a scheduler; 0: not given
  std::vector<std::string> engine_flags;    // names, as given
};

// One line in the log for each kind of option that was accepted without effect, and a warning for
// a host tier that has hardly any.
void log_accepted_options(const ServeOptions& options);

// invalid_argument that names the option.
Status validate(const ServeOptions& options);

}  // namespace hitide
