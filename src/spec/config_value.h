// ConfigValue: what configuration documents of any format hold, with the types that HiTide tells
// apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hitide {

struct ConfigValue {
  enum class Kind : std::uint8_t { null, boolean, number, text, list, table };
  Kind kind = Kind::null;
  // boolean: "true" or "false"; number: in decimal; text: itself, UTF-8.
  std::string text = {};
  std::size_t line = 0;                 // where it stands; 0: the format does not tell
  std::vector<std::string> keys = {};   // of a table, each once, in the document's order
  std::vector<ConfigValue> items = {};  // of a list; of a table one for each key

  // The item of `key`; nullptr: there is none, or this is no table.
  const ConfigValue* find(std::string_view key) const {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == key) return &items[i];
    }
    return nullptr;
  }
};

// "a boolean", "a table" ..., for messages.
std::string_view to_string(ConfigValue::Kind kind);

}  // namespace hitide
