// hitide_bench: ratios of HiTide against what it is built on, in one table. docs/performance.md.
//
// Exit codes: 0 all chosen rows ran (a missed target is shown, and is no failure), 1 a row could
// not run or, with --strict, missed its target, 2 wrong arguments.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "bench/cases.h"

namespace hitide::bench {
namespace {

struct Arguments {
  Settings settings;
  std::string json_path;
  std::string filter;
  bool list = false;
  bool strict = false;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&cases](std::vector<Case> more) {
    cases.insert(cases.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  add(prefix_cases());
  add(page_cases());
  add(scale_cases());
  add(store_cases());
  add(mooncake_cases());
#ifdef HITIDE_BENCH_ENGINE
  add(llama_cases());
  add(engine_cases());
  add(lane_cases());
#endif
  return cases;
}

bool chosen(const Case& piece, const std::regex& filter) {
  for (const std::string& row : piece.rows) {
    if (std::regex_search(row, filter)) return true;
  }
  return false;
}

std::string names(const Case& piece) { return fmt::format("{}", fmt::join(piece.rows, " ")); }

bool write_json(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return true;
  fmt::print(stderr, "hitide_bench: cannot write {}\n", path);
  return false;
}

// Runs the chosen cases; false when one of them failed.
bool run_cases(const Arguments& arguments, const std::regex& filter, Report& report) {
  bool good = true;
  for (const Case& piece : all_cases()) {
    if (!chosen(piece, filter)) continue;
    if (piece.needs_model && arguments.settings.model_path.empty()) {
      fmt::print("skipped, no --model-path: {}\n", names(piece));
      continue;
    }
    std::error_code error;
    std::filesystem::create_directories(arguments.settings.scratch, error);
    const Status status = piece.run(arguments.settings, report);
    std::filesystem::remove_all(arguments.settings.scratch, error);
    if (status.ok()) continue;
    fmt::print("FAILED {}: {}\n", names(piece), status.to_string());
    good = false;
  }
  return good;
}

int run(const Arguments& arguments) {
  std::regex filter;
  try {
    filter = std::regex(arguments.filter);
  } catch (const std::regex_error& error) {
    fmt::print(stderr, "hitide_bench: --filter '{}' is no regular expression: {}\n",
               arguments.filter, error.what());
    return 2;
  }
  if (arguments.list) {
    for (const Case& piece : all_cases()) {
      for (const std::string& row : piece.rows) {
        fmt::print("{}{}\n", row, piece.needs_model ? "  (needs --model-path)" : "");
      }
    }
    return 0;
  }
  set_log_level(LogLevel::warning);
  Report report;
  report.print_head();
  bool good = run_cases(arguments, filter, report);
  if (!arguments.json_path.empty()) good = write_json(arguments.json_path, report.json()) && good;
  const std::vector<std::string> missed = report.missed();
  fmt::print("{} rows, {} below target{}{}\n", report.row_count(), missed.size(),
             missed.empty() ? "" : ": ", fmt::join(missed, " "));
  if (!good) return 1;
  return arguments.strict && !missed.empty() ? 1 : 0;
}

}  // namespace
}  // namespace hitide::bench

int main(int argc, char** argv) {
  hitide::bench::Arguments arguments;
  arguments.settings.scratch = "build/bench-scratch";
  arguments.settings.mooncake_python = HITIDE_SOURCE_DIR "/build/venv/bin/python";
  CLI::App app("Measures HiTide against what it is built on, as ratios within one run.",
               "hitide_bench");
  app.add_option("--model-path", arguments.settings.model_path,
                 "GGUF model; without it the rows that need one are skipped")
      ->check(CLI::ExistingFile);
  app.add_option("--json", arguments.json_path, "write the rows to this file too");
  app.add_option("--filter", arguments.filter, "only rows whose name this expression finds");
  app.add_option("--scratch", arguments.settings.scratch,
                 "directory for the store rows, removed afterwards")
      ->capture_default_str();
  app.add_option("--mooncake-python", arguments.settings.mooncake_python,
                 "interpreter with the Mooncake package; without it its rows are skipped")
      ->capture_default_str();
  app.add_flag("--list", arguments.list, "list the rows and end");
  app.add_flag("--strict", arguments.strict, "exit 1 when a target is missed");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return hitide::bench::run(arguments);
}
