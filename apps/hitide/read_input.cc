#include "read_input.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <vector>

namespace hitide::cli {

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
  }
  if (std::ferror(file.get()) != 0) return refuse(errno);
  return text;
}

}  // namespace hitide::cli
