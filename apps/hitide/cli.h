// The commands of `hitide`, and what their exit codes mean (docs/cli.md).
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace hitide::cli {

enum ExitCode : int {
  kDone = 0,
  kFailed = 1,       // it was tried and did not work; the line on standard error says why
  kUsage = 2,        // wrong option or argument; nothing was tried
  kUnavailable = 3,  // the server cannot be reached, or the port cannot be taken
  kNotFound = 4,     // the server does not know what was asked for
};

// Each adds its subcommand, and sets `run` to what is to be done when that one was given.
using Run = std::function<int()>;
void add_serve(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_store(CLI::App& app, Run& run);
void add_replay(CLI::App& app, Run& run);
void add_keys(CLI::App& app, Run& run);
void add_version(CLI::App& app, Run& run);
void add_options(CLI::App& app, Run& run);

// "hitide COMMAND: MESSAGE" on standard error; returns `code`.
int complain(const std::string& command, const std::string& message, int code);
// For commands whose work is what they print: kDone when all of it is out, else kFailed with a line
// that says why.
int printed(const std::string& command);

}  // namespace hitide::cli
