#include "spec/option_table.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "spec/engine_flags.h"
#include "spec/option_setters.h"

namespace hitide {
namespace {

constexpr std::uint64_t kGigabyte = 1'000'000'000;
constexpr std::string_view kConfiguration = "Configuration";
constexpr std::string_view kModel = "Model and engine";
constexpr std::string_view kServer = "Server";
constexpr std::string_view kCache = "Cache";

using Options = ServeOptions;
using View = std::string_view;

constexpr Names<WritePolicy, 3> kWriteNames = {{
    {"write_through", WritePolicy::write_through},
    {"write_through_selective", WritePolicy::write_through_selective},
    {"write_back", WritePolicy::write_back},
}};
constexpr Names<PrefetchPolicy, 3> kPrefetchNames = {{
    {"timeout", PrefetchPolicy::timeout},
    {"best_effort", PrefetchPolicy::best_effort},
    {"wait_complete", PrefetchPolicy::wait_complete},
}};
constexpr Names<EvictionPolicy, 7> kEvictionNames = {{
    {"lru", EvictionPolicy::lru},
    {"lfu", EvictionPolicy::lfu},
    {"slru", EvictionPolicy::slru},
    {"fifo", EvictionPolicy::fifo},
    {"mru", EvictionPolicy::mru},
    {"filo", EvictionPolicy::filo},
    {"priority", EvictionPolicy::priority},
}};

bool is_pool_name(View name) {
  return !name.empty() && name.size() <= 15 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// KIND for all pools, or POOL=KIND for one.
Status set_host_allocator(HostOptions& host, View value) {
  const std::size_t equals = value.find('=');
  std::string kind;
  HITIDE_RETURN_IF_ERROR(set_choice(kind, equals == View::npos ? value : value.substr(equals + 1),
                                    {"shm", "mmap", "store"}));
  if (equals == View::npos) {
    host.allocator = kind;
    return {};
  }
  const View pool = value.substr(0, equals);
  if (!is_pool_name(pool)) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("'{}': a pool's name is 1 to 15 of a-z, 0-9 and _", value.substr(0, 200)));
  }
  std::erase_if(host.pool_allocators,
                [&](const HostAllocatorChoice& choice) { return choice.pool == pool; });
  host.pool_allocators.push_back({.pool = std::string(pool), .kind = kind});
  return {};
}

Status set_tokens(std::uint32_t& tokens, View value) {
  if (value == "all") {
    tokens = kAllTokens;
    return {};
  }
  const Status number = set_count(tokens, value, 0, 1u << 24);
  return number.ok() ? number : unknown_name(value, "all or 0..16777216");
}

std::string tokens_text(std::uint32_t tokens) {
  return tokens == kAllTokens ? "all" : std::to_string(tokens);
}

Status set_numa(HostOptions& host, View value) {
  if (value != "auto" && value != "off") {
    std::uint32_t node = 0;
    const Status number = set_count(node, value, 0, 1023);
    if (!number.ok()) return unknown_name(value, "auto, off or the number of a node");
  }
  host.numa = value;
  return {};
}

std::string host_allocator_text(const HostOptions& host) {
  std::string text = host.allocator;
  for (const HostAllocatorChoice& choice : host.pool_allocators) {
    text += fmt::format(" {}={}", choice.pool, choice.kind);
  }
  return text;
}

// Bytes in [least, most]; 0 too when `off`.
Status set_limit(std::uint64_t& field, View value, std::uint64_t least, std::uint64_t most,
                 bool off) {
  HITIDE_ASSIGN_OR_RETURN(const std::uint64_t bytes, parse_bytes(value, 1));
  if ((bytes < least || bytes > most) && !(off && bytes == 0)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("'{}' is not in {}..{}", value.substr(0, 200), format_bytes(least),
                              format_bytes(most)));
  }
  field = bytes;
  return {};
}

constexpr std::array kConfigRows = {
    OptionRow{"--config", "", kConfiguration, OptionKind::text, "FILE",
              "a file that ends with .toml, .json, .yaml or .yml", "none",
              "Options in a file: a table of names without the dashes. What the command line says "
              "wins.",
              [](const Options& o) { return o.config_file; },
              [](Options& o, View v) { return set_text(o.config_file, v); }},
};

