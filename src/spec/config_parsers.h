// One parser for each format behind parse_config(), which has looked at size and bytes already.
// invalid_argument where the text is none of the format. Each catches what its library throws.
#pragma once

#include <string_view>

#include <hitide/result.h>

#include "spec/config_value.h"

namespace hitide {

Result<ConfigValue> parse_json_config(std::string_view text);
Result<ConfigValue> parse_toml_config(std::string_view text);
Result<ConfigValue> parse_yaml_config(std::string_view text);

}  // namespace hitide
