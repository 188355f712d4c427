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
  kUnavailable = 3,  // the server cannot be reached, the port cannot be taken, the store is in use
  kNotFound = 4,     // what was asked for is not there
  kDamaged = 5,      // it was found damaged
};

// Each adds its subcommand, and sets `run` to what is to be done when that one was given.
using Run = std::function<int()>;
void add_serve(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_store(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_warm(CLI::App& app, Run& run);
void add_export(CLI::App& app, Run& run);
void add_import(CLI::App& app, Run& run);
void add_replay(CLI::App& app, Run& run);
void add_keys(CLI::App& app, Run& run);
void add_version(CLI::App& app, Run& run);
void add_man(CLI::App& app, Run& run);
void add_options(CLI::App& app, Run& run);

// One line of at most about 2,000 printable characters, whatever the text is: a terminal must not
// be told anything else.
std::string printable(std::string text);

// "hitide COMMAND: MESSAGE" on standard error, one line of printable text; returns `code`.
int complain(const std::string& command, const std::string& message, int code);
// For commands whose work is what they print: kDone when all of it is out, else kFailed with a line
// that says why.
int printed(const std::string& command);

}  // namespace hitide::cli
