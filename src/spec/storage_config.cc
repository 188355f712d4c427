#include "spec/storage_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "spec/config_document.h"
#include "spec/mooncake_options.h"
#include "spec/nearest_name.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

using Kind = ConfigValue::Kind;

constexpr std::string_view kFlag = "--hicache-storage-backend-extra-config";
constexpr std::string_view kFileVariable = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH";
constexpr std::string_view kVariablePrefix = "MOONCAKE_";
constexpr std::string_view kHostVariable = "LOCAL_HOSTNAME";
constexpr std::string_view kRank = "0";  // llama.cpp computes as one rank

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

bool is_mooncake(const OptionRow& row) {
  return row.scope == OptionScope::mooncake || row.scope == OptionScope::mooncake_extra;
}

std::string_view accepted_types(const OptionRow& row) {
  switch (row.kind) {
    case OptionKind::text:
      return "a string";
    case OptionKind::number:
      return "a number";
    case OptionKind::boolean:
      return "true or false";
    case OptionKind::rank_map:
      return "a string, or a table of strings by rank";
    case OptionKind::pairs:
      return "a table of strings";
    default:
      return "a number or a string";
  }
}

Status wrong_type(const OptionRow& row, const ConfigValue& value) {
  const std::string shown =
      value.text.empty() ? "" : fmt::format(" ({})", value.text.substr(0, 100));
  return refuse(fmt::format("{}: must be {}, not {}{}", row.name, accepted_types(row),
                            to_string(value.kind), shown));
}

bool takes(const OptionRow& row, Kind kind) {
  switch (row.kind) {
    case OptionKind::text:
      return kind == Kind::text;
    case OptionKind::number:
      return kind == Kind::number || (kind == Kind::text && is_mooncake(row));
    case OptionKind::boolean:
      return kind == Kind::boolean || kind == Kind::number || kind == Kind::text;
    case OptionKind::rank_map:
      return kind == Kind::text || kind == Kind::table;
    case OptionKind::pairs:
      return kind == Kind::table;
    default:
      return kind == Kind::number || kind == Kind::text;
  }
}

Status set_by_rank(const OptionRow& row, ConfigValue value, ServeOptions& options) {
  if (value.kind == Kind::text && value.text.find_first_not_of(" \t") != std::string::npos &&
      value.text[value.text.find_first_not_of(" \t")] == '{') {
    Result<ConfigValue> table = parse_config(value.text, ConfigFormat::json);
    if (!table.ok()) {
      return refuse(fmt::format("{}: '{}': {}", row.name, value.text.substr(0, 200),
                                table.status().message()));
    }
    value = std::move(*table);
  }
  std::string_view text = value.text;
  if (value.kind == Kind::table) {
    for (const ConfigValue& item : value.items) {
      if (item.kind != Kind::text) return wrong_type(row, item);
    }
    const ConfigValue* own = value.find(kRank);
    text = own == nullptr ? std::string_view() : own->text;
  }
  return row.set(options, text).with_context(row.name);
}

Status set_pairs(const OptionRow& row, const ConfigValue& table, ServeOptions& options) {
  for (std::size_t i = 0; i < table.keys.size(); ++i) {
    const ConfigValue& item = table.items[i];
    if (item.kind != Kind::text && item.kind != Kind::number) return wrong_type(row, item);
    const std::string pair = fmt::format("{}={}", table.keys[i], item.text);
    HITIDE_RETURN_IF_ERROR(row.set(options, pair).with_context(row.name));
  }
  return {};
}

Status set_value(const OptionRow& row, const ConfigValue& value, ServeOptions& options) {
  if (value.kind == Kind::null && is_mooncake(row)) return {};
  if (!takes(row, value.kind)) return wrong_type(row, value);
  if (row.kind == OptionKind::rank_map) return set_by_rank(row, value, options);
  if (row.kind == OptionKind::pairs) return set_pairs(row, value, options);
  return row.set(options, value.text).with_context(row.name);
}

template <typename Wanted>
std::vector<std::string_view> names_of_keys(const Wanted& wanted) {
  std::vector<std::string_view> names;
  for (const OptionRow& row : storage_config_table()) {
    if (wanted(row)) names.push_back(row.name);
  }
  return names;
}

