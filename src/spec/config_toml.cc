// TOML, by toml++.

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "spec/config_builder.h"
#include "spec/config_parsers.h"

namespace hitide {
namespace {

using Kind = ConfigValue::Kind;

// A dotted key nests a table for each of its dots, which the library takes apart by recursion: so
// many are harmless, and far more than a configuration has.
constexpr std::ptrdiff_t kDotsMax = 2000;

Status add(ConfigBuilder& builder, const toml::node& node) {
  builder.line(node.source().begin.line);
  if (const toml::table* table = node.as_table()) {
    HITIDE_RETURN_IF_ERROR(builder.open(Kind::table));
    for (const auto& [key, value] : *table) {
      HITIDE_RETURN_IF_ERROR(builder.key(std::string(key.str())));
      HITIDE_RETURN_IF_ERROR(add(builder, value));
    }
    return builder.close();
  }
  if (const toml::array* list = node.as_array()) {
    HITIDE_RETURN_IF_ERROR(builder.open(Kind::list));
    for (const toml::node& value : *list) HITIDE_RETURN_IF_ERROR(add(builder, value));
    return builder.close();
  }
  if (const auto* text = node.as_string()) return builder.scalar(Kind::text, text->get());
  if (const auto* value = node.as_boolean()) {
    return builder.scalar(Kind::boolean, value->get() ? "true" : "false");
  }
  if (const auto* value = node.as_integer()) {
    return builder.scalar(Kind::number, std::to_string(value->get()));
  }
  if (const auto* value = node.as_floating_point()) {
    return builder.scalar(Kind::number, fmt::format("{}", value->get()));
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("line {}: dates and times have no meaning here; use a string",
                            node.source().begin.line));
}

Status not_toml(std::string_view why) {
  return Status(StatusCode::invalid_argument,
                fmt::format("this is not TOML: {}", why.substr(0, 300)));
}

}  // namespace

Result<ConfigValue> parse_toml_config(std::string_view text) {
  if (std::count(text.begin(), text.end(), '.') > kDotsMax) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("there are more than {} dots in it", kDotsMax));
  }
  try {
    const toml::table table = toml::parse(text);
    ConfigBuilder builder;
    HITIDE_RETURN_IF_ERROR(add(builder, table));
    return builder.take();
  } catch (const toml::parse_error& error) {
    return not_toml(fmt::format("line {}, column {}: {}", error.source().begin.line,
                                error.source().begin.column, error.description()));
  } catch (const std::exception& error) {
    return not_toml(error.what());
  }
}

}  // namespace hitide
