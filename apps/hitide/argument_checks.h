// Checks of arguments, for CLI11's check(): what is wrong, or an empty text.
#pragma once

#include <string>

namespace hitide::cli {

// An empty argument is most often a variable that a script has not set, and never "not given".
std::string not_empty(const std::string& value);

// As not_empty, and one line: it becomes part of a request's head.
std::string header_text(const std::string& value);

// CLI11's ranges let NaN pass.
std::string a_number(const std::string& value);

}  // namespace hitide::cli
