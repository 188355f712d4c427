#include "read_input.h"

#include <cerrno>
#include <cstdio>
#include <exception>
#include <memory>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

namespace hitide::cli {
namespace {
constexpr std::size_t kInputBytesMax = 256u << 20;
}  // namespace

Result<std::string> read_input(const std::string& path) {
  const auto refuse = [&](int error) {
    return Status(StatusCode::invalid_argument,
                  path + ": " + std::generic_category().message(error == 0 ? EIO : error));
  };
  const auto close = [](std::FILE* file) {
    if (file != stdin) std::fclose(file);
  };
  errno = 0;
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return refuse(errno);
  std::string text;
  std::vector<char> block(1u << 16);
  for (;;) {
    const std::size_t bytes = std::fread(block.data(), 1, block.size(), file.get());
    text.append(block.data(), bytes);
    if (bytes < block.size()) break;
    if (text.size() > kInputBytesMax) {
      return Status(StatusCode::invalid_argument, path + ": has more than 256 MiB");
    }
  }
  if (std::ferror(file.get()) != 0) return refuse(errno);
  return text;
}

Result<std::vector<std::int64_t>> read_tokens(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument, "--tokens-file: " + path + ": " + why);
  };
  const Result<std::string> text = read_input(path);
  if (!text.ok()) return text.status().with_context("--tokens-file");
  try {
    const auto json = nlohmann::json::parse(*text);
    if (!json.is_array()) return refuse("must hold a JSON list of token ids");
    std::vector<std::int64_t> tokens;
    tokens.reserve(json.size());
    for (const auto& token : json) {
      if (!token.is_number_integer()) {
        return refuse("place " + std::to_string(tokens.size()) + " is not a whole number");
      }
      tokens.push_back(token.get<std::int64_t>());
    }
    return tokens;
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}

}  // namespace hitide::cli
