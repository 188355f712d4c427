// hitide version; and hitide options, which writes docs/options.md.

#include <cstdio>

#include <CLI/CLI.hpp>

#include "cli.h"
#include "spec/option_table.h"

namespace hitide::cli {

void add_version(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("version", "Print the version.");
  command->callback([&run] {
    run = [] {
      std::printf("hitide %s\nllama.cpp %s\n", HITIDE_VERSION, HITIDE_LLAMA_COMMIT);
      return printed("version");
    };
  });
}

void add_options(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("options", "Print the options of `serve` as a Markdown page.");
  command->callback([&run] {
    run = [] {
      std::fputs(options_markdown().c_str(), stdout);
      return printed("options");
    };
  });
}

}  // namespace hitide::cli
