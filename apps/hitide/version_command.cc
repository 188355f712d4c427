// hitide version; and hitide options, which writes docs/options.md.

#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "cli.h"
#include "spec/option_table.h"

namespace hitide::cli {

void add_version(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("version", "Print the version.");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object: hitide, llama_cpp.");
  command->callback([&run, json] {
    run = [json] {
      std::printf(
          *json ? "{\"hitide\":\"%s\",\"llama_cpp\":\"%s\"}\n" : "hitide %s\nllama.cpp %s\n",
          HITIDE_VERSION, HITIDE_LLAMA_COMMIT);
      return printed("version");
    };
  });
}

void add_options(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("options", "Print the options of `serve` as a Markdown page.");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json,
                    "Print one JSON object instead: options, storage_keys, "
                    "accepted_without_effect, refused.");
  command->callback([&run, json] {
    run = [json] {
      const std::string text = *json ? options_json() + "\n" : options_markdown();
      std::fputs(text.c_str(), stdout);
      return printed("options");
    };
  });
}

}  // namespace hitide::cli