// One document on its way into the options.
class Reader {
 public:
  Reader(const Environment& environment, ServeOptions& options)
      : environment_(environment), options_(options) {}

  Result<StorageConfigReport> run() {
    HITIDE_RETURN_IF_ERROR(read_extra_config());
    const bool mooncake = options_.cache.storage.backend == "mooncake";
    const bool extra = mooncake && names_server(extra_);
    HITIDE_RETURN_IF_ERROR(apply_extra_config(extra));
    if (mooncake) {
      if (extra) {
        report_.mooncake_source = extra_label_;
      } else {
        HITIDE_RETURN_IF_ERROR(variable(kFileVariable).empty() ? apply_environment()
                                                               : apply_file());
      }
      HITIDE_RETURN_IF_ERROR(check_mooncake());
    }
    if (options_.strict_config && !report_.warnings.empty()) {
      return refuse(fmt::format("{} (--strict-config)", report_.warnings.front()));
    }
    return std::move(report_);
  }

 private:
  std::string_view variable(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? std::string_view() : std::string_view(found->second);
  }

  static bool names_server(const ConfigValue& document) {
    for (const char* key : {"master_server_address", "client_server_address"}) {
      const ConfigValue* value = document.find(key);
      if (value != nullptr && value->kind != Kind::null) return true;
    }
    return false;
  }

  Status read_extra_config() {
    const std::string& given = options_.storage_extra_config;
    extra_label_ = kFlag;
    if (given.empty()) return {};
    if (given[0] != '@') {
      Result<ConfigValue> parsed = parse_config(given, ConfigFormat::json);
      if (!parsed.ok()) return parsed.status().with_context(kFlag);
      extra_ = std::move(*parsed);
      return {};
    }
    const std::string path = given.substr(1);
    const Result<std::string> text = read_config_file(path);
    if (!text.ok()) return text.status().with_context(kFlag);
    const Result<ConfigFormat> format = config_format_of(path);
    if (!format.ok()) return format.status().with_context(kFlag);
    extra_label_ = fmt::format("{}: {}", kFlag, path);
    Result<ConfigValue> parsed = parse_config(*text, *format);
    if (!parsed.ok()) return parsed.status().with_context(extra_label_);
    extra_ = std::move(*parsed);
    return {};
  }

  // `source`: Mooncake's settings come from here.
  Status apply_extra_config(bool source) {
    const std::string& backend = options_.cache.storage.backend;
    std::vector<std::string_view> unused;
    for (std::size_t i = 0; i < extra_.keys.size(); ++i) {
      const std::string& key = extra_.keys[i];
      const OptionRow* row = find_option(storage_config_table(), key);
      if (row == nullptr) {
        warn_unknown(extra_label_, key, names_of_keys([](const OptionRow&) { return true; }));
        continue;
      }
      const std::string_view wants = row->scope == OptionScope::file ? "file"
                                     : is_mooncake(*row)             ? "mooncake"
                                                                     : std::string_view(backend);
      if (wants != backend) {
        return refuse(
            fmt::format("{}: {} goes with the backend {}, and --hicache-storage-backend "
                        "is {}",
                        extra_label_, key, wants, backend));
      }
      if (row->scope == OptionScope::mooncake && !source) {
        unused.push_back(row->name);
        continue;
      }
      HITIDE_RETURN_IF_ERROR(set_value(*row, extra_.items[i], options_).with_context(extra_label_));
    }
    if (!unused.empty()) {
      report_.warnings.push_back(
          fmt::format("{}: not used: {}; the store's settings come from elsewhere, since neither "
                      "master_server_address nor client_server_address is here",
                      extra_label_, fmt::join(unused, ", ")));
    }
    return {};
  }

