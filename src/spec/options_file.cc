#include "spec/options_file.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "spec/config_document.h"
#include "spec/engine_flags.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

using Kind = ConfigValue::Kind;

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

// "page_size", "page-size" and "--page-size" are --page-size.
std::string flag_of(std::string_view key) {
  while (key.starts_with('-')) key.remove_prefix(1);
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

nlohmann::ordered_json json_of(const ConfigValue& value) {
  using Json = nlohmann::ordered_json;
  switch (value.kind) {
    case Kind::null:
      return nullptr;
    case Kind::boolean:
      return value.text == "true";
    case Kind::number: {
      Json number = Json::parse(value.text, nullptr, false);
      return number.is_number() ? number : Json(value.text);
    }
    case Kind::text:
      return value.text;
    case Kind::list: {
      Json list = Json::array();
      for (const ConfigValue& item : value.items) list.push_back(json_of(item));
      return list;
    }
    case Kind::table: {
      Json table = Json::object();
      for (std::size_t i = 0; i < value.keys.size(); ++i) {
        table[value.keys[i]] = json_of(value.items[i]);
      }
      return table;
    }
  }
  return nullptr;
}

// The texts that an option is set with; none: it is not given after all.
Result<std::vector<std::string>> texts_of(const OptionRow& row, const ConfigValue& value) {
  constexpr std::string_view kJsonValue = "JSON";
  if (value.kind == Kind::null) return std::vector<std::string>();
  if (row.kind == OptionKind::toggle) {
    if (value.kind != Kind::boolean) return refuse("must be true or false");
    return value.text == "true" ? std::vector<std::string>{""} : std::vector<std::string>();
  }
  if (value.kind == Kind::table) {
    if (row.value != kJsonValue) return refuse("must be one value, not a table");
    return std::vector<std::string>{json_of(value).dump()};
  }
  if (value.kind == Kind::list) {
    if (!row.repeatable) return refuse("must be one value, not a list");
    std::vector<std::string> texts;
    for (const ConfigValue& item : value.items) {
      if (item.kind != Kind::text) return refuse("must be a list of strings");
      texts.push_back(item.text);
    }
    return texts;
  }
  if (value.kind == Kind::boolean) return refuse("must be a value, not true or false");
  return std::vector<std::string>{value.text};
}

Status apply_one(const std::string& key, const ConfigValue& value, ServeOptions& options,
                 OptionsFile& file) {
  const std::string flag = flag_of(key);
  const OptionRow* row = find_option(option_table(), flag);
  if (row == nullptr) {
    const std::vector<std::string_view> known = accepted_engine_flags();
    if (std::find(known.begin(), known.end(), flag) == known.end()) return unknown_flag(flag);
    file.engine_flags.push_back(flag);
    return {};
  }
  if (row->name == "--config") return refuse("a configuration file cannot name another one");
  HITIDE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, texts_of(*row, value));
  for (const std::string& text : texts) HITIDE_RETURN_IF_ERROR(row->set(options, text));
  if (!texts.empty()) file.given.emplace_back(row->name);
  return {};
}

}  // namespace

Result<OptionsFile> apply_options_file(const std::string& path, ServeOptions& options) {
  HITIDE_ASSIGN_OR_RETURN(const ConfigFormat format, config_format_of(path));
  HITIDE_ASSIGN_OR_RETURN(const std::string text, read_config_file(path));
  const Result<ConfigValue> parsed = parse_config(text, format);
  if (!parsed.ok()) return parsed.status().with_context(path);
  OptionsFile file;
  for (std::size_t i = 0; i < parsed->keys.size(); ++i) {
    const std::string& key = parsed->keys[i];
    const ConfigValue& value = parsed->items[i];
    const std::string place = value.line == 0 ? path : fmt::format("{}:{}", path, value.line);
    const std::string shown = key.substr(0, 100);
    const auto twice = [&](const std::string& name) {
      return std::find(file.given.begin(), file.given.end(), name) != file.given.end();
    };
    const OptionRow* row = find_option(option_table(), flag_of(key));
    if (row != nullptr && twice(std::string(row->name))) {
      return refuse(fmt::format("{}: {}: {} is there twice", place, shown, row->name));
    }
    const Status status = apply_one(key, value, options, file);
    if (!status.ok()) return status.with_context(fmt::format("{}: {}", place, shown));
  }
  return file;
}

}  // namespace hitide
