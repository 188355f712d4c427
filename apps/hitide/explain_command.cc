// hitide explain: asks a server which tier served what of a request, and why the rest missed.

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "argument_checks.h"
#include "ask_server.h"
#include "cli.h"
#include "explanation_text.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "explain";

struct Arguments {
  std::string id;
  ServerAddress server;
  bool json = false;
};

bool is_plain_id(const std::string& id) {
  return !id.empty() && id.size() <= 200 && std::all_of(id.begin(), id.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

int explain(const Arguments& arguments) {
  if (!is_plain_id(arguments.id)) {
    return complain(kCommand, "'" + arguments.id + "' is no id: letters, digits, '-', '_', '.'",
                    kUsage);
  }
  std::string body;
  const int code =
      ask_server(kCommand, arguments.server, "/hitide/explain/" + arguments.id,
                 arguments.id + ": the server knows no such request, or has forgotten it", body);
  if (code != kDone) return code;
  if (arguments.json) {
    std::fputs(body.c_str(), stdout);
    return printed(kCommand);
  }
  const Result<std::string> text = explanation_text(body);
  if (!text.ok()) return complain(kCommand, std::string(text.status().message()), kFailed);
  std::fputs(text->c_str(), stdout);
  return printed(kCommand);
}

}  // namespace

void add_explain(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      kCommand, "Say which tier served what of a request, and why not the rest.");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("id", arguments->id,
                   "The explanation's id, from the header X-HiTide-Explanation-Id or "
                   "usage.hitide.explanation_id.")
      ->required();
  command->add_option("--url", arguments->server.url, "The server.")
      ->check(header_text)
      ->capture_default_str();
  command->add_option("--api-key", arguments->server.api_key, "Its key, where it asks for one.")
      ->check(header_text);
  command->add_flag("--json", arguments->json, "Print the server's JSON: spans, misses.");
  command->callback([&run, arguments] { run = [arguments] { return explain(*arguments); }; });
}

}  // namespace hitide::cli
