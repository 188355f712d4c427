#include "argument_checks.h"

#include <cmath>
#include <cstdlib>

namespace hitide::cli {

std::string not_empty(const std::string& value) { return value.empty() ? "must not be empty" : ""; }

std::string header_text(const std::string& value) {
  for (const char c : value) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) return "must be one line without control characters";
  }
  return not_empty(value);
}

std::string a_number(const std::string& value) {
  return std::isnan(std::strtod(value.c_str(), nullptr)) ? "'" + value + "' is no number" : "";
}

}  // namespace hitide::cli
