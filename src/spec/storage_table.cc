#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/clock.h"
#include "spec/mooncake_options.h"
#include "spec/option_setters.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

constexpr std::string_view kStorageGroup = "Storage configuration";
constexpr std::string_view kMooncakeGroup = "Mooncake";
constexpr double kSecondsMax = 86400.0;
constexpr std::uint64_t kGibibyte = 1ull << 30;
constexpr std::size_t kEnvironmentMax = 256;  // variables for the agent

using Options = ServeOptions;
using View = std::string_view;

BreakerOptions& breaker_of(Options& options) { return options.cache.storage.breaker; }
const BreakerOptions& breaker_of(const Options& options) { return options.cache.storage.breaker; }
MooncakeOptions& of(Options& options) { return options.cache.storage.mooncake; }
const MooncakeOptions& of(const Options& options) { return options.cache.storage.mooncake; }
std::string word(bool value) { return value ? "true" : "false"; }

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

View trimmed(View text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == View::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// May be empty.
Status set_any_text(std::string& field, View value) {
  if (std::any_of(value.begin(), value.end(), [](char c) { return c >= 0 && c < ' '; })) {
    return refuse("the value has a control character");
  }
  field = value;
  return {};
}

Status set_word(std::string& field, View value) {
  if (value.empty()) return refuse("the value is empty");
  return set_any_text(field, value);
}

// SGLang's spellings: a whole number of bytes, or one of "gb", which are of 1024^3 bytes.
Status set_segment_size(std::uint64_t& field, View value) {
  const View text = trimmed(value);
  const bool in_gb =
      text.size() >= 2 && (text[text.size() - 2] | 0x20) == 'g' && (text.back() | 0x20) == 'b';
  const std::uint64_t unit = in_gb ? kGibibyte : 1;
  const View digits = trimmed(in_gb ? text.substr(0, text.size() - 2) : text);
  const auto count = parse_count(digits, 0, (1ull << 62) / unit);
  if (count.ok()) {
    field = *count * unit;
    return {};
  }
  const auto number = parse_number(digits, 0.0, 4e18);
  if (in_gb || !number.ok() || *number != static_cast<double>(std::uint64_t(*number))) {
    return refuse(fmt::format(
        "'{}' is no size; write whole bytes, or a whole number of gb (1024^3 bytes) as in 4gb",
        value.substr(0, 200)));
  }
  field = static_cast<std::uint64_t>(*number);
  return {};
}

Status set_address(std::string& field, View value) {
  const Result<HostPort> address = parse_host_port(value);
  if (!address.ok()) return address.status();
  field = value;
  return {};
}

// Names with commas between them; blanks around them do not count.
Status set_devices(std::string& field, View value) {
  std::string out;
  while (!value.empty()) {
    const View name = value.substr(0, value.find(','));
    value.remove_prefix(std::min(value.size(), name.size() + 1));
    if (trimmed(name).empty()) continue;
    if (!out.empty()) out += ',';
    out += trimmed(name);
  }
  return set_any_text(field, out);
}

Status set_tenant(std::string& field, View value) {
  const View name = trimmed(value);
  return set_any_text(field, name.empty() ? "default" : name);
}

Status add_variable(MooncakeOptions& mooncake, View value) {
  const std::size_t equals = value.find('=');
  const View name = value.substr(0, equals);
  const auto is_letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_letter)) {
    return refuse(fmt::format("'{}' is no name of a variable", name.substr(0, 100)));
  }
  if (value.find('\0') != View::npos) return refuse("the value has a zero byte");
  if (mooncake.agent_environment.size() >= kEnvironmentMax) {
    return refuse(fmt::format("there are more than {} variables", kEnvironmentMax));
  }
  mooncake.agent_environment.emplace_back(name, value.substr(equals + 1));
  return {};
}

std::string variables_text(const MooncakeOptions& mooncake) {
  std::string text;
  for (const auto& [name, value] : mooncake.agent_environment) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  }
  return text;
}

