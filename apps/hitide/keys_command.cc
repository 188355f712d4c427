// hitide keys: page hashes of a token list, and their object keys.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <hitide/page_hash.h>

#include "argument_checks.h"
#include "cli.h"
#include "read_input.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "keys";
constexpr std::size_t kNamespaceDigits = 64;
constexpr std::uint32_t kPageSizeMax = 1024;  // as for serve
constexpr std::size_t kPoolNameMax = 15;      // of docs/formats/object_key.md, as its characters
constexpr const char* kPoolNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";

struct Arguments {
  std::string tokens_file;
  std::uint32_t page_size = 32;
  std::optional<std::string> extra_key;
  std::optional<std::string> cache_salt;
  std::string name_space;
  std::string pool = "kv";
  bool json = false;
};

int print_keys(const Arguments& arguments) {
  const std::string& name_space = arguments.name_space;
  const bool hex = name_space.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!name_space.empty() && (name_space.size() != kNamespaceDigits || !hex)) {
    return complain(kCommand, "--namespace: must be 64 lower-case hex digits", kUsage);
  }
  const std::string& pool = arguments.pool;
  if (pool.empty() || pool.size() > kPoolNameMax ||
      pool.find_first_not_of(kPoolNameCharacters) != std::string::npos) {
    return complain(kCommand,
                    "--pool: '" + pool + "' is no name of a pool: 1 to 15 of a-z, 0-9 and '_'",
                    kUsage);
  }
  const auto tokens = read_tokens(arguments.tokens_file);
  if (!tokens.ok()) return complain(kCommand, std::string(tokens.status().message()), kUsage);
  PageHashOptions options;
  options.page_size = arguments.page_size;
  if (arguments.extra_key) options.extra_key = *arguments.extra_key;
  if (arguments.cache_salt) options.cache_salt = *arguments.cache_salt;
  const auto hashes = page_hashes(*tokens, options);
  if (!hashes.ok()) return complain(kCommand, std::string(hashes.status().message()), kUsage);

  nlohmann::ordered_json out = {{"page_size", arguments.page_size},
                                {"tokens", tokens->size()},
                                {"page_hashes", nlohmann::ordered_json::array()}};
  if (!name_space.empty()) out["object_keys"] = nlohmann::ordered_json::array();
  for (const PageKey& key : *hashes) {
    const std::string page = key.to_hex();
    const std::string object = fmt::format("{}/{}/{}.t0-p0-c0", name_space, page, pool);
    out["page_hashes"].push_back(page);
    if (!name_space.empty()) out["object_keys"].push_back(object);
    if (!arguments.json) std::printf("%s\n", (name_space.empty() ? page : object).c_str());
  }
  if (arguments.json) std::printf("%s\n", out.dump().c_str());
  return printed(kCommand);
}

}  // namespace

void add_keys(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(kCommand, "Print the page hashes of a token list.");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--tokens-file", arguments->tokens_file, "A JSON list of token ids.")
      ->check(not_empty)
      ->required()
      ->type_name("FILE");
  command->add_option("--page-size", arguments->page_size, "Tokens of a page.")
      ->capture_default_str()
      ->check(CLI::Range(1u, kPageSizeMax))
      ->type_name("TOKENS");
  command->add_option("--extra-key", arguments->extra_key, "Adapter or other namespace.");
  command->add_option("--cache-salt", arguments->cache_salt, "Tenant.");
  command
      ->add_option("--namespace", arguments->name_space,
                   "The model's namespace in a store: prints object keys too.")
      ->check(not_empty)
      ->type_name("HEX");
  command->add_option("--pool", arguments->pool, "The pool in object keys.")->capture_default_str();
  command->add_flag("--json", arguments->json, "Print one JSON object: page_hashes, object_keys.");
  command->callback([&run, arguments] { run = [arguments] { return print_keys(*arguments); }; });
}

}  // namespace hitide::cli