constexpr std::array kModelRows = {
    OptionRow{"--model-path", "-m,--model", kModel, OptionKind::text, "FILE", "a GGUF file", "",
              "The model. Required.", [](const Options& o) { return o.engine.model_path; },
              [](Options& o, View v) { return set_text(o.engine.model_path, v); }},
    OptionRow{
        "--context-length", "-c", kModel, OptionKind::number, "TOKENS", "0, 64..1048576",
        "the model's, at most 8192", "Longest prompt and answer of one request together.",
        [](const Options& o) { return std::to_string(o.engine.context_length); },
        [](Options& o, View v) { return set_count(o.engine.context_length, v, 0, 1u << 20); }},
    OptionRow{"--kv-cache-dtype", "", kModel, OptionKind::text, "TYPE", "auto, q8_0, f16, bf16", "",
              "Type of the KV cache. auto is q8_0 where the model allows it, else f16.",
              [](const Options& o) { return o.engine.kv_cache_dtype; },
              [](Options& o, View v) {
                return set_choice(o.engine.kv_cache_dtype, v, {"auto", "q8_0", "f16", "bf16"});
              }},
    OptionRow{"--threads", "-t", kModel, OptionKind::number, "COUNT", "0..512",
              "one less than the cores, at least 1", "Threads that compute.",
              [](const Options& o) { return std::to_string(o.engine.threads); },
              [](Options& o, View v) { return set_count(o.engine.threads, v, 0, 512); }},
    OptionRow{"--n-gpu-layers", "-ngl", kModel, OptionKind::number, "COUNT", "0..10000", "",
              "Layers to place on a GPU, where llama.cpp was built for one.",
              [](const Options& o) { return std::to_string(o.engine.gpu_layers); },
              [](Options& o, View v) { return set_count(o.engine.gpu_layers, v, 0, 10000); }},
    OptionRow{
        "--max-running-requests", "", kModel, OptionKind::number, "COUNT", "1..191", "",
        "Requests computed at the same time; the others wait.",
        [](const Options& o) { return std::to_string(o.engine.running_requests_max); },
        [](Options& o, View v) { return set_count(o.engine.running_requests_max, v, 1, 191); }},
    OptionRow{
        "--prefill-chunk", "", kModel, OptionKind::number, "TOKENS", "1..8192",
        "128, rounded up to whole pages",
        "Prompt tokens computed in one step; a multiple of --page-size.",
        [](const Options& o) { return std::to_string(o.engine.prefill_chunk_tokens); },
        [](Options& o, View v) { return set_count(o.engine.prefill_chunk_tokens, v, 1, 8192); }},
    OptionRow{"--micro-batch", "", kModel, OptionKind::number, "TOKENS", "0..8192",
              "512 for q8_0 and bf16, 32 for f16",
              "llama.cpp's micro-batch. f16 is exact below 64 only.",
              [](const Options& o) { return std::to_string(o.engine.micro_batch); },
              [](Options& o, View v) { return set_count(o.engine.micro_batch, v, 0, 8192); }},
    OptionRow{"--tensor-parallel-size", "--tp-size,--tp", kModel, OptionKind::number, "COUNT",
              "1..1024", "",
              "Without effect: llama.cpp computes as one rank, and sizes are not divided.",
              [](const Options& o) { return std::to_string(o.tensor_parallel_size); },
              [](Options& o, View v) { return set_count(o.tensor_parallel_size, v, 1, 1024); }},
};

