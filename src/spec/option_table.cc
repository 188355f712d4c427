#include "spec/option_table.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "spec/parse_value.h"

namespace hitide {
namespace {

constexpr std::uint64_t kGigabyte = 1'000'000'000;
constexpr std::string_view kModel = "Model and engine";
constexpr std::string_view kServer = "Server";
constexpr std::string_view kCache = "Cache";
constexpr std::string_view kStorage = "Storage configuration";

template <typename T>
Status set_count(T& field, std::string_view value, std::uint64_t least, std::uint64_t most) {
  HITIDE_ASSIGN_OR_RETURN(const std::uint64_t count, parse_count(value, least, most));
  field = static_cast<T>(count);
  return {};
}

Status set_number(double& field, std::string_view value, double least, double most) {
  HITIDE_ASSIGN_OR_RETURN(field, parse_number(value, least, most));
  return {};
}

Status set_bytes(std::uint64_t& field, std::string_view value, std::uint64_t bare_unit) {
  HITIDE_ASSIGN_OR_RETURN(field, parse_bytes(value, bare_unit));
  return {};
}

Status set_text(std::string& field, std::string_view value) {
  if (value.empty()) return Status(StatusCode::invalid_argument, "the value is empty");
  if (value.find('\0') != std::string_view::npos) {
    return Status(StatusCode::invalid_argument, "the value has a zero byte");
  }
  field = value;
  return {};
}

Status check_choice(std::string_view value, std::initializer_list<std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return {};
  return Status(StatusCode::invalid_argument,
                fmt::format("'{}' is not here; there {} {}", value.substr(0, 200),
                            choices.size() == 1 ? "is" : "are", fmt::join(choices, ", ")));
}

Status set_choice(std::string& field, std::string_view value,
                  std::initializer_list<std::string_view> choices) {
  HITIDE_RETURN_IF_ERROR(check_choice(value, choices));
  field = value;
  return {};
}

std::string number_text(double value) { return fmt::format("{}", value); }
std::string toggle_text(bool value) { return value ? "on" : "off"; }

using Options = ServeOptions;
using View = std::string_view;

constexpr std::array kModelRows = {
    OptionRow{"--model-path", "-m", kModel, OptionKind::text, "FILE", "a GGUF file", "",
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
        "--max-running-requests", "", kModel, OptionKind::number, "COUNT", "1..64", "",
        "Requests computed at the same time; the others wait.",
        [](const Options& o) { return std::to_string(o.engine.running_requests_max); },
        [](Options& o, View v) { return set_count(o.engine.running_requests_max, v, 1, 64); }},
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
              "Requests that may wait; more are answered with 503.",
              [](const Options& o) { return std::to_string(o.server.queue_max); },
              [](Options& o, View v) { return set_count(o.server.queue_max, v, 0, 4096); }},
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
    OptionRow{"--device-tokens", "", kCache, OptionKind::number, "TOKENS", "0..16777216",
              "the context and half of it more", "Size of the device tier (llama.cpp's cells).",
              [](const Options& o) { return std::to_string(o.engine.device_tokens); },
              [](Options& o, View v) { return set_count(o.engine.device_tokens, v, 0, 1u << 24); }},
    OptionRow{"--device-sequences", "", kCache, OptionKind::number, "COUNT", "2..192", "",
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
    OptionRow{"--hicache-mem-layout", "", kCache, OptionKind::text, "LAYOUT", "page_packed",
              "page_packed", "How the bytes of a host page lie.",
              [](const Options&) { return std::string("page_packed"); },
              [](Options&, View v) { return check_choice(v, {"page_packed"}); }},
    OptionRow{"--host-allocator", "", kCache, OptionKind::text, "KIND", "shm", "",
              "Where host memory comes from.",
              [](const Options& o) { return o.cache.host.allocator; },
              [](Options& o, View v) { return set_choice(o.cache.host.allocator, v, {"shm"}); }},
    OptionRow{"--hicache-storage-backend", "", kCache, OptionKind::text, "BACKEND",
              "file, memory, null, none", "",
              "The storage tier; none turns it off, memory and null are for tests.",
              [](const Options& o) { return o.cache.storage.backend; },
              [](Options& o, View v) {
                return set_choice(o.cache.storage.backend, v, {"file", "memory", "null", "none"});
              }},
    OptionRow{"--hicache-storage-backend-extra-config", "", kCache, OptionKind::text, "JSON",
              "a JSON object, or @FILE with one", "none",
              "Configuration of the storage tier; its keys are below.",
              [](const Options& o) { return o.storage_extra_config; },
              [](Options& o, View v) { return set_text(o.storage_extra_config, v); }},
    OptionRow{"--hicache-write-policy", "", kCache, OptionKind::text, "POLICY", "write_through",
              "write_through", "When pages are copied down.",
              [](const Options&) { return std::string("write_through"); },
              [](Options& o, View v) {
                HITIDE_RETURN_IF_ERROR(check_choice(v, {"write_through"}));
                o.cache.policy.write_policy = WritePolicy::write_through;
                return Status();
              }},
    OptionRow{"--hicache-storage-prefetch-policy", "", kCache, OptionKind::text, "POLICY",
              "timeout", "timeout", "How long a request waits for storage.",
              [](const Options&) { return std::string("timeout"); },
              [](Options& o, View v) {
                HITIDE_RETURN_IF_ERROR(check_choice(v, {"timeout"}));
                o.cache.policy.prefetch_policy = PrefetchPolicy::timeout;
                return Status();
              }},
    OptionRow{"--radix-eviction-policy", "", kCache, OptionKind::text, "POLICY", "lru", "lru",
              "Which pages go first.", [](const Options&) { return std::string("lru"); },
              [](Options&, View v) { return check_choice(v, {"lru"}); }},
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

constexpr double kSecondsMax = 86400.0;

constexpr std::array kStorageRows = {
    OptionRow{"path", "", kStorage, OptionKind::text, "DIR", "a directory",
              "$SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR, else $XDG_CACHE_HOME/hitide/store, else "
              "~/.cache/hitide/store",
              "file: where it lies; made when it is not there.",
              [](const Options& o) { return o.cache.storage.path; },
              [](Options& o, View v) { return set_text(o.cache.storage.path, v); }},
    OptionRow{"max_size", "", kStorage, OptionKind::bytes, "BYTES", ">= 0, or with a unit",
              "a tenth of the free disk, at most 64 GiB", "file: it evicts to stay below this.",
              [](const Options& o) { return format_bytes(o.cache.storage.bytes_max); },
              [](Options& o, View v) { return set_bytes(o.cache.storage.bytes_max, v, 1); }},
    OptionRow{"segment_size", "", kStorage, OptionKind::bytes, "BYTES", "1 MiB..1 GiB", "",
              "file: size of one segment file.",
              [](const Options& o) { return format_bytes(o.cache.storage.segment_bytes); },
              [](Options& o, View v) {
                HITIDE_ASSIGN_OR_RETURN(const std::uint64_t bytes, parse_bytes(v, 1));
                if (bytes < (1u << 20) || bytes > (1u << 30)) {
                  return Status(StatusCode::invalid_argument,
                                fmt::format("'{}' is not in 1 MiB..1 GiB", v));
                }
                o.cache.storage.segment_bytes = static_cast<std::uint32_t>(bytes);
                return Status();
              }},
    OptionRow{"sync_interval_ms", "", kStorage, OptionKind::number, "MS", "1..3600000", "",
              "file: longest time that written data waits for a sync.",
              [](const Options& o) { return std::to_string(o.cache.storage.sync_interval_ms); },
              [](Options& o, View v) {
                return set_count(o.cache.storage.sync_interval_ms, v, 1, 3'600'000);
              }},
    OptionRow{"threads", "", kStorage, OptionKind::number, "COUNT", "1..64", "",
              "Reads and writes in flight.",
              [](const Options& o) { return std::to_string(o.cache.storage.threads); },
              [](Options& o, View v) { return set_count(o.cache.storage.threads, v, 1, 64); }},
    OptionRow{
        "prefetch_threshold", "", kStorage, OptionKind::number, "TOKENS", "0..16777216", "",
        "Storage is not asked for fewer tokens than this.",
        [](const Options& o) { return std::to_string(o.cache.policy.prefetch_threshold_tokens); },
        [](Options& o, View v) {
          return set_count(o.cache.policy.prefetch_threshold_tokens, v, 0, 1u << 24);
        }},
    OptionRow{"prefetch_timeout_base", "", kStorage, OptionKind::number, "S", "0..86400", "",
              "Time that a request waits for storage, whatever its length.",
              [](const Options& o) { return number_text(o.cache.policy.prefetch_timeout_base_s); },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_timeout_base_s, v, 0.0, kSecondsMax);
              }},
    OptionRow{"prefetch_timeout_per_ki_token", "", kStorage, OptionKind::number, "S", "0..86400",
              "", "More of it for each 1024 tokens to be read.",
              [](const Options& o) {
                return number_text(o.cache.policy.prefetch_timeout_per_ki_token_s);
              },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_timeout_per_ki_token_s, v, 0.0,
                                  kSecondsMax);
              }},
    OptionRow{"prefetch_timeout_max", "", kStorage, OptionKind::number, "S", "0..86400", "",
              "Most of it. The predicted time to recompute bounds it too.",
              [](const Options& o) { return number_text(o.cache.policy.prefetch_timeout_max_s); },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_timeout_max_s, v, 0.0, kSecondsMax);
              }},
    OptionRow{"prefetch_occupancy_max", "", kStorage, OptionKind::number, "SHARE", "0.01..1", "",
              "Share of the host tier that prefetches may hold at a time.",
              [](const Options& o) { return number_text(o.cache.policy.prefetch_occupancy_max); },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_occupancy_max, v, 0.01, 1.0);
              }},
    OptionRow{
        "load_back_threshold", "", kStorage, OptionKind::number, "TOKENS", "0..16777216", "",
        "Fewer tokens than this are recomputed, not loaded from the host tier.",
        [](const Options& o) { return std::to_string(o.cache.policy.load_back_threshold_tokens); },
        [](Options& o, View v) {
          return set_count(o.cache.policy.load_back_threshold_tokens, v, 0, 1u << 24);
        }},
    OptionRow{"batch_pages", "", kStorage, OptionKind::number, "PAGES", "1..1024", "",
              "Pages of one read or write.",
              [](const Options& o) { return std::to_string(o.cache.policy.storage_batch_pages); },
              [](Options& o, View v) {
                return set_count(o.cache.policy.storage_batch_pages, v, 1, 1024);
              }},
};

