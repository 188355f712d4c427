// What the program takes from its surroundings: environment variables, and what lies beside it.
#pragma once

#include <string>

#include "spec/storage_config.h"

namespace hitide::cli {

// Empty: not set.
std::string environment(const char* name);

// The variables that the storage configuration may come from.
Environment storage_environment();

// Where a file store lies that is not configured; empty: nothing says so.
std::string default_file_store();

// Folder of the Python package of an installed program: share/hitide/python beside the folder that
// the program is in. Empty: it is not there, and the place where it was built counts.
std::string installed_package();

// The interpreter that has Mooncake's client unless one is named: that of `make setup` where the
// program was built, if it is there; else python3.
std::string default_python();

}  // namespace hitide::cli
