// hitide warm: computes prompts, so that a store has them before they are asked for.

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <httplib.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "ask_server.h"
#include "cli.h"
#include "read_input.h"
#include "store_place.h"
#include "warm_prompts.h"
#include "warm_target.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "warm";
constexpr int kConnectSeconds = 10;
constexpr int kAnswerSeconds = 1800;
// Options of `serve` that the engine and the store of this command take.
constexpr std::array<std::string_view, 13> kRows = {
    "--config",
    "--model-path",
    "--context-length",
    "--kv-cache-dtype",
    "--threads",
    "--n-gpu-layers",
    "--prefill-chunk",
    "--micro-batch",
    "--page-size",
    "--hicache-size",
    "--hicache-storage-backend",
    "--hicache-storage-backend-extra-config",
    "--log-level",
};

struct Arguments {
  std::string file;
  std::string format = "auto";
  bool url_given = false;
  ServerAddress server = {.url = "", .api_key = ""};
  bool json = false;
};

class ServerTarget final : public WarmTarget {
 public:
  explicit ServerTarget(const ServerAddress& server) : client_(server.url) {
    client_.set_connection_timeout(kConnectSeconds);
    client_.set_read_timeout(kAnswerSeconds);
    if (!server.api_key.empty()) headers_.emplace("Authorization", "Bearer " + server.api_key);
  }
  bool valid() const { return client_.is_valid(); }

  Result<WarmedPrompt> compute(const WarmPrompt& prompt) override {
    const char* path = prompt.messages.empty() ? "/v1/completions" : "/v1/chat/completions";
    const auto answer = client_.Post(path, headers_, warm_body(prompt), "application/json");
    if (!answer) {
      return Status(StatusCode::unavailable,
                    fmt::format("no answer ({})", httplib::to_string(answer.error())));
    }
    const auto json = nlohmann::json::parse(answer->body, nullptr, false);
    if (answer->status != 200) return refused(answer->status, json);
    const nlohmann::json::json_pointer tokens("/usage/prompt_tokens");
    const nlohmann::json::json_pointer cached("/usage/prompt_tokens_details/cached_tokens");
    if (!json.is_object() || !json.contains(tokens) || !json[tokens].is_number_unsigned()) {
      return Status(StatusCode::internal, "the answer has no usage.prompt_tokens");
    }
    WarmedPrompt done{.tokens = json[tokens].get<std::uint64_t>()};
    if (json.contains(cached) && json[cached].is_number_unsigned()) {
      done.cached = json[cached].get<std::uint64_t>();
    }
    return done;
  }

  Result<std::int64_t> finish() override { return -1; }

 private:
  static Status refused(int status, const nlohmann::json& json) {
    const nlohmann::json::json_pointer message("/error/message");
    const bool told = json.is_object() && json.contains(message) && json[message].is_string();
    const std::string why = fmt::format("the server answered {}{}", status,
                                        told ? ": " + json[message].get<std::string>() : "");
    // Of these the next prompt would have the same answer.
    const bool nobody = status == 401 || status == 403 || status == 404 || status == 503;
    return Status(nobody ? StatusCode::unavailable : StatusCode::invalid_argument, why);
  }

  httplib::Client client_;
  httplib::Headers headers_;
};

Result<std::unique_ptr<WarmTarget>> target_of(const Arguments& arguments,
                                              const GivenOptions& given) {
  if (!arguments.url_given) {
    for (const auto& [name, value] : given) {
      if (name == "--model-path" || name == "--config") return open_warm_engine(given);
    }
    return Status(StatusCode::invalid_argument,
                  "give --url, of a server that runs, or --model-path and the store's options");
  }
  ServerAddress server = arguments.server;
  while (!server.url.empty() && server.url.back() == '/') server.url.pop_back();
  if (!given.empty()) {
    return Status(StatusCode::invalid_argument,
                  given.front().first + ": goes with an engine of its own, not with --url");
  }
  auto target = std::make_unique<ServerTarget>(server);
  if (server.url.rfind("http", 0) != 0 || !target->valid()) {
    return Status(StatusCode::invalid_argument,
                  "--url: '" + server.url + "' must begin with http:// or https://");
  }
  return std::unique_ptr<WarmTarget>(std::move(target));
}