constexpr std::array kStorageRows = {
    OptionRow{"path", "", kStorageGroup, OptionKind::text, "DIR", "a directory",
              "$SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR, else $XDG_CACHE_HOME/hitide/store, else "
              "~/.cache/hitide/store",
              "file: where it lies; made when it is not there.",
              [](const Options& o) { return o.cache.storage.path; },
              [](Options& o, View v) { return set_text(o.cache.storage.path, v); },
              OptionScope::file},
    OptionRow{"max_size", "", kStorageGroup, OptionKind::bytes, "BYTES", ">= 0, or with a unit",
              "a tenth of the free disk, at most 64 GiB",
              "file: it evicts to stay below this; of several ranks each.",
              [](const Options& o) { return format_bytes(o.cache.storage.bytes_max); },
              [](Options& o, View v) { return set_bytes(o.cache.storage.bytes_max, v, 1); },
              OptionScope::file},
    OptionRow{"segment_size", "", kStorageGroup, OptionKind::bytes, "BYTES", "1 MiB..1 GiB", "",
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
              },
              OptionScope::file},
    OptionRow{"sync_interval_ms", "", kStorageGroup, OptionKind::number, "MS", "1..3600000", "",
              "file: longest time that written data waits for a sync.",
              [](const Options& o) { return std::to_string(o.cache.storage.sync_interval_ms); },
              [](Options& o, View v) {
                return set_count(o.cache.storage.sync_interval_ms, v, 1, 3'600'000);
              },
              OptionScope::file},
    OptionRow{"sync_puts", "", kStorageGroup, OptionKind::boolean, "BOOL", "a boolean", "",
              "file: a page counts as stored once it is on the disk, and survives a power loss.",
              [](const Options& o) { return word(o.cache.storage.sync_puts); },
              [](Options& o, View v) { return set_boolean(o.cache.storage.sync_puts, v); },
              OptionScope::file},
    OptionRow{"threads", "", kStorageGroup, OptionKind::number, "COUNT", "1..64", "",
              "Reads and writes in flight.",
              [](const Options& o) { return std::to_string(o.cache.storage.threads); },
              [](Options& o, View v) { return set_count(o.cache.storage.threads, v, 1, 64); }},
    OptionRow{
        "prefetch_threshold", "", kStorageGroup, OptionKind::number, "TOKENS", "0..16777216", "",
        "Storage is not asked for fewer tokens than this.",
        [](const Options& o) { return std::to_string(o.cache.policy.prefetch_threshold_tokens); },
        [](Options& o, View v) {
          return set_count(o.cache.policy.prefetch_threshold_tokens, v, 0, 1u << 24);
        }},
    OptionRow{"prefetch_timeout_base", "", kStorageGroup, OptionKind::number, "S", "0..86400", "",
              "Time that a request waits for storage, whatever its length.",
              [](const Options& o) { return number_text(o.cache.policy.prefetch_timeout_base_s); },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_timeout_base_s, v, 0.0, kSecondsMax);
              }},
    OptionRow{"prefetch_timeout_per_ki_token", "", kStorageGroup, OptionKind::number, "S",
              "0..86400", "", "More of it for each 1024 tokens to be read.",
              [](const Options& o) {
                return number_text(o.cache.policy.prefetch_timeout_per_ki_token_s);
              },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_timeout_per_ki_token_s, v, 0.0,
                                  kSecondsMax);
              }},
    OptionRow{"prefetch_timeout_max", "", kStorageGroup, OptionKind::number, "S", "0..86400", "",
              "Most of it. The predicted time to recompute bounds it too.",
              [](const Options& o) { return number_text(o.cache.policy.prefetch_timeout_max_s); },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_timeout_max_s, v, 0.0, kSecondsMax);
              }},
    OptionRow{
        "prefetch_retry_interval", "", kStorageGroup, OptionKind::number, "S", "0.001..86400", "",
        "Time until storage is asked again for a waiting request; doubled each time.",
        [](const Options& o) { return number_text(o.cache.policy.prefetch_retry_interval_s); },
        [](Options& o, View v) {
          return set_number(o.cache.policy.prefetch_retry_interval_s, v, 0.001, kSecondsMax);
        }},
    OptionRow{"prefetch_retries", "", kStorageGroup, OptionKind::number, "COUNT", "0..16", "",
              "Times that storage is asked again for a request that waits to be admitted.",
              [](const Options& o) { return std::to_string(o.cache.policy.prefetch_retries_max); },
              [](Options& o, View v) {
                return set_count(o.cache.policy.prefetch_retries_max, v, 0, 16);
              }},
    OptionRow{"prefetch_occupancy_max", "", kStorageGroup, OptionKind::number, "SHARE", "0.01..1",
              "", "Share of the host tier that prefetches may hold at a time.",
              [](const Options& o) { return number_text(o.cache.policy.prefetch_occupancy_max); },
              [](Options& o, View v) {
                return set_number(o.cache.policy.prefetch_occupancy_max, v, 0.01, 1.0);
              }},
    OptionRow{
        "load_back_threshold", "", kStorageGroup, OptionKind::number, "TOKENS", "0..16777216", "",
        "Fewer tokens than this are recomputed, not loaded from the host tier.",
        [](const Options& o) { return std::to_string(o.cache.policy.load_back_threshold_tokens); },
        [](Options& o, View v) {
          return set_count(o.cache.policy.load_back_threshold_tokens, v, 0, 1u << 24);
        }},
    OptionRow{"batch_pages", "", kStorageGroup, OptionKind::number, "PAGES", "1..1024", "",
              "Pages of one read or write.",
              [](const Options& o) { return std::to_string(o.cache.policy.storage_batch_pages); },
              [](Options& o, View v) {
                return set_count(o.cache.policy.storage_batch_pages, v, 1, 1024);
              }},
    OptionRow{
        "breaker_failures", "", kStorageGroup, OptionKind::number, "COUNT", "1..1000", "",
        "So many calls that fail in a row keep further ones from the store for a pause.",
        [](const Options& o) { return std::to_string(breaker_of(o).failures_to_open); },
        [](Options& o, View v) { return set_count(breaker_of(o).failures_to_open, v, 1, 1000); }},
    OptionRow{
        "breaker_pause", "", kStorageGroup, OptionKind::number, "S", "0.01..3600", "",
        "The first pause; then one call tries the store, and each failure doubles the pause.",
        [](const Options& o) { return seconds_text(breaker_of(o).pause_first); },
        [](Options& o, View v) { return set_seconds(breaker_of(o).pause_first, v, 0.01, 3600.0); }},
    OptionRow{
        "breaker_pause_max", "", kStorageGroup, OptionKind::number, "S", "0.01..3600", "",
        "The longest pause.",
        [](const Options& o) { return seconds_text(breaker_of(o).pause_max); },
        [](Options& o, View v) { return set_seconds(breaker_of(o).pause_max, v, 0.01, 3600.0); }},
    OptionRow{
        "breaker_hang_limit", "", kStorageGroup, OptionKind::number, "S", "0.1..3600", "",
        "While a call takes longer, or much longer than its deadline, there are no others.",
        [](const Options& o) { return seconds_text(breaker_of(o).hang_limit); },
        [](Options& o, View v) { return set_seconds(breaker_of(o).hang_limit, v, 0.1, 3600.0); }},
    OptionRow{"failed_keys_max", "", kStorageGroup, OptionKind::number, "COUNT", "0..16777216", "",
              "Pages that were there and could not be loaded, and are not asked for again for a "
              "while: so many of them; 0 is none.",
              [](const Options& o) { return std::to_string(o.cache.storage.failed_keys_max); },
              [](Options& o, View v) {
                return set_count(o.cache.storage.failed_keys_max, v, 0, 1u << 24);
              }},
    OptionRow{"failed_key_pause", "", kStorageGroup, OptionKind::number, "S", "0..86400", "",
              "For so long, or until the page is stored anew.",
              [](const Options& o) { return seconds_text(o.cache.storage.failed_key_pause); },
              [](Options& o, View v) {
                return set_seconds(o.cache.storage.failed_key_pause, v, 0.0, kSecondsMax);
              }},
    OptionRow{
        "backup_queue_max", "", kStorageGroup, OptionKind::number, "COUNT", "1..1048576", "",
        "Backups that wait for the store; further ones are dropped, and made at the next use.",
        [](const Options& o) { return std::to_string(o.cache.storage.backup_queue_max); },
        [](Options& o, View v) {
          return set_count(o.cache.storage.backup_queue_max, v, 1, 1u << 20);
        }},
    OptionRow{"second_touch", "", kStorageGroup, OptionKind::boolean, "BOOL", "a boolean", "",
              "Store a page when it is to be stored a second time: what is used once costs no "
              "writes then.",
              [](const Options& o) { return word(o.cache.storage.second_touch); },
              [](Options& o, View v) { return set_boolean(o.cache.storage.second_touch, v); }},
    OptionRow{"hicache_storage_pass_prefix_keys", "", kStorageGroup, OptionKind::boolean, "BOOL",
              "a boolean", "false", "Accepted for SGLang's sake, without effect.",
              [](const Options&) { return std::string("false"); },
              [](Options&, View v) {
                bool unused = false;
                return set_boolean(unused, v);
              }},
    OptionRow{"tp_lcm_size", "", kStorageGroup, OptionKind::number, "COUNT", "1..1024", "1",
              "Accepted for SGLang's sake, without effect.",
              [](const Options&) { return std::string("1"); },
              [](Options&, View v) {
                std::uint32_t unused = 0;
                return set_count(unused, v, 1, 1024);
              }},
};

