// The configuration file of `hitide serve` (--config FILE): a table whose keys are the options'
// names without their dashes in front, with `_` or `-` between words.
#pragma once

#include <string>
#include <vector>

#include <hitide/result.h>

#include "spec/serve_options.h"

namespace hitide {

struct OptionsFile {
  std::vector<std::string> given;         // names of the options that it sets, as in the table
  std::vector<std::string> engine_flags;  // names of those that have no effect here
};

// Reads TOML, or JSON or YAML by the file's ending, and sets what it says in `options`. true turns
// a toggle on, false says nothing; a list is for options that may be given several times; a table
// is for those whose value is JSON. invalid_argument: the file cannot be read, or a value cannot
// be; the message has "FILE:LINE: KEY: ..." (without the line where the format does not tell it).
Result<OptionsFile> apply_options_file(const std::string& path, ServeOptions& options);

}  // namespace hitide
