// Reads a file that a command was given.
#pragma once

#include <string>

#include <hitide/result.h>

namespace hitide::cli {

// All of the file's bytes; "-" is standard input. invalid_argument: "PATH: why not".
Result<std::string> read_input(const std::string& path);

}  // namespace hitide::cli
