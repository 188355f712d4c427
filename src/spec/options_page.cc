// The texts that come from the option tables: --print-defaults and docs/options.md.

#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "spec/engine_flags.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

constexpr std::size_t kPageWidth = 100;

std::string code(std::string_view text) {
  return text.empty() ? std::string() : fmt::format("`{}`", text);
}

template <typename Wanted>
void append_rows(std::string& out, std::span<const OptionRow> rows, const Wanted& wanted) {
  out += "| option | value | accepted | default | meaning |\n|---|---|---|---|---|\n";
  for (const OptionRow& row : rows) {
    if (!wanted(row)) continue;
    std::string names = code(row.name);
    for (const std::string_view alias : aliases_of(row)) names += fmt::format(", `{}`", alias);
    if (!row.variable.empty()) names += fmt::format(", `{}`", row.variable);
    out += fmt::format("| {} | {} | {} | {} | {} |\n", names, code(row.value), row.range,
                       default_of(row), row.text);
  }
}

// Names as one paragraph of bounded width.
void append_names(std::string& out, std::span<const std::string_view> names) {
  std::string line;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string word = fmt::format("`{}`{}", names[i], i + 1 < names.size() ? "," : ".");
    if (!line.empty() && line.size() + 1 + word.size() > kPageWidth) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  out += line + "\n";
}

void append_storage_configuration(std::string& out) {
  out +=
      "\n## Storage configuration\n\n"
      "Keys of `--hicache-storage-backend-extra-config`: a JSON object, or `@FILE` with a table in "
      "JSON\n(`.json`), TOML (`.toml`) or YAML (`.yaml`, `.yml`), at most 1 MiB. A value that "
      "cannot be is an\nerror that names key, value and source. A key that is not in these tables "
      "is one\nwarning (with the nearest name); with `--strict-config` it is an error. A key of "
      "another backend is\nrefused.\n\n"
      "YAML is read with the types of its core schema: `true` and `false` are booleans; `no`, "
      "`off` and\n`12:30` are text. Anchors, aliases, merge keys and tags are refused.\n\n";
  const auto is_of = [](OptionScope scope) {
    return [scope](const OptionRow& row) { return row.scope == scope; };
  };
  append_rows(out, storage_config_table(), is_of(OptionScope::any));
  out += "\nWith the backend file:\n\n";
  append_rows(out, storage_config_table(), is_of(OptionScope::file));
  out +=
      "\n### Mooncake\n\n"
      "These come from **one** of three sources: the extra configuration, where it has\n"
      "`master_server_address` or `client_server_address`; else the file that\n"
      "`SGLANG_HICACHE_MOONCAKE_CONFIG_PATH` names (by its ending, else JSON); else the "
      "environment\nvariables. The sources do not merge: a key that the chosen one lacks has its "
      "default. `null`, and\nan empty variable, count as not given. Booleans are `true`, `1`, "
      "`yes`, `y` and `false`, `0`, `no`,\n`n`.\n\n";
  append_rows(out, storage_config_table(), is_of(OptionScope::mooncake));
  out += "\nThese come from the extra configuration alone, whatever the others come from:\n\n";
  append_rows(out, storage_config_table(), is_of(OptionScope::mooncake_extra));
}

void append_file(std::string& out) {
  out +=
      "\n## The file of `--config`\n\n"
      "A table of the options above, without the dashes in front; words are joined by `-` or "
      "`_`:\n\n"
      "```toml\n"
      "model-path = \"/models/model.gguf\"\n"
      "page-size = 64\n"
      "hicache-size = \"16GB\"\n"
      "enable-cache-report = true\n"
      "host-allocator = [\"mmap\"]\n\n"
      "[hicache-storage-backend-extra-config]\n"
      "path = \"/var/lib/hitide\"\n"
      "max_size = \"100GB\"\n"
      "```\n\n"
      "`true` turns on an option without a value, `false` says nothing. A list is for options that "
      "may be\ngiven several times. The storage configuration is a table, or text as on the "
      "command "
      "line. An error\nnames file, line, key and value; an unknown key is one, with the nearest "
      "name. JSON and YAML are read\ntoo, by the file's ending, and tell no line.\n";
}