  Status apply_file() {
    const std::string path(variable(kFileVariable));
    const std::string label = fmt::format("{} {}", kFileVariable, path);
    report_.mooncake_source = label;
    const Result<std::string> text = read_config_file(path);
    if (!text.ok()) return text.status().with_context(kFileVariable);
    const Result<ConfigValue> document =
        parse_config(*text, config_format_of(path).value_or(ConfigFormat::json));
    if (!document.ok()) return document.status().with_context(label);
    const auto belongs = [](const OptionRow& row) { return row.scope == OptionScope::mooncake; };
    for (std::size_t i = 0; i < document->keys.size(); ++i) {
      const std::string& key = document->keys[i];
      const OptionRow* row = find_option(storage_config_table(), key);
      if (row == nullptr) {
        warn_unknown(label, key, names_of_keys(belongs));
      } else if (!belongs(*row)) {
        report_.warnings.push_back(fmt::format(
            "{}: {}: not used; this key is read from the extra configuration alone", label, key));
      } else {
        HITIDE_RETURN_IF_ERROR(set_value(*row, document->items[i], options_).with_context(label));
      }
    }
    return {};
  }

  Status apply_environment() {
    report_.mooncake_source = "environment variables MOONCAKE_*";
    std::vector<std::string_view> known;
    for (const OptionRow& row : storage_config_table()) {
      if (row.variable.empty()) continue;
      known.push_back(row.variable);
      std::string_view name = row.variable;
      if (row.name == "local_hostname" && variable(name).empty()) name = kHostVariable;
      if (variable(name).empty()) continue;
      const ConfigValue value{.kind = Kind::text, .text = std::string(variable(name))};
      HITIDE_RETURN_IF_ERROR(set_value(row, value, options_).with_context(name));
    }
    // Mooncake has variables of its own; only what looks like a slip is worth a word.
    for (const auto& [name, value] : environment_) {
      if (!name.starts_with(kVariablePrefix)) continue;
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const std::string_view nearest = nearest_name(name, known);
      if (nearest.empty() || edit_distance(name, nearest) > 2) continue;
      report_.warnings.push_back(
          fmt::format("environment: {} is not a known variable; did you mean {}?", name, nearest));
    }
    return {};
  }

  Status check_mooncake() {
    const MooncakeOptions& mooncake = options_.cache.storage.mooncake;
    const std::string& source = report_.mooncake_source;
    if (mooncake.master_server_address.empty() && mooncake.client_server_address.empty()) {
      return refuse(fmt::format(
          "--hicache-storage-backend mooncake: {} names no store; give master_server_address (or "
          "client_server_address with standalone_storage) in {}, or in the file that {} names, or "
          "set MOONCAKE_MASTER",
          source, kFlag, kFileVariable));
    }
    if (mooncake.master_server_address.empty() && !mooncake.standalone_storage) {
      return refuse(
          fmt::format("{}: client_server_address '{}' alone is for standalone_storage; "
                      "set that, or give master_server_address",
                      source, mooncake.client_server_address));
    }
    return validate(mooncake).with_context(source);
  }

  void warn_unknown(std::string_view label, std::string_view key,
                    const std::vector<std::string_view>& known) {
    report_.warnings.push_back(fmt::format("{}: '{}' is not a known key{}", label,
                                           key.substr(0, 100), did_you_mean(key, known)));
  }

  const Environment& environment_;
  ServeOptions& options_;
  ConfigValue extra_;
  std::string extra_label_;
  StorageConfigReport report_;
};

}  // namespace

bool is_storage_variable(std::string_view name) {
  return name.starts_with(kVariablePrefix) || name == kHostVariable || name == kFileVariable;
}

Result<StorageConfigReport> apply_storage_config(const Environment& environment,
                                                 ServeOptions& options) {
  return Reader(environment, options).run();
}

void log_storage_config(const StorageConfigReport& report) {
  if (!report.mooncake_source.empty()) {
    log_info("mooncake_configuration", {{"source", report.mooncake_source}});
  }
  for (const std::string& warning : report.warnings) {
    log_warning("storage_configuration", {{"problem", warning}});
  }
}

std::string default_store_path(const std::string& sglang_directory,
                               const std::string& xdg_cache_home, const std::string& home) {
  if (!sglang_directory.empty()) return sglang_directory;
  if (!xdg_cache_home.empty() && xdg_cache_home[0] == '/') return xdg_cache_home + "/hitide/store";
  if (!home.empty()) return home + "/.cache/hitide/store";
  return {};
}

}  // namespace hitide
