// The command line: parses arguments, calls the command. docs/cli.md is its manual.

#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "cli.h"

namespace hitide::cli {
namespace {

constexpr std::size_t kMessageMax = 2000;  // of which the end says why

}  // namespace

std::string printable(std::string text) {
  if (text.size() > kMessageMax) {
    text = text.substr(0, kMessageMax / 2) + " ... " + text.substr(text.size() - kMessageMax / 2);
  }
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code != 0x7f) {
      out += c;
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", code);
    out += escaped;
  }
  return out;
}

int complain(const std::string& command, const std::string& message, int code) {
  const std::string name = command.empty() ? "hitide" : "hitide " + command;
  std::fprintf(stderr, "%s: %s\n", name.c_str(), printable(message).c_str());
  return code;
}

int printed(const std::string& command) {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return kDone;
  // Long outputs fail before this call, and their reason is gone.
  const std::string why = errno == 0 ? "" : ": " + std::generic_category().message(errno);
  return complain(command, "standard output does not take all of it" + why, kFailed);
}

namespace {

// llama-server's long option with one dash, which the parser would take for three short ones.
std::string long_form(const std::string& argument) {
  constexpr const char* kShort = "-ngl";
  if (argument == kShort) return "--n-gpu-layers";
  if (argument.compare(0, 5, "-ngl=") == 0) return "--n-gpu-layers" + argument.substr(4);
  return argument;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// A file or socket must not get the number of a standard stream that is closed: what is printed or
// read would go there. Reading and writing still fail as of closed ones.
void hold_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is this one.
    static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("A hierarchical KV cache for LLM serving.", "hitide");
  app.require_subcommand(1);
  app.footer(
      "`hitide COMMAND --help` says more. Exit codes: 0 done, 1 failed, 2 wrong usage,\n"
      "3 server, port or store not available, 4 not found, 5 damaged.");
  Run run;
  add_serve(app, run);
  add_explain(app, run);
  add_doctor(app, run);
  add_store(app, run);
  add_inspect(app, run);
  add_verify(app, run);
  add_warm(app, run);
  add_export(app, run);
  add_import(app, run);
  add_replay(app, run);
  add_keys(app, run);
  add_version(app, run);
  add_options(app, run);
  add_man(app, run);

  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) arguments.push_back(long_form(argv[i]));
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp& help) {
    const int code = app.exit(help);
    return code == kDone ? printed("") : code;
  } catch (const CLI::ParseError& error) {
    const auto given = app.get_subcommands();
    if (given.empty() && argc > 1 && argv[1][0] != '-') {
      return complain("", "'" + std::string(argv[1]) + "' is no command; --help lists them",
                      kUsage);
    }
    return complain(given.empty() ? "" : given.front()->get_name(),
                    one_line(error.what()) + " (--help says more)", kUsage);
  }
  return run();
}

}  // namespace
}  // namespace hitide::cli

int main(int argc, char** argv) {
  hitide::cli::hold_closed_streams();
  try {
    return hitide::cli::parse_and_run(argc, argv);
  } catch (const std::bad_alloc&) {
    return hitide::cli::complain("", "there is not enough memory", hitide::cli::kFailed);
  } catch (const std::exception& error) {
    return hitide::cli::complain("", error.what(), hitide::cli::kFailed);
  }
}
