#include "spec/option_setters.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/clock.h"

namespace hitide {
namespace {

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

}  // namespace

Status set_number(double& field, std::string_view value, double least, double most) {
  HITIDE_ASSIGN_OR_RETURN(field, parse_number(value, least, most));
  return {};
}

Status set_seconds(Duration& field, std::string_view value, double least, double most) {
  HITIDE_ASSIGN_OR_RETURN(const double seconds, parse_number(value, least, most));
  field = from_seconds(seconds);
  return {};
}

Status set_bytes(std::uint64_t& field, std::string_view value, std::uint64_t bare_unit) {
  HITIDE_ASSIGN_OR_RETURN(field, parse_bytes(value, bare_unit));
  return {};
}

Status set_pages_of_bytes(std::uint64_t& field, std::string_view value, std::uint64_t least,
                          std::uint64_t most) {
  HITIDE_ASSIGN_OR_RETURN(const std::uint64_t bytes, parse_bytes(value, 1));
  if (bytes < least || bytes > most || bytes % 4096 != 0) {
    return refuse(fmt::format("'{}' is not in {}..{}, or no multiple of 4096 bytes", value,
                              format_bytes(least), format_bytes(most)));
  }
  field = bytes;
  return {};
}

Status set_text(std::string& field, std::string_view value) {
  if (value.empty()) return refuse("the value is empty");
  if (value.find('\0') != std::string_view::npos) return refuse("the value has a zero byte");
  field = value;
  return {};
}

Status unknown_name(std::string_view value, std::string_view known) {
  return refuse(fmt::format("'{}' is not here; there are {}", value.substr(0, 200), known));
}

Status check_choice(std::string_view value, std::initializer_list<std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return {};
  return refuse(fmt::format("'{}' is not here; there {} {}", value.substr(0, 200),
                            choices.size() == 1 ? "is" : "are", fmt::join(choices, ", ")));
}

Status set_choice(std::string& field, std::string_view value,
                  std::initializer_list<std::string_view> choices) {
  HITIDE_RETURN_IF_ERROR(check_choice(value, choices));
  field = value;
  return {};
}

Status set_boolean(bool& field, std::string_view value) {
  std::string word(value.substr(0, 8));
  for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is_one_of({"true", "1", "yes", "y"})) {
    field = true;
  } else if (is_one_of({"false", "0", "no", "n"})) {
    field = false;
  } else {
    return refuse(
        fmt::format("'{}' is neither true, 1, yes, y nor false, 0, no, n", value.substr(0, 200)));
  }
  return {};
}

std::string number_text(double value) { return fmt::format("{}", value); }
std::string seconds_text(Duration value) { return number_text(to_seconds(value)); }
std::string toggle_text(bool value) { return value ? "on" : "off"; }

}  // namespace hitide
