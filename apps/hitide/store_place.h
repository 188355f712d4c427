// Which store a command means: of `inspect`, `verify`, `export` and `import`.
#pragma once

#include <string>
#include <vector>

#include <hitide/result.h>

#include "spec/serve_options.h"

namespace hitide::cli {

// As a server would take it: the backend, and the configuration from the flag (text or @FILE) and
// the environment. A file store without a path lies in the default directory.
// invalid_argument as of apply_storage_config(), and where no directory is known.
Result<StorageOptions> store_options(const std::string& backend, const std::string& extra_config,
                                     const std::string& directory);

// The file stores at that path: one, or one of each rank. not_found: there is none.
Result<std::vector<std::string>> file_stores_at(const std::string& path);

// Exit code of a store that could not be opened or read.
int store_exit_code(const Status& status);

}  // namespace hitide::cli
