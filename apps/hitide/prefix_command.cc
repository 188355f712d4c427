// hitide export, hitide import: the stored pages of a prompt as one file.

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <hitide/file_store.h>
#include <hitide/prefix_file.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "bytes_text.h"
#include "cli.h"
#include "prompt_engine.h"
#include "read_input.h"
#include "spec/model_text.h"
#include "store_place.h"

namespace hitide::cli {
namespace {

constexpr const char* kExport = "export";
constexpr const char* kImport = "import";
constexpr std::size_t kNamespaceDigits = 64;
constexpr std::size_t kDifferencesMax = 4;
// Options of `serve` that say which model it is, and how it stores.
constexpr std::array<std::string_view, 11> kRows = {
    "--config",         "--model-path",
    "--context-length", "--kv-cache-dtype",
    "--threads",        "--n-gpu-layers",
    "--prefill-chunk",  "--micro-batch",
    "--page-size",      "--hicache-storage-backend-extra-config",
    "--log-level",
};
constexpr const char* kConfigRow = "--hicache-storage-backend-extra-config";

struct ExportArguments {
  std::string prompt;
  std::string format = "auto";
  std::string tokens_file;
  std::optional<std::string> extra_key;
  std::optional<std::string> cache_salt;
  std::string output;
  std::string directory;
  bool json = false;
};

struct ImportArguments {
  std::string file;
  std::string directory;
  std::string name_space;
  bool json = false;
};

int refuse(const char* command, const Status& status) {
  const bool damaged = status.code() == StatusCode::data_loss;
  return complain(command, std::string(status.message()),
                  damaged ? kDamaged : store_exit_code(status));
}

bool names_model(const GivenOptions& given) {
  return std::any_of(given.begin(), given.end(), [](const auto& option) {
    return option.first == "--model-path" || option.first == "--config";
  });
}

void print(const nlohmann::ordered_json& json) {
  std::printf("%s\n", json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
}

// ---- export ------------------------------------------------------------------------------------

Result<NamedPrompt> read_prompt(const ExportArguments& arguments) {
  NamedPrompt prompt;
  if (arguments.prompt.empty() == arguments.tokens_file.empty()) {
    return Status(StatusCode::invalid_argument, "give PROMPT, a file, or --tokens-file");
  }
  if (!arguments.tokens_file.empty()) {
    HITIDE_ASSIGN_OR_RETURN(prompt.tokens, read_tokens(arguments.tokens_file));
  } else {
    HITIDE_ASSIGN_OR_RETURN(const std::string content, read_input(arguments.prompt));
    auto prompts = warm_prompts(content, prompts_format(arguments.format, arguments.prompt));
    if (!prompts.ok()) return prompts.status().with_context(arguments.prompt);
    if (prompts->size() > 1) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("{}: there are {} prompts in it, and a file takes one prefix",
                                arguments.prompt, prompts->size()));
    }
    prompt.text = std::move(prompts->front());
  }
  if (arguments.extra_key) prompt.text.extra_key = arguments.extra_key;
  if (arguments.cache_salt) prompt.text.cache_salt = arguments.cache_salt;
  return prompt;
}

int export_one(const ExportArguments& arguments, const GivenOptions& given) {
  const auto prompt = read_prompt(arguments);
  if (!prompt.ok()) return refuse(kExport, prompt.status());
  if (!names_model(given)) {
    return complain(kExport, "--model-path: is needed, as the server that stored the prompt had it",
                    kUsage);
  }
  auto located = locate_prompt(given, &*prompt);
  if (!located.ok()) return refuse(kExport, located.status());
  if (!arguments.directory.empty()) located->storage.path = arguments.directory;
  located->storage.backend = "file";
  const auto done =
      export_prefix(located->storage, located->model, located->keys, arguments.output);
  if (!done.ok()) {
    return refuse(kExport, done.status().with_context(located->storage.path));
  }
  const std::string name_space = identity_digest(located->model).to_hex();
  const std::string last = located->keys[done->pages - 1].to_hex();
  const std::uint64_t tokens = done->pages * located->model.page_size();
  if (arguments.json) {
    print({{"file", arguments.output},
           {"store", located->storage.path},
           {"namespace", name_space},
           {"prompt_tokens", located->tokens},
           {"prompt_pages", located->keys.size()},
           {"pages", done->pages},
           {"tokens", tokens},
           {"objects", done->objects},
           {"file_bytes", done->file_bytes},
           {"last_page", last}});
  } else {
    std::printf("%s: %llu of %zu pages, %llu of %llu tokens; %s\nnamespace %s, last page %s\n",
                arguments.output.c_str(), static_cast<unsigned long long>(done->pages),
                located->keys.size(), static_cast<unsigned long long>(tokens),
                static_cast<unsigned long long>(located->tokens),
                bytes_text(done->file_bytes).c_str(), name_space.c_str(), last.c_str());
  }
  return printed(kExport);
}

// ---- import ------------------------------------------------------------------------------------

Status disagree(const std::string& file, const std::string& theirs, const std::string& ours,
                const std::string& more) {
  return Status(
      StatusCode::invalid_argument,
      fmt::format("{}: its pages are of namespace {}, and {}{}", file, theirs, ours, more));
}

// What the model that was named says against it.
Status check_model(const std::string& file, const PrefixFileHead& head, const ModelSpec& model) {
  const std::string ours = identity_digest(model).to_hex();
  if (head.identity.to_hex() == ours) return {};
  std::string more;
  const auto differences = model_differences(head.model, "in the file", model, "here");
  for (std::size_t i = 0; i < differences.size() && i < kDifferencesMax; ++i) {
    more += "; " + differences[i];
  }
  if (differences.size() > kDifferencesMax) {
    more += fmt::format("; and {} more", differences.size() - kDifferencesMax);
  }
  return disagree(file, head.identity.to_hex(), "those of this model of " + ours, more);
}

// Pages of a model that nobody has here would only take space.
Status check_store(const std::string& file, const PrefixFileHead& head, const std::string& path) {
  std::string largest;
  for (const std::string& directory : file_store_directories(path)) {
    HITIDE_ASSIGN_OR_RETURN(const FileStoreContents contents, inspect_file_store(directory));
    for (const FileStoreNamespace& space : contents.namespaces) {
      if (space.name == head.identity.to_hex()) return {};
      if (largest.empty()) largest = space.name;
    }
  }
  if (largest.empty()) return {};
  return disagree(file, head.identity.to_hex(), "those in " + path + " of " + largest,
                  "; --model-path says whether they are of your model, --namespace that they are");
}

Result<StorageOptions> place_of(const ImportArguments& arguments, const GivenOptions& given,
                                const PrefixFileHead& head) {
  StorageOptions storage;
  if (names_model(given)) {
    HITIDE_ASSIGN_OR_RETURN(const LocatedPrompt located, locate_prompt(given, nullptr));
    HITIDE_RETURN_IF_ERROR(check_model(arguments.file, head, located.model));
    storage = located.storage;
    storage.backend = "file";
    if (!arguments.directory.empty()) storage.path = arguments.directory;
    return storage;
  }
  std::string config;
  for (const auto& [name, value] : given) {
    if (name != kConfigRow) {
      return Status(StatusCode::invalid_argument, name + ": goes with --model-path");
    }
    config = value;
  }
  HITIDE_ASSIGN_OR_RETURN(storage, store_options("file", config, arguments.directory));
  if (arguments.name_space.empty()) {
    HITIDE_RETURN_IF_ERROR(check_store(arguments.file, head, storage.path));
  }
  return storage;
}

int import_one(const ImportArguments& arguments, const GivenOptions& given) {
  const std::string& wanted = arguments.name_space;
  if (!wanted.empty() && (wanted.size() != kNamespaceDigits ||
                          wanted.find_first_not_of("0123456789abcdef") != std::string::npos)) {
    return complain(kImport, "--namespace: must be 64 lower-case hex digits", kUsage);
  }
  const auto head = read_prefix_head(arguments.file);
  if (!head.ok()) {
    // No store has been asked yet.
    const bool unreadable = head.status().code() == StatusCode::unavailable;
    return unreadable ? complain(kImport, std::string(head.status().message()), kFailed)
                      : refuse(kImport, head.status());
  }
  const std::string name_space = head->identity.to_hex();
  if (!wanted.empty() && wanted != name_space) {
    return refuse(kImport, disagree(arguments.file, name_space, "--namespace is " + wanted, ""));
  }
  const auto storage = place_of(arguments, given, *head);
  if (!storage.ok()) return refuse(kImport, storage.status());
  const auto done = import_prefix(arguments.file, *storage);
  if (!done.ok()) return refuse(kImport, done.status());
  const std::uint64_t tokens = done->pages * head->model.page_size();
  if (arguments.json) {
    print({{"file", arguments.file},
           {"store", storage->path},
           {"namespace", name_space},
           {"model", head->model.model_name},
           {"pages", done->pages},
           {"tokens", tokens},
           {"objects_written", done->objects_written},
           {"objects_present", done->objects_present},
           {"file_bytes", head->file_bytes},
           {"last_page", head->keys.back().to_hex()}});
  } else {
    std::printf(
        "%s: %llu pages, %llu tokens of model %s: %llu objects written, %llu were there\n"
        "namespace %s, last page %s\n",
        storage->path.c_str(), static_cast<unsigned long long>(done->pages),
        static_cast<unsigned long long>(tokens), printable(head->model.model_name).c_str(),
        static_cast<unsigned long long>(done->objects_written),
        static_cast<unsigned long long>(done->objects_present), name_space.c_str(),
        head->keys.back().to_hex().c_str());
  }
  return printed(kImport);
}

}  // namespace