constexpr auto kRows = [] {
  std::array<OptionRow, kModelRows.size() + kServerRows.size() + kCacheRows.size()> all;
  auto end = std::copy(kModelRows.begin(), kModelRows.end(), all.begin());
  end = std::copy(kServerRows.begin(), kServerRows.end(), end);
  std::copy(kCacheRows.begin(), kCacheRows.end(), end);
  return all;
}();

// Flags that people know from SGLang and that have no meaning here yet, so that the refusal can say
// that this is no misspelling.
constexpr std::array<std::string_view, 18> kForeignFlags = {"--hicache-io-backend",
                                                            "--admin-api-key",
                                                            "--no-staging",
                                                            "--tp-size",
                                                            "--tensor-parallel-size",
                                                            "--dp-size",
                                                            "--pp-size",
                                                            "--mem-fraction-static",
                                                            "--max-total-tokens",
                                                            "--chat-template",
                                                            "--chunked-prefill-size",
                                                            "--hicache-host-memory-mode",
                                                            "--radix-eviction-policy-config",
                                                            "--radix-cache-backend",
                                                            "--lora-paths",
                                                            "--speculative-algorithm",
                                                            "--trust-remote-code",
                                                            "--dtype"};

std::string known_names(std::span<const OptionRow> table) {
  std::string names;
  for (const OptionRow& row : table) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

void append_markdown_rows(std::string& out, std::span<const OptionRow> rows,
                          std::string_view group) {
  out += "| option | value | accepted | default | meaning |\n|---|---|---|---|---|\n";
  const auto code = [](std::string_view text) {
    return text.empty() ? std::string() : fmt::format("`{}`", text);
  };
  for (const OptionRow& row : rows) {
    if (row.group != group) continue;
    const std::string alias = row.alias.empty() ? "" : fmt::format(", `{}`", row.alias);
    out += fmt::format("| `{}`{} | {} | {} | {} | {} |\n", row.name, alias, code(row.value),
                       row.range, default_of(row), row.text);
  }
}

}  // namespace

