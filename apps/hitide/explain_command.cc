// hitide explain: asks a server which tier served what of a request, and why the rest missed.

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>

#include <httplib.h>
#include <CLI/CLI.hpp>

#include "cli.h"
#include "explanation_text.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "explain";
constexpr int kTimeoutSeconds = 10;

struct Arguments {
  std::string id;
  std::string url = "http://127.0.0.1:30000";
  std::string api_key;
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
  std::string url = arguments.url;
  while (!url.empty() && url.back() == '/') url.pop_back();
  if (url.rfind("http://", 0) != 0 && url.rfind("https://", 0) != 0) {
    return complain(kCommand, "--url: '" + url + "' must begin with http:// or https://", kUsage);
  }
  httplib::Client client(url);
  if (!client.is_valid()) {
    return complain(kCommand, "--url: '" + url + "' is no address of a server", kUsage);
  }
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  httplib::Headers headers;
  if (!arguments.api_key.empty()) headers.emplace("Authorization", "Bearer " + arguments.api_key);
  const auto answer = client.Get(("/hitide/explain/" + arguments.id).c_str(), headers);
  if (!answer) {
    return complain(kCommand,
                    url + ": cannot reach a server (" + httplib::to_string(answer.error()) + ")",
                    kUnavailable);
  }
  if (answer->status == 404) {
    return complain(kCommand,
                    arguments.id + ": the server knows no such request, or has forgotten it",
                    kNotFound);
  }
  if (answer->status == 503) {
    return complain(kCommand, url + ": the server is not ready or is stopping", kUnavailable);
  }
  if (answer->status != 200) {
    return complain(kCommand,
                    url + ": the server answered " + std::to_string(answer->status) +
                        (answer->status == 401 ? "; give --api-key" : ""),
                    kFailed);
  }
  if (arguments.json) {
    std::fputs(answer->body.c_str(), stdout);
    return printed(kCommand);
  }
  const Result<std::string> text = explanation_text(answer->body);
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
  command->add_option("--url", arguments->url, "The server.")->capture_default_str();
  command->add_option("--api-key", arguments->api_key, "Its key, where it asks for one.");
  command->add_flag("--json", arguments->json, "Print the server's JSON: spans, misses.");
  command->callback([&run, arguments] { run = [arguments] { return explain(*arguments); }; });
}

}  // namespace hitide::cli
