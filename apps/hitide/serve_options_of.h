// From what a command line gave to the options of `serve`: of `serve` itself, `warm`, `export` and
// `import`.
#pragma once

#include <hitide/result.h>

#include "serve_arguments.h"
#include "spec/serve_options.h"
#include "spec/storage_config.h"

namespace hitide::cli {

struct ReadOptions {
  ServeOptions options;
  StorageConfigReport storage;  // not logged yet: the log level is one of the options
  bool no_store_path = false;   // a file store without a directory, and no default is known
};

// The file that --config names, what was given over it, and the storage configuration from all its
// sources. invalid_argument names the option, or the source and the key.
Result<ReadOptions> read_serve_options(const GivenOptions& given);

}  // namespace hitide::cli