constexpr std::array kMooncakeRows = {
    OptionRow{"master_server_address", "", kMooncakeGroup, OptionKind::text, "HOST:PORT",
              "host:port, or [address]:port", "none",
              "The master. It or client_server_address must be given.",
              [](const Options& o) { return of(o).master_server_address; },
              [](Options& o, View v) { return set_address(of(o).master_server_address, v); },
              OptionScope::mooncake, "MOONCAKE_MASTER"},
    OptionRow{"client_server_address", "", kMooncakeGroup, OptionKind::text, "HOST:PORT",
              "host:port, or [address]:port", "none",
              "The daemon of this machine, for standalone_storage.",
              [](const Options& o) { return of(o).client_server_address; },
              [](Options& o, View v) { return set_address(of(o).client_server_address, v); },
              OptionScope::mooncake, "MOONCAKE_CLIENT"},
    OptionRow{"standalone_storage", "", kMooncakeGroup, OptionKind::boolean, "BOOL", "a boolean",
              "", "Be a thin client of that daemon, which moves the bytes.",
              [](const Options& o) { return word(of(o).standalone_storage); },
              [](Options& o, View v) { return set_boolean(of(o).standalone_storage, v); },
              OptionScope::mooncake, "MOONCAKE_STANDALONE_STORAGE"},
    OptionRow{"local_hostname", "", kMooncakeGroup, OptionKind::text, "NAME",
              "a host name or address", "",
              "What peers call this machine. Without its variable LOCAL_HOSTNAME counts.",
              [](const Options& o) { return of(o).local_hostname; },
              [](Options& o, View v) { return set_word(of(o).local_hostname, v); },
              OptionScope::mooncake, "MOONCAKE_LOCAL_HOSTNAME"},
    OptionRow{"metadata_server", "", kMooncakeGroup, OptionKind::text, "TEXT",
              "P2PHANDSHAKE, or the address of a service", "", "How clients find each other.",
              [](const Options& o) { return of(o).metadata_server; },
              [](Options& o, View v) { return set_word(of(o).metadata_server, v); },
              OptionScope::mooncake, "MOONCAKE_TE_META_DATA_SERVER"},
    OptionRow{"global_segment_size", "", kMooncakeGroup, OptionKind::bytes, "SIZE",
              "bytes, or a whole number of gb (1024^3 bytes)", "4gb",
              "Memory that this server gives to the store, in a process of its own; not divided by "
              "--tensor-parallel-size.",
              [](const Options& o) { return format_bytes(of(o).global_segment_size); },
              [](Options& o, View v) { return set_segment_size(of(o).global_segment_size, v); },
              OptionScope::mooncake, "MOONCAKE_GLOBAL_SEGMENT_SIZE"},
    OptionRow{"protocol", "", kMooncakeGroup, OptionKind::text, "NAME", "rdma, tcp", "",
              "How bytes travel. rdma needs a device.",
              [](const Options& o) { return of(o).protocol; },
              [](Options& o, View v) {
                return set_choice(of(o).protocol, v, {"rdma", "tcp"});
              },
              OptionScope::mooncake, "MOONCAKE_PROTOCOL"},
    OptionRow{"device_name", "", kMooncakeGroup, OptionKind::rank_map, "NAMES",
              "names with commas between them, or a table (also as JSON text) of them by rank",
              "any", "RDMA devices; of a table those of rank 0.",
              [](const Options& o) { return of(o).device_name; },
              [](Options& o, View v) { return set_devices(of(o).device_name, v); },
              OptionScope::mooncake, "MOONCAKE_DEVICE"},
    OptionRow{"master_metrics_port", "", kMooncakeGroup, OptionKind::number, "PORT", "0..65535", "",
              "Port of the master's numbers; 0: do not ask.",
              [](const Options& o) { return std::to_string(of(o).master_metrics_port); },
              [](Options& o, View v) { return set_count(of(o).master_metrics_port, v, 0, 65535); },
              OptionScope::mooncake, "MOONCAKE_MASTER_METRICS_PORT"},
    OptionRow{"check_server", "", kMooncakeGroup, OptionKind::boolean, "BOOL", "a boolean", "",
              "Attach only when that port answers.",
              [](const Options& o) { return word(of(o).check_server); },
              [](Options& o, View v) { return set_boolean(of(o).check_server, v); },
              OptionScope::mooncake, "MOONCAKE_CHECK_SERVER"},
    OptionRow{"tenant_id", "", kMooncakeGroup, OptionKind::label, "NAME", "any text", "",
              "Whose objects these are.", [](const Options& o) { return of(o).tenant_id; },
              [](Options& o, View v) { return set_tenant(of(o).tenant_id, v); },
              OptionScope::mooncake, "MOONCAKE_TENANT_ID"},
    OptionRow{"enable_ssd_offload", "", kMooncakeGroup, OptionKind::boolean, "BOOL", "a boolean",
              "", "Evicted objects of this server's memory go to its disk.",
              [](const Options& o) { return word(of(o).enable_ssd_offload); },
              [](Options& o, View v) { return set_boolean(of(o).enable_ssd_offload, v); },
              OptionScope::mooncake, "MOONCAKE_ENABLE_SSD_OFFLOAD"},
    OptionRow{"ssd_offload_path", "", kMooncakeGroup, OptionKind::text, "DIR", "a directory",
              "the store's own", "Where on disk.",
              [](const Options& o) { return of(o).ssd_offload_path; },
              [](Options& o, View v) { return set_any_text(of(o).ssd_offload_path, v); },
              OptionScope::mooncake, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"},
    OptionRow{"extra_backend_tag", "", kMooncakeGroup, OptionKind::label, "TEXT", "any text",
              "none", "Goes in front of every key.",
              [](const Options& o) { return of(o).extra_backend_tag; },
              [](Options& o, View v) { return set_any_text(of(o).extra_backend_tag, v); },
              OptionScope::mooncake_extra},
    OptionRow{"enable_group_semantics", "", kMooncakeGroup, OptionKind::boolean, "BOOL",
              "a boolean", "",
              "Objects of one page are evicted together. SGLang's default is false.",
              [](const Options& o) { return word(of(o).group_semantics); },
              [](Options& o, View v) { return set_boolean(of(o).group_semantics, v); },
              OptionScope::mooncake_extra},
    OptionRow{
        "python", "", kMooncakeGroup, OptionKind::text, "PROGRAM", "a path, or a name in PATH",
        "build/venv/bin/python where the program was built, if it is there; else python3",
        "Interpreter that has the client's package.", [](const Options& o) { return of(o).python; },
        [](Options& o, View v) { return set_word(of(o).python, v); }, OptionScope::mooncake_extra},
    OptionRow{"package_path", "", kMooncakeGroup, OptionKind::text, "DIR", "a directory",
              "beside the program, else where it was built",
              "Folder of this program's Python package.",
              [](const Options& o) { return of(o).package_path; },
              [](Options& o, View v) { return set_word(of(o).package_path, v); },
              OptionScope::mooncake_extra},
    OptionRow{"agent_environment", "", kMooncakeGroup, OptionKind::pairs, "TABLE",
              "a table of texts", "none", "More environment variables for the client's process.",
              [](const Options& o) { return variables_text(of(o)); },
              [](Options& o, View v) { return add_variable(of(o), v); },
              OptionScope::mooncake_extra},
    OptionRow{
        "call_limit", "", kMooncakeGroup, OptionKind::number, "S", "0.01..86400", "",
        "Longest that one call of the client may take; then it is killed.",
        [](const Options& o) { return seconds_text(of(o).call_limit); },
        [](Options& o, View v) { return set_seconds(of(o).call_limit, v, 0.01, kSecondsMax); },
        OptionScope::mooncake_extra},
    OptionRow{"call_limit_per_64mib", "", kMooncakeGroup, OptionKind::number, "S", "0..86400", "",
              "More of it for each 64 MiB that the call moves.",
              [](const Options& o) { return seconds_text(of(o).call_limit_per_64mib); },
              [](Options& o, View v) {
                return set_seconds(of(o).call_limit_per_64mib, v, 0.0, kSecondsMax);
              },
              OptionScope::mooncake_extra},
    OptionRow{
        "start_limit", "", kMooncakeGroup, OptionKind::number, "S", "0.01..86400", "",
        "Longest that its set-up may take.",
        [](const Options& o) { return seconds_text(of(o).start_limit); },
        [](Options& o, View v) { return set_seconds(of(o).start_limit, v, 0.01, kSecondsMax); },
        OptionScope::mooncake_extra},
    OptionRow{"adopt_limit_per_gib", "", kMooncakeGroup, OptionKind::number, "S", "0.01..86400", "",
              "standalone_storage: longest to take over one GiB of memory.",
              [](const Options& o) { return seconds_text(of(o).adopt_limit_per_gib); },
              [](Options& o, View v) {
                return set_seconds(of(o).adopt_limit_per_gib, v, 0.01, kSecondsMax);
              },
              OptionScope::mooncake_extra},
    OptionRow{"query_lanes", "", kMooncakeGroup, OptionKind::number, "COUNT", "1..16", "",
              "Existence queries in flight.",
              [](const Options& o) { return std::to_string(of(o).query_lanes); },
              [](Options& o, View v) { return set_count(of(o).query_lanes, v, 1, 16); },
              OptionScope::mooncake_extra},
    OptionRow{"read_lanes", "", kMooncakeGroup, OptionKind::number, "COUNT", "1..16", "",
              "Reads in flight.", [](const Options& o) { return std::to_string(of(o).read_lanes); },
              [](Options& o, View v) { return set_count(of(o).read_lanes, v, 1, 16); },
              OptionScope::mooncake_extra},
    OptionRow{"write_lanes", "", kMooncakeGroup, OptionKind::number, "COUNT", "1..16", "",
              "Writes in flight.",
              [](const Options& o) { return std::to_string(of(o).write_lanes); },
              [](Options& o, View v) { return set_count(of(o).write_lanes, v, 1, 16); },
              OptionScope::mooncake_extra},
    OptionRow{"object_bytes_max", "", kMooncakeGroup, OptionKind::bytes, "BYTES",
              "1 MiB..64 GiB, whole 4096", "",
              "Larger objects are not stored; at most bounce_bytes.",
              [](const Options& o) { return format_bytes(of(o).object_bytes_max); },
              [](Options& o, View v) {
                return set_pages_of_bytes(of(o).object_bytes_max, v, 1u << 20, 64 * kGibibyte);
              },
              OptionScope::mooncake_extra},
    OptionRow{"bounce_bytes", "", kMooncakeGroup, OptionKind::bytes, "BYTES",
              "1 MiB..64 GiB, whole 4096", "",
              "Shared memory for bytes that the client cannot take as they lie.",
              [](const Options& o) { return format_bytes(of(o).bounce_bytes); },
              [](Options& o, View v) {
                return set_pages_of_bytes(of(o).bounce_bytes, v, 1u << 20, 64 * kGibibyte);
              },
              OptionScope::mooncake_extra},
};

constexpr auto kRows = [] {
  std::array<OptionRow, kStorageRows.size() + kMooncakeRows.size()> all;
  auto end = std::copy(kStorageRows.begin(), kStorageRows.end(), all.begin());
  std::copy(kMooncakeRows.begin(), kMooncakeRows.end(), end);
  return all;
}();

}  // namespace

std::span<const OptionRow> storage_config_table() { return kRows; }

}  // namespace hitide
