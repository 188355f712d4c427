// hitide serve in a build without llama.cpp: says how to get one with it.

#include <CLI/CLI.hpp>

#include "cli.h"

namespace hitide::cli {

void add_serve(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("serve", "Not in this build: it has no llama.cpp.");
  command->allow_extras();
  command->callback([&run] {
    run = [] {
      return complain("serve",
                      "this build has no llama.cpp; configure it with -DHITIDE_BUILD_SERVE=ON and "
                      "an installed llama.cpp in CMAKE_PREFIX_PATH (`make build` does both)",
                      kFailed);
    };
  });
}

}  // namespace hitide::cli
