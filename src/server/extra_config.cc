#include "server/extra_config.h"

#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "spec/option_table.h"

namespace hitide {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kFlag = "--hicache-storage-backend-extra-config";

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", kFlag, message));
}

Status apply_key(const std::string& key, const Json& value, ServeOptions& options) {
  const OptionRow* row = find_option(storage_config_table(), key);
  std::string text;
  if (row != nullptr) {
    const bool number = value.is_number() && row->kind != OptionKind::text;
    const bool string = value.is_string() && row->kind != OptionKind::number;
    if (!number && !string) {
      return refuse(fmt::format("{}: must be a {}, not {}", key,
                                row->kind == OptionKind::text     ? "string"
                                : row->kind == OptionKind::number ? "number"
                                                                  : "number or a string",
                                value.type_name()));
    }
    text = string ? value.get<std::string>() : value.dump();
  }
  return set_option(storage_config_table(), key, text, options).with_context(kFlag);
}

}  // namespace

Status apply_storage_config(std::string_view json, ServeOptions& options) {
  Json parsed;
  std::set<std::string> seen;
  std::string twice;
  // The parser keeps the last of two equal keys; one of them was meant to be another.
  const auto note_keys = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key && depth == 1) {
      const auto key = value.get<std::string>();
      if (!seen.insert(key).second) twice = key;
    }
    return true;
  };
  try {
    parsed = Json::parse(json, note_keys);
  } catch (const std::exception& error) {
    return refuse(fmt::format("this is not JSON: {}", std::string(error.what()).substr(0, 300)));
  }
  if (!parsed.is_object()) return refuse("must be a JSON object, such as {\"path\": \"DIR\"}");
  if (!twice.empty()) return refuse(fmt::format("the key '{}' is there twice", twice));
  for (const auto& [key, value] : parsed.items()) {
    HITIDE_RETURN_IF_ERROR(apply_key(key, value, options));
  }
  const bool for_file = parsed.contains("path") || parsed.contains("max_size") ||
                        parsed.contains("segment_size") || parsed.contains("sync_interval_ms");
  if (for_file && options.cache.storage.backend != "file") {
    return refuse(fmt::format(
        "path, max_size, segment_size and sync_interval_ms go with the backend file, not {}",
        options.cache.storage.backend));
  }
  return {};
}

}  // namespace hitide
