// Reads a file that a command was given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hitide/result.h>

namespace hitide::cli {

// All of the file's bytes, 256 MiB at most; "-" is standard input. invalid_argument: "PATH: why
// not".
Result<std::string> read_input(const std::string& path);

// A JSON list of token ids. invalid_argument: "--tokens-file: PATH: why not".
Result<std::vector<std::int64_t>> read_tokens(const std::string& path);

}  // namespace hitide::cli
