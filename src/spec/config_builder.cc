#include "spec/config_builder.h"

#include <utility>

#include <fmt/format.h>

namespace hitide {

std::string_view to_string(ConfigValue::Kind kind) {
  switch (kind) {
    case ConfigValue::Kind::null:
      return "null";
    case ConfigValue::Kind::boolean:
      return "a boolean";
    case ConfigValue::Kind::number:
      return "a number";
    case ConfigValue::Kind::text:
      return "a string";
    case ConfigValue::Kind::list:
      return "a list";
    case ConfigValue::Kind::table:
      return "a table";
  }
  return "unknown";
}

Status ConfigBuilder::fail(std::string message) {
  if (failed_.ok()) failed_ = Status(StatusCode::invalid_argument, std::move(message));
  return failed_;
}

Status ConfigBuilder::add(ConfigValue value) {
  if (open_.empty()) {
    if (closed_) return fail("there is a second document");
    root_ = std::move(value);
    closed_ = true;
    return {};
  }
  Open& parent = open_.back();
  if (parent.value.kind == ConfigValue::Kind::table) {
    parent.value.keys.push_back(std::move(parent.key));
    parent.key.clear();
  }
  parent.value.items.push_back(std::move(value));
  return {};
}

Status ConfigBuilder::open(ConfigValue::Kind list_or_table) {
  if (!failed_.ok()) return failed_;
  if (++values_ > kValuesMax) return fail(fmt::format("there are more than {} values", kValuesMax));
  if (open_.size() >= kDepthMax) {
    return fail(fmt::format("it is nested more than {} levels deep", kDepthMax));
  }
  if (open_.empty() && closed_) return fail("there is a second document");
  open_.push_back({.value = {.kind = list_or_table, .line = line_}});
  return {};
}

Status ConfigBuilder::close() {
  if (!failed_.ok()) return failed_;
  if (open_.empty()) return fail("something is closed that was not opened");
  ConfigValue value = std::move(open_.back().value);
  open_.pop_back();
  return add(std::move(value));
}

Status ConfigBuilder::key(std::string name) {
  if (!failed_.ok()) return failed_;
  if (open_.empty()) return fail("there is a key outside of a table");
  Open& table = open_.back();
  if (table.value.find(name) != nullptr) {
    return fail(fmt::format("the key '{}' is there twice", name.substr(0, 100)));
  }
  table.key = std::move(name);
  return {};
}

Status ConfigBuilder::scalar(ConfigValue::Kind kind, std::string text) {
  if (!failed_.ok()) return failed_;
  if (++values_ > kValuesMax) return fail(fmt::format("there are more than {} values", kValuesMax));
  return add({.kind = kind, .text = std::move(text), .line = line_});
}

Result<ConfigValue> ConfigBuilder::take() {
  if (!failed_.ok()) return failed_;
  if (!closed_ || root_.kind != ConfigValue::Kind::table) {
    return Status(StatusCode::invalid_argument, "the top level must be a table: keys with values");
  }
  return std::move(root_);
}

}  // namespace hitide