struct Sums {
  std::uint64_t prompts = 0;
  std::uint64_t failed = 0;
  std::uint64_t tokens = 0;
  std::uint64_t cached = 0;
  std::int64_t stored_pages = -1;
};

int print(const Arguments& arguments, const Sums& sums) {
  if (arguments.json) {
    nlohmann::ordered_json out = {{"prompts", sums.prompts},
                                  {"failed", sums.failed},
                                  {"prompt_tokens", sums.tokens},
                                  {"cached_tokens", sums.cached},
                                  {"computed_tokens", sums.tokens - sums.cached},
                                  {"stored_pages", nullptr}};
    if (sums.stored_pages >= 0) out["stored_pages"] = sums.stored_pages;
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::string text = fmt::format("{} prompts, {} failed: {} tokens, {} were cached already",
                                   sums.prompts, sums.failed, sums.tokens, sums.cached);
    if (sums.stored_pages >= 0) text += fmt::format("; {} pages stored", sums.stored_pages);
    std::printf("%s\n", text.c_str());
  }
  const int code = printed(kCommand);
  return code == kDone && sums.failed > 0 ? kFailed : code;
}

int warm(const Arguments& arguments, const GivenOptions& given) {
  const Result<std::string> content = read_input(arguments.file);
  if (!content.ok()) return complain(kCommand, std::string(content.status().message()), kUsage);
  const auto prompts = warm_prompts(*content, prompts_format(arguments.format, arguments.file));
  if (!prompts.ok()) {
    return complain(kCommand, arguments.file + ": " + std::string(prompts.status().message()),
                    kUsage);
  }
  const auto target = target_of(arguments, given);
  if (!target.ok()) {
    return complain(kCommand, std::string(target.status().message()),
                    store_exit_code(target.status()));
  }
  Sums sums{.prompts = prompts->size()};
  for (const WarmPrompt& prompt : *prompts) {
    const Result<WarmedPrompt> done = (*target)->compute(prompt);
    if (done.ok()) {
      sums.tokens += done->tokens;
      sums.cached += done->cached;
      continue;
    }
    const std::string why = fmt::format("{} line {}: {}", arguments.file, prompt.line,
                                        std::string(done.status().message()));
    if (done.status().code() == StatusCode::unavailable) {
      return complain(kCommand, arguments.url_given ? arguments.server.url + ": " + why : why,
                      kUnavailable);
    }
    complain(kCommand, why, kFailed);
    ++sums.failed;
  }
  const Result<std::int64_t> stored = (*target)->finish();
  if (!stored.ok()) {
    return complain(kCommand, "not all was stored: " + std::string(stored.status().message()),
                    kFailed);
  }
  sums.stored_pages = *stored;
  return print(arguments, sums);
}

}  // namespace

void add_warm(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      kCommand, "Compute prompts, so that a store has them before they are asked for.");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("file", arguments->file, "The prompts; -: standard input.")
      ->check(not_empty)
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--format", arguments->format,
                   "text: one prompt. lines: one a line. jsonl: a JSON string a line, or an object "
                   "with prompt or messages. auto: jsonl for FILE.jsonl, else text.")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "text", "lines", "jsonl"}))
      ->type_name("NAME");
  CLI::Option* url =
      command->add_option("--url", arguments->server.url, "By a server that runs, into its store.")
          ->check(header_text);
  command->add_option("--api-key", arguments->server.api_key, "Its key, where it asks for one.")
      ->check(header_text)
      ->needs(url);
  command->add_flag("--json", arguments->json, "Print one JSON object.");
  auto given = add_table_options(*command, kRows);
  command->footer("Options below --json are for --model-path: as for serve, with the same store.");
  command->callback([&run, arguments, given, url] {
    arguments->url_given = url->count() > 0;
    run = [arguments, given] { return warm(*arguments, *given); };
  });
}

}  // namespace hitide::cli