void append_what_wins(std::string& out) {
  out +=
      "\n## What wins\n\n"
      "- `--hicache-size` over `--hicache-ratio`; without both the host tier takes a quarter of "
      "the\n"
      "  free memory.\n"
      "- The key `path` over `SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR`, and that over the XDG "
      "cache\n  directory.\n"
      "- `--host-allocator POOL=KIND` over `--host-allocator KIND`.\n"
      "- The command line over the file of `--config`, and that over the defaults.\n"
      "- `--disable-radix-cache` excludes `--enable-hierarchical-cache`, `--hicache-size`,\n"
      "  `--hicache-ratio`, the storage configuration, and any storage backend but `none`.\n";
}

void append_launch_lines(std::string& out) {
  out +=
      "\n## Launch lines that come from SGLang\n\n"
      "Of an option given twice the last one counts. One line each in the log says what was "
      "accepted without\neffect: memory layout and I/O backend (pages are stored as "
      "`page_packed`), `--tensor-parallel-size`\nabove 1, and the engine's flags below. Of the "
      "environment the program reads `MOONCAKE_*` (above),\n`LOCAL_HOSTNAME`, "
      "`SGLANG_HICACHE_MOONCAKE_CONFIG_PATH`, "
      "`SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR`,\n`XDG_CACHE_HOME` and `HOME`; other variables "
      "of SGLang, `SGLANG_ENABLE_UNIFIED_RADIX_TREE` among them,\nhave no meaning here.\n\n"
      "Refused, since a server without them would not be what was asked for:\n";
  append_names(out, refused_engine_flags());
  out += "\nAccepted without effect:\n";
  append_names(out, accepted_engine_flags());
}

}  // namespace

std::string defaults_text() {
  std::string out;
  const auto append = [&](const OptionRow& row) {
    const std::string value = default_of(row);
    out += fmt::format("{} {}\n", row.name, value.empty() ? "(none)" : value);
  };
  for (const OptionRow& row : option_table()) append(row);
  out += "# keys of --hicache-storage-backend-extra-config\n";
  for (const OptionRow& row : storage_config_table()) append(row);
  return out;
}

std::string options_json() {
  constexpr std::array<std::string_view, 8> kKinds = {"toggle",  "text",  "number",   "bytes",
                                                      "boolean", "label", "rank_map", "pairs"};
  constexpr std::array<std::string_view, 4> kScopes = {"any", "file", "mooncake", "mooncake_extra"};
  const auto rows = [&](std::span<const OptionRow> table) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const OptionRow& row : table) {
      out.push_back({{"name", row.name},
                     {"aliases", aliases_of(row)},
                     {"group", row.group},
                     {"kind", kKinds.at(static_cast<std::size_t>(row.kind))},
                     {"scope", kScopes.at(static_cast<std::size_t>(row.scope))},
                     {"variable", row.variable},
                     {"value", row.value},
                     {"accepted", row.range},
                     {"default", default_of(row)},
                     {"repeatable", row.repeatable},
                     {"meaning", row.text}});
    }
    return out;
  };
  const nlohmann::ordered_json out = {{"options", rows(option_table())},
                                      {"storage_keys", rows(storage_config_table())},
                                      {"accepted_without_effect", accepted_engine_flags()},
                                      {"refused", refused_engine_flags()}};
  return out.dump();
}

std::string options_markdown() {
  std::string out =
      "# Options of `hitide serve`\n\n"
      "Written by `hitide options`; a test compares this page with the tables in `src/spec/`. "
      "Names are\nSGLang's where SGLang has the option; `-m`, `-c`, `-t` and `-ngl` are "
      "llama-server's. Sizes take\na unit: `512MB`, `1.5GB`, `64GiB`.\n";
  std::string_view group;
  for (const OptionRow& row : option_table()) {
    if (row.group == group) continue;
    group = row.group;
    out += fmt::format("\n## {}\n\n", group);
    append_rows(out, option_table(), [&](const OptionRow& other) { return other.group == group; });
  }
  append_file(out);
  append_storage_configuration(out);
  append_what_wins(out);
  append_launch_lines(out);
  return out;
}

}  // namespace hitide
