// The storage configuration of --hicache-storage-backend-extra-config.
#pragma once

#include <string_view>

#include "spec/serve_options.h"

namespace hitide {

// Sets the options of storage_config_table() from a JSON object. invalid_argument that names the
// key: unknown (with the known ones), twice, of the wrong type, or out of range; or says that the
// text is no JSON object.
Status apply_storage_config(std::string_view json, ServeOptions& options);

}  // namespace hitide
