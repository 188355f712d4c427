#include "serve_arguments.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "spec/option_table.h"

namespace hitide::cli {
namespace {

std::string help_text(const OptionRow& row) {
  std::string text(row.text);
  const std::string shown = default_of(row);
  if (!row.range.empty()) text += " Accepted: " + std::string(row.range) + ".";
  if (!shown.empty() && row.kind != OptionKind::toggle) text += " Default: " + shown + ".";
  return text;
}

}  // namespace

std::shared_ptr<GivenOptions> add_table_options(CLI::App& command,
                                                std::span<const std::string_view> names) {
  auto given = std::make_shared<GivenOptions>();
  for (const OptionRow& row : option_table()) {
    if (!names.empty() && std::find(names.begin(), names.end(), row.name) == names.end()) continue;
    const std::string name(row.name);
    std::string forms = name;
    for (const std::string_view alias : aliases_of(row)) {
      // -ngl is put into its long form before the parser sees it.
      if (alias.size() == 2 || alias.starts_with("--")) forms += "," + std::string(alias);
    }
    CLI::Option* option = nullptr;
    if (row.kind == OptionKind::toggle) {
      option = command.add_flag_callback(
          forms, [given, name] { given->emplace_back(name, ""); }, help_text(row));
      option->disable_flag_override();
    } else if (row.repeatable) {
      const std::function<void(const std::vector<std::string>&)> take =
          [given, name](const std::vector<std::string>& values) {
            for (const std::string& value : values) given->emplace_back(name, value);
          };
      option = command.add_option_function(forms, take, help_text(row));
      option->allow_extra_args(false)->type_name(std::string(row.value));
    } else {
      const std::function<void(const std::string&)> take = [given, name](const std::string& value) {
        given->emplace_back(name, value);
      };
      option = command.add_option_function(forms, take, help_text(row));
      // Launch lines are put together from parts; what comes later is meant.
      option->take_last()->type_name(std::string(row.value));
    }
    option->group(std::string(row.group));
  }
  return given;
}

}  // namespace hitide::cli
