#include "surroundings.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <unistd.h>

namespace hitide::cli {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Environment storage_environment() {
  Environment found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (is_storage_variable(name)) found.emplace(name, text.substr(equals + 1));
  }
  return found;
}

std::string default_file_store() {
  return default_store_path(environment("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"),
                            environment("XDG_CACHE_HOME"), environment("HOME"));
}

std::string installed_package() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path().parent_path() / "share" / "hitide" / "python";
  const bool there = fs::is_directory(folder / "hitide" / "store_agent", error);
  return there ? folder.string() : std::string();
}

std::string default_python() {
  return ::access(HITIDE_SETUP_PYTHON, X_OK) == 0 ? HITIDE_SETUP_PYTHON : "python3";
}

}  // namespace hitide::cli