std::span<const OptionRow> option_table() { return kRows; }
std::span<const OptionRow> storage_config_table() { return kStorageRows; }

const OptionRow* find_option(std::span<const OptionRow> table, std::string_view name) {
  for (const OptionRow& row : table) {
    if (row.name == name || (!row.alias.empty() && row.alias == name)) return &row;
  }
  return nullptr;
}

Status set_option(std::span<const OptionRow> table, std::string_view name, std::string_view value,
                  ServeOptions& options) {
  if (const OptionRow* row = find_option(table, name)) {
    return row->set(options, value).with_context(row->name);
  }
  const bool flags = table.data() == option_table().data();
  const std::string shown(name.substr(0, 100));
  std::string message;
  if (flags && std::find(kForeignFlags.begin(), kForeignFlags.end(), name) != kForeignFlags.end()) {
    message = fmt::format("{}: this version has no such option yet", shown);
  } else if (flags) {
    message = fmt::format("{}: no such option; `hitide serve --help` lists them", shown);
  } else {
    message = fmt::format("'{}' is not a known key; the keys are {}", shown, known_names(table));
  }
  return Status(StatusCode::invalid_argument, std::move(message));
}

std::string default_of(const OptionRow& row) {
  if (!row.default_text.empty()) return std::string(row.default_text);
  static const ServeOptions kDefaults;
  return row.get(kDefaults);
}