constexpr std::array kServerRows = {
    OptionRow{"--host", "", kServer, OptionKind::text, "ADDRESS", "an address or a host name", "",
              "Where to listen.", [](const Options& o) { return o.server.host; },
              [](Options& o, View v) { return set_text(o.server.host, v); }},
    OptionRow{"--port", "", kServer, OptionKind::number, "PORT", "0..65535", "",
              "Port to listen on; 0 takes a free one, which the start line names.",
              [](const Options& o) { return std::to_string(o.server.port); },
              [](Options& o, View v) { return set_count(o.server.port, v, 0, 65535); }},
    OptionRow{"--served-model-name", "", kServer, OptionKind::text, "NAME", "any text",
              "the model file's name without its ending",
              "Name in /v1/models. Requests may name any model.",
              [](const Options& o) { return o.server.served_model_name; },
              [](Options& o, View v) { return set_text(o.server.served_model_name, v); }},
    OptionRow{"--api-key", "", kServer, OptionKind::text, "KEY", "any text", "none is asked for",
              "Requests must carry `Authorization: Bearer KEY`; /health and /metrics are open.",
              [](const Options& o) { return o.server.api_key; },
              [](Options& o, View v) { return set_text(o.server.api_key, v); }},
    OptionRow{
        "--admin-api-key", "", kServer, OptionKind::text, "KEY", "any text", "that of --api-key",
        "Key of the addresses that change the server's state (/flush_cache, /hicache/...); it "
        "opens the others too. Without any key they answer on a loopback address only.",
        [](const Options& o) { return o.server.admin_api_key; },
        [](Options& o, View v) { return set_text(o.server.admin_api_key, v); }},
    OptionRow{"--enable-metrics", "", kServer, OptionKind::toggle, "", "", "on",
              "Serve /metrics. It is on anyway; the flag is accepted for SGLang's sake.",
              [](const Options& o) { return toggle_text(o.server.metrics); },
              [](Options& o, View) {
                o.server.metrics = true;
                return Status();
              }},
    OptionRow{"--enable-cache-report", "", kServer, OptionKind::toggle, "", "", "",
              "Say in `usage` which tier served how many tokens, and the explanation's id.",
              [](const Options& o) { return toggle_text(o.server.cache_report); },
              [](Options& o, View) {
                o.server.cache_report = true;
                return Status();
              }},
    OptionRow{"--max-queued-requests", "", kServer, OptionKind::number, "COUNT", "0..4096", "",
              "Requests that may wait; more are answered with 429.",
              [](const Options& o) { return std::to_string(o.server.queue_max); },
              [](Options& o, View v) { return set_count(o.server.queue_max, v, 0, 4096); }},
    OptionRow{"--max-body-bytes", "", kServer, OptionKind::bytes, "BYTES",
              "0, or 1024..1 GiB, with or without a unit",
              "4 MiB, or 32 for each token of the context, at most 32 MiB",
              "Largest body of a request; more is answered with 413.",
              [](const Options& o) { return format_bytes(o.server.body_bytes_max); },
              [](Options& o, View v) {
                return set_limit(o.server.body_bytes_max, v, 1u << 10, 1u << 30, true);
              }},
    OptionRow{"--max-header-bytes", "", kServer, OptionKind::bytes, "BYTES",
              "1024..1 MiB, with or without a unit", "",
              "Largest headers of a request, with its first line; more is answered with 431.",
              [](const Options& o) { return format_bytes(o.server.head_bytes_max); },
              [](Options& o, View v) {
                return set_limit(o.server.head_bytes_max, v, 1u << 10, 1u << 20, false);
              }},
    OptionRow{
        "--max-connections", "", kServer, OptionKind::number, "COUNT", "1..65536", "",
        "Connections that send, wait or are sent to; beyond it the one that has waited longest "
        "is closed.",
        [](const Options& o) { return std::to_string(o.server.connections_max); },
        [](Options& o, View v) { return set_count(o.server.connections_max, v, 1, 65536); }},
    OptionRow{"--log-level", "", kServer, OptionKind::text, "LEVEL", "debug, info, warning, error",
              "", "Least important lines to log on standard error.",
              [](const Options& o) { return o.server.log_level; },
              [](Options& o, View v) {
                return set_choice(o.server.log_level, v, {"debug", "info", "warning", "error"});
              }},
};

