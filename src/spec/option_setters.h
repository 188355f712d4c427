// What the rows of the option tables are made of: one setter for each kind of value. All answer
// invalid_argument with what was given and what is accepted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <hitide/result.h>
#include <hitide/types.h>

#include "spec/parse_value.h"

namespace hitide {

template <typename T>
Status set_count(T& field, std::string_view value, std::uint64_t least, std::uint64_t most) {
  HITIDE_ASSIGN_OR_RETURN(const std::uint64_t count, parse_count(value, least, most));
  field = static_cast<T>(count);
  return {};
}

Status set_number(double& field, std::string_view value, double least, double most);
Status set_seconds(Duration& field, std::string_view value, double least, double most);
Status set_bytes(std::uint64_t& field, std::string_view value, std::uint64_t bare_unit);
// With or without a unit; in [least, most] bytes and a multiple of 4096.
Status set_pages_of_bytes(std::uint64_t& field, std::string_view value, std::uint64_t least,
                          std::uint64_t most);
// Not empty, no zero byte.
Status set_text(std::string& field, std::string_view value);
Status unknown_name(std::string_view value, std::string_view known);
Status check_choice(std::string_view value, std::initializer_list<std::string_view> choices);
Status set_choice(std::string& field, std::string_view value,
                  std::initializer_list<std::string_view> choices);
// Values by their names.
template <typename T, std::size_t kCount>
using Names = std::array<std::pair<std::string_view, T>, kCount>;
template <typename T, std::size_t kCount>
Status set_named(T& field, std::string_view value, const Names<T, kCount>& names) {
  std::string known;
  for (const auto& [name, named] : names) {
    if (name == value) {
      field = named;
      return {};
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return unknown_name(value, known);
}
template <typename T, std::size_t kCount>
std::string name_of(T value, const Names<T, kCount>& names) {
  for (const auto& [name, named] : names) {
    if (named == value) return std::string(name);
  }
  return {};
}
// true, 1, yes, y; false, 0, no, n; in any case.
Status set_boolean(bool& field, std::string_view value);

std::string number_text(double value);
std::string seconds_text(Duration value);
std::string toggle_text(bool value);

}  // namespace hitide