std::string defaults_text() {
  std::string out;
  for (const OptionRow& row : option_table()) {
    const std::string value = default_of(row);
    out += fmt::format("{} {}\n", row.name, value.empty() ? "(none)" : value);
  }
  out += "# keys of --hicache-storage-backend-extra-config\n";
  for (const OptionRow& row : storage_config_table()) {
    out += fmt::format("{} {}\n", row.name, default_of(row));
  }
  return out;
}

std::string options_markdown() {
  std::string out =
      "# Options of `hitide serve`\n\n"
      "Written by `hitide options`; a test compares this page with the table in\n"
      "`src/spec/option_table.cc`. Names are SGLang's where SGLang has the option; `-m`, `-c`, "
      "`-t`\n"
      "and `-ngl` are llama-server's. Sizes take a unit: `512MB`, `1.5GB`, `64GiB`.\n";
  for (const std::string_view group : {kModel, kServer, kCache}) {
    out += fmt::format("\n## {}\n\n", group);
    append_markdown_rows(out, option_table(), group);
  }
  out +=
      "\n## Storage configuration\n\n"
      "Keys of `--hicache-storage-backend-extra-config`, a JSON object or `@FILE` with one. A key\n"
      "that is not in this table is refused.\n\n";
  append_markdown_rows(out, storage_config_table(), kStorage);
  out +=
      "\n## What wins\n\n"
      "- `--hicache-size` over `--hicache-ratio`; without both the host tier takes a quarter of "
      "the\n"
      "  free memory.\n"
      "- The key `path` over `SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR`, and that over the XDG "
      "cache\n  directory.\n"
      "- `--disable-radix-cache` excludes `--enable-hierarchical-cache`, `--hicache-size`,\n"
      "  `--hicache-ratio`, the storage configuration, and any storage backend but `none`.\n";
  return out;
}

}  // namespace hitide
