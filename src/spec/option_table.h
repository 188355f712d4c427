// The option tables: one row per option of `hitide serve` (option_table.cc) and one per key of the
// storage configuration (storage_table.cc). Command-line parsing, --help, --print-defaults,
// docs/options.md and the range checks come from them; a new option is a field, a row and a test.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spec/serve_options.h"

namespace hitide {

enum class OptionKind : std::uint8_t {
  toggle,  // takes no value; set() ignores it
  text,
  number,
  bytes,  // a size: a number with or without a unit
  // Of keys alone:
  boolean,   // set() takes it as a word
  label,     // text that may look like a number
  rank_map,  // text, or a table of texts by rank, of which set() gets that of rank 0
  pairs,     // a table of texts, for each of which set() gets NAME=TEXT
};

// Where a key of the storage configuration may stand, and with which backend.
enum class OptionScope : std::uint8_t {
  any,             // the extra configuration, with any backend
  file,            // the same, with the backend file alone
  mooncake,        // any source of Mooncake's settings, one of which is used
  mooncake_extra,  // the extra configuration, with the backend mooncake alone
};

struct OptionRow {
  std::string_view name;   // "--page-size", or a key of the storage configuration
  std::string_view alias;  // "-m", or several with commas between them; empty: none
  std::string_view group;
  OptionKind kind = OptionKind::text;
  std::string_view value;         // what the value is called in help, with its unit
  std::string_view range;         // what is accepted, in words
  std::string_view default_text;  // where the default is worked out at start; empty: get() says it
  std::string_view text;
  std::string (*get)(const ServeOptions& options) = nullptr;
  // invalid_argument without the option's name: set_option() puts it in front.
  Status (*set)(ServeOptions& options, std::string_view value) = nullptr;
  OptionScope scope = OptionScope::any;
  std::string_view variable = {};  // the environment variable that says the same; empty: none
  bool repeatable = false;         // may be given several times; set() gets each
};

// Flags, grouped, in the order of the help.
std::span<const OptionRow> option_table();
// Keys of --hicache-storage-backend-extra-config.
std::span<const OptionRow> storage_config_table();

std::vector<std::string_view> aliases_of(const OptionRow& row);

// By name or alias; nullptr: there is none.
const OptionRow* find_option(std::span<const OptionRow> table, std::string_view name);

// invalid_argument: "NAME: what was given and what is accepted", or no such option.
Status set_option(std::span<const OptionRow> table, std::string_view name, std::string_view value,
                  ServeOptions& options);

// What the option is unless it is given, for people.
std::string default_of(const OptionRow& row);

// Works out what depends on which options were given (names as in the table), and refuses options
// that exclude each other. invalid_argument names both.
Status settle_options(ServeOptions& options, std::span<const std::string> given);

// "name value" lines of all defaults.
std::string defaults_text();
// A JSON object with the rows of both tables, and the flags that are not in them.
std::string options_json();
// docs/options.md as a whole.
std::string options_markdown();

}  // namespace hitide