void add_export(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      kExport, "Write the pages that a file store has of a prompt into one file.");
  auto arguments = std::make_shared<ExportArguments>();
  CLI::Option* prompt =
      command->add_option("prompt", arguments->prompt, "A file with the prompt; -: standard input.")
          ->check(not_empty)
          ->type_name("PROMPT");
  command
      ->add_option(
          "--format", arguments->format,
          "As for warm: text, lines or jsonl, of one prompt. auto: jsonl for PROMPT.jsonl, "
          "else text.")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "text", "lines", "jsonl"}))
      ->type_name("NAME");
  command
      ->add_option("--tokens-file", arguments->tokens_file,
                   "A JSON list of token ids, instead of PROMPT.")
      ->check(not_empty)
      ->excludes(prompt)
      ->type_name("FILE");
  command->add_option("--extra-key", arguments->extra_key, "Extra key of its requests.")
      ->type_name("TEXT");
  command->add_option("--cache-salt", arguments->cache_salt, "Cache salt of its requests.")
      ->type_name("TEXT");
  command->add_option("-o,--output", arguments->output, "The file that is made, or replaced.")
      ->check(not_empty)
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--directory", arguments->directory,
                   "The store's. Default: as configured, else where serve has it.")
      ->check(not_empty)
      ->type_name("DIR");
  command->add_flag("--json", arguments->json, "Print one JSON object.");
  auto given = add_table_options(*command, kRows);
  command->footer(
      "Options below --json: as for serve, as the server had them that stored the prompt.");
  command->callback([&run, arguments, given] {
    run = [arguments, given] { return export_one(*arguments, *given); };
  });
}

void add_import(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand(kImport, "Put the pages of a file that export wrote into a file store.");
  auto arguments = std::make_shared<ImportArguments>();
  command->add_option("file", arguments->file, "Written by hitide export.")
      ->check(not_empty)
      ->required()
      ->type_name("FILE");
  command
      ->add_option(
          "directory", arguments->directory,
          "The store's; made where it is missing. Default: as configured, else where serve "
          "has it.")
      ->check(not_empty)
      ->type_name("DIR");
  command
      ->add_option("--namespace", arguments->name_space,
                   "That the pages must be of, 64 hex digits. Default: one that the store has, or "
                   "any where it is empty.")
      ->check(not_empty)
      ->type_name("HEX");
  command->add_flag("--json", arguments->json, "Print one JSON object.");
  auto given = add_table_options(*command, kRows);
  command->footer(
      "With --model-path the pages must be of that model, opened with the options below it.");
  command->callback([&run, arguments, given] {
    run = [arguments, given] { return import_one(*arguments, *given); };
  });
}

}  // namespace hitide::cli