constexpr std::array kCacheRows = {
    OptionRow{"--enable-hierarchical-cache", "", kCache, OptionKind::toggle, "", "", "on",
              "Keep pages in host memory and storage too. It is on anyway.",
              [](const Options& o) { return toggle_text(o.cache.enabled); },
              [](Options& o, View) {
                o.cache.enabled = true;
                return Status();
              }},
    OptionRow{"--disable-radix-cache", "", kCache, OptionKind::toggle, "", "", "off",
              "Serve without any cache: every prompt is computed.",
              [](const Options& o) { return toggle_text(!o.cache.enabled); },
              [](Options& o, View) {
                o.cache.enabled = false;
                return Status();
              }},
    OptionRow{"--page-size", "", kCache, OptionKind::number, "TOKENS", "1..1024", "",
              "Tokens of a page, the unit in which prefixes are kept and found.",
              [](const Options& o) { return std::to_string(o.engine.page_size); },
              [](Options& o, View v) { return set_count(o.engine.page_size, v, 1, 1024); }},
    OptionRow{"--device-tokens", "--max-total-tokens", kCache, OptionKind::number, "TOKENS",
              "0..16777216", "the context and half of it more",
              "Size of the device tier (llama.cpp's cells).",
              [](const Options& o) { return std::to_string(o.engine.device_tokens); },
              [](Options& o, View v) { return set_count(o.engine.device_tokens, v, 0, 1u << 24); }},
    OptionRow{"--device-idle-tokens", "", kCache, OptionKind::text, "TOKENS", "all, or 0..16777216",
              "2048 where the CPU computes, else all",
              "Cached tokens that may stay on the device while no request uses them; others are "
              "left to the host. On a CPU each one slows every step.",
              [](const Options& o) { return tokens_text(o.cache.policy.device_idle_tokens); },
              [](Options& o, View v) { return set_tokens(o.cache.policy.device_idle_tokens, v); }},
    OptionRow{"--device-sequences", "", kCache, OptionKind::number, "COUNT", "2..192",
              "64; more with many running requests",
              "Sequences of the device tier: cached leaf paths and running requests.",
              [](const Options& o) { return std::to_string(o.engine.sequences_max); },
              [](Options& o, View v) { return set_count(o.engine.sequences_max, v, 2, 192); }},
    OptionRow{"--hicache-size", "", kCache, OptionKind::bytes, "GB", ">= 0, or with a unit",
              "by --hicache-ratio",
              "Size of the host tier; a bare number is in GB (10^9 bytes). Wins over the ratio.",
              [](const Options& o) { return format_bytes(o.cache.host.bytes); },
              [](Options& o, View v) { return set_bytes(o.cache.host.bytes, v, kGigabyte); }},
    OptionRow{"--hicache-ratio", "", kCache, OptionKind::number, "RATIO", "0..10000",
              "a quarter of the free memory",
              "Size of the host tier as a multiple of the device tier's bytes.",
              [](const Options& o) { return number_text(o.cache.host.ratio); },
              [](Options& o, View v) { return set_number(o.cache.host.ratio, v, 0.0, 10000.0); }},
    OptionRow{"--hicache-mem-layout", "", kCache, OptionKind::text, "LAYOUT",
              "page_packed, layer_first, page_first, page_first_direct, page_first_kv_split, "
              "page_head",
              "", "How the bytes of a host page lie: page_packed, whatever is given.",
              [](const Options& o) { return o.mem_layout; },
              [](Options& o, View v) {
                return set_choice(o.mem_layout, v,
                                  {"page_packed", "layer_first", "page_first", "page_first_direct",
                                   "page_first_kv_split", "page_head"});
              }},
    OptionRow{"--hicache-io-backend", "", kCache, OptionKind::text, "BACKEND",
              "kernel, direct, kernel_ascend", "the engine's own copies",
              "Without effect: the engine copies pages itself.",
              [](const Options& o) { return o.io_backend; },
              [](Options& o, View v) {
                return set_choice(o.io_backend, v, {"kernel", "direct", "kernel_ascend"});
              }},
    OptionRow{"--hicache-host-memory-mode", "", kCache, OptionKind::text, "MODE", "cache", "cache",
              "What host memory is used for.", [](const Options&) { return std::string("cache"); },
              [](Options&, View v) { return check_choice(v, {"cache"}); }},
    OptionRow{"--host-allocator", "", kCache, OptionKind::text, "[POOL=]KIND", "shm, mmap, store",
              "",
              "Where host memory comes from; POOL=KIND for one pool; may be given several times. "
              "store is memory of the Mooncake client.",
              [](const Options& o) { return host_allocator_text(o.cache.host); },
              [](Options& o, View v) { return set_host_allocator(o.cache.host, v); },
              OptionScope::any, "", true},
    OptionRow{"--host-prefault", "", kCache, OptionKind::toggle, "", "", "off",
              "Touch host memory at the start, on several threads, so that no request pays for its "
              "first use; the start takes 0.6 s a GiB and more. shm and mmap memory.",
              [](const Options& o) { return toggle_text(o.cache.host.prefault); },
              [](Options& o, View) {
                o.cache.host.prefault = true;
                return Status();
              }},
    OptionRow{"--host-huge-pages", "", kCache, OptionKind::text, "CHOICE", "auto, off", "",
              "Huge pages for host memory where the system has them; shm memory may need "
              "--host-prefault for them. The log's line host_memory says what was got.",
              [](const Options& o) { return o.cache.host.huge_pages; },
              [](Options& o, View v) {
                return set_choice(o.cache.host.huge_pages, v, {"auto", "off"});
              }},
    OptionRow{"--host-numa", "", kCache, OptionKind::text, "CHOICE", "auto, off, or a node", "",
              "NUMA nodes of host memory: auto is all in turn where there are several, off leaves "
              "it to the system.",
              [](const Options& o) { return o.cache.host.numa; },
              [](Options& o, View v) { return set_numa(o.cache.host, v); }},
    OptionRow{"--hicache-storage-backend", "", kCache, OptionKind::text, "BACKEND",
              "file, mooncake, memory, null, none", "",
              "The storage tier; none turns it off, memory and null are for tests.",
              [](const Options& o) { return o.cache.storage.backend; },
              [](Options& o, View v) {
                return set_choice(o.cache.storage.backend, v,
                                  {"file", "mooncake", "memory", "null", "none"});
              }},
    OptionRow{"--hicache-storage-backend-extra-config", "", kCache, OptionKind::text, "JSON",
              "a JSON object, or @FILE of JSON, TOML or YAML", "none",
              "Configuration of the storage tier; docs/options.md has its keys.",
              [](const Options& o) { return o.storage_extra_config; },
              [](Options& o, View v) { return set_text(o.storage_extra_config, v); }},
    OptionRow{"--strict-config", "", kCache, OptionKind::toggle, "", "", "off",
              "Refuse unknown and unused keys of the storage configuration instead of warning.",
              [](const Options& o) { return toggle_text(o.strict_config); },
              [](Options& o, View) {
                o.strict_config = true;
                return Status();
              }},
    OptionRow{"--no-staging", "", kCache, OptionKind::toggle, "", "", "off",
              "No storage for pools that the store cannot take as they are, instead of copying "
              "through bounce memory.",
              [](const Options& o) { return toggle_text(!o.cache.storage.staging); },
              [](Options& o, View) {
                o.cache.storage.staging = false;
                return Status();
              }},
    OptionRow{"--no-cost-model", "", kCache, OptionKind::toggle, "", "", "off",
              "Load what is cached even where computing it again is predicted to be faster.",
              [](const Options& o) { return toggle_text(!o.cache.policy.cost_model); },
              [](Options& o, View) {
                o.cache.policy.cost_model = false;
                return Status();
              }},
    OptionRow{
        "--hicache-write-policy", "", kCache, OptionKind::text, "POLICY",
        "write_through, write_through_selective, write_back", "",
        "When pages are copied down: when they are first computed, when they are used a second "
        "time, or when they leave the tier above.",
        [](const Options& o) { return name_of(o.cache.policy.write_policy, kWriteNames); },
        [](Options& o, View v) { return set_named(o.cache.policy.write_policy, v, kWriteNames); }},
    OptionRow{
        "--hicache-storage-prefetch-policy", "", kCache, OptionKind::text, "POLICY",
        "timeout, best_effort, wait_complete", "",
        "How long a request waits for storage: prefetch_timeout_* at most, not at all, or until "
        "all that storage holds has come.",
        [](const Options& o) { return name_of(o.cache.policy.prefetch_policy, kPrefetchNames); },
        [](Options& o, View v) {
          return set_named(o.cache.policy.prefetch_policy, v, kPrefetchNames);
        }},
    OptionRow{"--hicache-storage-prefetch-retry-max-attempts", "", kCache, OptionKind::number,
              "COUNT", "0..16", "",
              "Times that storage is asked again for a request that waits: the key "
              "prefetch_retries, which wins.",
              [](const Options& o) { return std::to_string(o.cache.policy.prefetch_retries_max); },
              [](Options& o, View v) {
                return set_count(o.cache.policy.prefetch_retries_max, v, 0, 16);
              }},
    OptionRow{"--hicache-storage-prefetch-retry-poll-interval", "", kCache, OptionKind::number,
              "PASSES", "0..1000000", "0",
              "Without effect: the pause goes by time, see the key prefetch_retry_interval.",
              [](const Options& o) { return std::to_string(o.prefetch_retry_passes); },
              [](Options& o, View v) { return set_count(o.prefetch_retry_passes, v, 0, 1000000); }},
    OptionRow{
        "--radix-eviction-policy", "", kCache, OptionKind::text, "POLICY",
        "lru, lfu, slru, fifo, mru, filo, priority", "",
        "Which pages go first, on device and host: used longest ago, least often, once only, "
        "oldest, "
        "used last, youngest, or of requests of the lowest `priority`.",
        [](const Options& o) { return name_of(o.cache.policy.eviction_policy, kEvictionNames); },
        [](Options& o, View v) {
          return set_named(o.cache.policy.eviction_policy, v, kEvictionNames);
        }},
    OptionRow{
        "--explanations-kept", "", kCache, OptionKind::number, "COUNT", "1..1000000", "",
        "Explanations of the last requests to keep for /hitide/explain.",
        [](const Options& o) { return std::to_string(o.cache.explanations_kept); },
        [](Options& o, View v) { return set_count(o.cache.explanations_kept, v, 1, 1'000'000); }},
    OptionRow{
        "--prefill-speed", "", kCache, OptionKind::number, "TOKENS/S", "0..10000000",
        "measured by a short warm-up", "First guess of the prefill speed.",
        [](const Options& o) { return number_text(o.cache.prefill_tokens_per_s); },
        [](Options& o, View v) { return set_number(o.cache.prefill_tokens_per_s, v, 0.0, 1e7); }},
};

