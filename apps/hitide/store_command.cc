// hitide store: a Mooncake store on this machine. The work is done by our Python package
// (python/hitide/store/up.py), which takes this process's place.

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <hitide/mooncake_options.h>

#include "argument_checks.h"
#include "cli.h"
#include "surroundings.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "store up";

struct Arguments {
  std::string python = default_python();
  std::string segment_gb = "4";
  std::string port;
  std::string daemon_port;
  bool embedded = false;
};

// Comes back only where the interpreter cannot be run.
int become_store(const Arguments& arguments) {
  std::vector<std::string> command = {arguments.python, "-m", "hitide.store.up", "--segment-gb",
                                      arguments.segment_gb};
  if (!arguments.port.empty()) command.insert(command.end(), {"--port", arguments.port});
  if (!arguments.daemon_port.empty()) {
    command.insert(command.end(), {"--daemon-port", arguments.daemon_port});
  }
  if (arguments.embedded) command.emplace_back("--embedded");
  std::vector<char*> pointers;
  pointers.reserve(command.size() + 1);
  for (std::string& text : command) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  const std::string installed = installed_package();
  ::setenv("PYTHONPATH", installed.empty() ? HITIDE_PYTHON_DIR : installed.c_str(), 1);
  ::setenv("PYTHONSAFEPATH", "1", 1);  // no modules from the working directory
  ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  ::execvp(pointers[0], pointers.data());
  return complain(kCommand,
                  "the interpreter " + arguments.python + " cannot be run: " +
                      std::generic_category().message(errno) + "; name another one with --python",
                  kFailed);
}

}  // namespace

void add_store(CLI::App& app, Run& run) {
  CLI::App* store = app.add_subcommand("store", "A Mooncake store on this machine.");
  store->require_subcommand(1);
  CLI::App* command = store->add_subcommand(
      "up",
      "Start a master and a daemon that owns memory, print the variables that their clients need, "
      "and stop them on Ctrl-C or SIGTERM.");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--segment-gb", arguments->segment_gb, "The store's memory in GiB.")
      ->capture_default_str()
      ->type_name("GIB");
  command->add_option("--port", arguments->port, "Port of the master. Default: a free one.")
      ->type_name("PORT");
  command
      ->add_option("--daemon-port", arguments->daemon_port,
                   "Port of the daemon. Default: a free one. A restarted store is found again by "
                   "servers that run where both ports are as before.")
      ->type_name("PORT");
  command->add_flag("--embedded", arguments->embedded,
                    "A Python process in the daemon's place: for clients that move the bytes "
                    "themselves.");
  command->add_option("--python", arguments->python, "An interpreter that has Mooncake.")
      ->check(not_empty)
      ->capture_default_str()
      ->type_name("PROGRAM");
  command->callback([&run, arguments] { run = [arguments] { return become_store(*arguments); }; });
}

}  // namespace hitide::cli
