// The configuration of the storage tier, from everywhere that it may come from: the extra
// configuration of the launch line, the file that SGLANG_HICACHE_MOONCAKE_CONFIG_PATH names, and
// MOONCAKE_* variables. docs/options.md says which wins.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/result.h>

#include "spec/serve_options.h"

namespace hitide {

// Environment variables by name, as far as is_storage_variable() asks for them.
using Environment = std::map<std::string, std::string, std::less<>>;

// True for the variables that apply_storage_config() looks at: MOONCAKE_*, LOCAL_HOSTNAME and
// SGLANG_HICACHE_MOONCAKE_CONFIG_PATH.
bool is_storage_variable(std::string_view name);

struct StorageConfigReport {
  // Where Mooncake's settings come from; empty with other backends.
  std::string mooncake_source;
  // Each names the source and the key: unknown (with the nearest known one), or not used.
  std::vector<std::string> warnings;
};

// Reads options.storage_extra_config (text or @FILE) and, with the backend mooncake, the source
// that its settings come from, into options.cache; the backend must be set already. Files are read,
// nothing else is asked.
// invalid_argument, with the source, the key and the value: a file that cannot be read, a document
// that cannot be parsed, a value of the wrong type or out of range, a key of another backend, a
// missing address, settings that do not fit together; with options.strict_config also what would be
// a warning.
Result<StorageConfigReport> apply_storage_config(const Environment& environment,
                                                 ServeOptions& options);

// One line in the log for the source, and one for each warning.
void log_storage_config(const StorageConfigReport& report);

// Where the file store lies when the configuration does not say: the directory of SGLang's
// variable, else the XDG cache directory. Empty values count as not set, and a relative
// XDG_CACHE_HOME too. Empty: none of them is set.
std::string default_store_path(const std::string& sglang_directory,
                               const std::string& xdg_cache_home, const std::string& home);

}  // namespace hitide