constexpr auto kRows = [] {
  std::array<OptionRow,
             kConfigRows.size() + kModelRows.size() + kServerRows.size() + kCacheRows.size()>
      all;
  auto end = std::copy(kConfigRows.begin(), kConfigRows.end(), all.begin());
  end = std::copy(kModelRows.begin(), kModelRows.end(), end);
  end = std::copy(kServerRows.begin(), kServerRows.end(), end);
  std::copy(kCacheRows.begin(), kCacheRows.end(), end);
  return all;
}();

}  // namespace

std::span<const OptionRow> option_table() { return kRows; }

std::vector<std::string_view> aliases_of(const OptionRow& row) {
  std::vector<std::string_view> out;
  for (std::string_view rest = row.alias; !rest.empty();) {
    out.push_back(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), out.back().size() + 1));
  }
  return out;
}

const OptionRow* find_option(std::span<const OptionRow> table, std::string_view name) {
  for (const OptionRow& row : table) {
    if (row.name == name) return &row;
    for (const std::string_view alias : aliases_of(row)) {
      if (alias == name) return &row;
    }
  }
  return nullptr;
}

Status set_option(std::span<const OptionRow> table, std::string_view name, std::string_view value,
                  ServeOptions& options) {
  if (const OptionRow* row = find_option(table, name)) {
    return row->set(options, value).with_context(row->name);
  }
  if (table.data() == option_table().data()) return unknown_flag(name);
  return Status(StatusCode::invalid_argument,
                fmt::format("'{}' is not a known key", name.substr(0, 100)));
}

std::string default_of(const OptionRow& row) {
  if (!row.default_text.empty()) return std::string(row.default_text);
  static const ServeOptions kDefaults;
  return row.get(kDefaults);
}

}  // namespace hitide
