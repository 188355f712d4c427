// Configuration documents: JSON, TOML and YAML as the same values, under the same bounds.
//
// YAML is read with types of its own, those of YAML 1.2's core schema: true and false are booleans
// in three spellings each; null, ~ and nothing are null; decimal, 0x and 0o numbers are numbers.
// Everything else, and everything in quotes, is text: yes, no, on, off, 12:30, dates. Anchors,
// aliases, merge keys, second documents and tags other than !!str are refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <hitide/result.h>

#include "spec/config_value.h"

namespace hitide {

constexpr std::size_t kConfigBytesMax = 1u << 20;

enum class ConfigFormat : std::uint8_t { json, toml, yaml };
std::string_view to_string(ConfigFormat format);

// By the ending of a file's name: .json, .toml, .yaml, .yml, in any case. invalid_argument names
// the ending and these.
Result<ConfigFormat> config_format_of(std::string_view path);

// A table. invalid_argument: more than kConfigBytesMax bytes, a zero byte or another control
// character, bytes that are no UTF-8, what the format does not allow (with the place), a key twice
// in one table, nested too deep, too many values, a top level that is no table. Never throws.
Result<ConfigValue> parse_config(std::string_view text, ConfigFormat format);

// The bytes of a regular file, kConfigBytesMax at most. invalid_argument names the path and why;
// never waits for what is no regular file.
Result<std::string> read_config_file(const std::string& path);

}  // namespace hitide
