// hitide doctor: which pools a store can take as they are, and what becomes of the others: of a
// store that is tried, or of a server that runs.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <hitide/registration.h>

#include "ask_server.h"
#include "cli.h"
#include "spec/storage_config.h"
#include "storage_text.h"
#include "surroundings.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "doctor";

struct Arguments {
  bool url_given = false;
  ServerAddress server = {.url = "", .api_key = ""};
  std::string backend = "memory";
  std::string directory;
  std::string preset = "synthetic-draft";
  std::vector<std::string> allocators;
  std::string python;
  std::string extra_config;
  bool standalone = false;
  bool start_store = false;
  bool no_staging = false;
  bool json = false;
};

PoolSpec pool(const std::string& name, std::uint64_t page_bytes) {
  PoolSpec spec;
  spec.name = name;
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  if (name != "kv") spec.index_source = "kv";
  return spec;
}

ModelSpec preset(const std::string& name) {
  ModelSpec model;
  model.model_name = name;
  model.weights_digest = name;
  if (name == "synthetic-draft") {
    model.pools = {pool("kv", 1u << 20), pool("draft", 64u << 10)};
    model.pools[1].required = false;
    return model;
  }
  model.pools = {pool("kv", 0), pool("c4", 512u << 10), pool("swa", 256u << 10)};
  model.pools[2].hit_policy = {HitPolicy::Kind::trailing_pages, 2};
  return model;
}

// KIND for all pools, or POOL=KIND for one.
Status set_allocator(const std::string& text, RegistrationCheck& check) {
  const std::size_t equals = text.find('=');
  const AllocatorKind kind =
      allocator_kind(equals == std::string::npos ? text : text.substr(equals + 1));
  if (kind == AllocatorKind::none || kind == AllocatorKind::unknown) {
    return Status(StatusCode::invalid_argument,
                  "--host-allocator: '" + text + "' is not mmap, shm, store or POOL=KIND");
  }
  if (equals == std::string::npos) {
    check.allocator = kind;
  } else {
    check.pool_allocators.push_back({.pool = text.substr(0, equals), .kind = kind});
  }
  return ok_status();
}

// What only a Mooncake store has.
Status check_mooncake_only(const Arguments& arguments) {
  if (arguments.backend == "mooncake") return ok_status();
  const char* given = arguments.start_store  ? "--start-store"
                      : arguments.standalone ? "--standalone"
                                             : nullptr;
  if (given == nullptr) return ok_status();
  return Status(StatusCode::invalid_argument,
                std::string(given) + " goes with --hicache-storage-backend mooncake");
}

// From where a server would take it, unless the store is one of our own.
Result<StorageOptions> storage_of(const Arguments& arguments) {
  ServeOptions options;
  StorageOptions& storage = options.cache.storage;
  storage.backend = arguments.backend;
  storage.mooncake.python = default_python();
  storage.path = arguments.directory;
  options.storage_extra_config = arguments.extra_config;
  if (arguments.start_store) {
    storage.mooncake.package_path = installed_package();
  } else {
    HITIDE_ASSIGN_OR_RETURN(const StorageConfigReport report,
                            apply_storage_config(storage_environment(), options));
    log_storage_config(report);
    if (storage.mooncake.package_path.empty()) storage.mooncake.package_path = installed_package();
  }
  if (!arguments.python.empty()) storage.mooncake.python = arguments.python;
  if (arguments.standalone) storage.mooncake.standalone_storage = true;
  return storage;
}

// What a running server says of itself.
int ask(const Arguments& arguments) {
  std::string body;
  const int code = ask_server(kCommand, arguments.server, "/hitide/storage",
                              "the server does not say how its storage is", body);
  if (code != kDone) return code;
  const Result<StorageText> storage = storage_text(body);
  if (!storage.ok()) return complain(kCommand, std::string(storage.status().message()), kFailed);
  std::fputs(arguments.json ? body.c_str() : storage->text.c_str(), stdout);
  const int done = printed(kCommand);
  return storage->on ? done : kFailed;
}

int examine(const Arguments& arguments) {
  if (arguments.url_given) return ask(arguments);
  const Status together = check_mooncake_only(arguments);
  if (!together.ok()) return complain(kCommand, std::string(together.message()), kUsage);
  RegistrationCheck check;
  check.start_store = arguments.start_store;
  check.model = preset(arguments.preset);
  check.staging_allowed = !arguments.no_staging;
  for (const std::string& text : arguments.allocators) {
    const Status status = set_allocator(text, check);
    if (!status.ok()) return complain(kCommand, std::string(status.message()), kUsage);
  }
  const Result<StorageOptions> storage = storage_of(arguments);
  if (!storage.ok()) return complain(kCommand, std::string(storage.status().message()), kUsage);
  const auto rows = check_registration(check, *storage);
  if (!rows.ok()) {
    const bool wrong = rows.status().code() == StatusCode::invalid_argument;
    return complain(kCommand, std::string(rows.status().message()), wrong ? kUsage : kFailed);
  }
  if (arguments.json) {
    std::printf("{\"registration\":%s}\n", registration_json(*rows).c_str());
  } else {
    std::printf("store: %s\n%s", arguments.backend.c_str(), registration_text(*rows).c_str());
  }
  const int code = printed(kCommand);
  return storage_on(*rows) ? code : kFailed;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(kCommand,
                                         "Try a store with pools of a preset: which of them it can "
                                         "take, and how; or ask a server that "
                                         "runs.");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--hicache-storage-backend", arguments->backend, "The store to try.")
      ->capture_default_str()
      ->check(CLI::IsMember({"file", "memory", "mooncake", "null"}))
      ->type_name("BACKEND");
  command->add_option("--directory", arguments->directory, "Directory of the file store.")
      ->type_name("DIR");
  command
      ->add_option("--hicache-storage-backend-extra-config", arguments->extra_config,
                   "As for serve; text, or @FILE.")
      ->type_name("CONFIG");
  command->add_flag("--start-store", arguments->start_store,
                    "mooncake: with a store of its own on this machine, stopped afterwards.");
  command->add_flag("--standalone", arguments->standalone,
                    "mooncake: through a daemon of this machine, by a thin client.");
  command
      ->add_option("--python", arguments->python,
                   "An interpreter that has Mooncake. Default: as configured, else that of make "
                   "setup, else python3.")
      ->type_name("PROGRAM");
  command->add_option("--preset", arguments->preset, "The pools to try it with.")
      ->capture_default_str()
      ->check(CLI::IsMember({"synthetic-draft", "synthetic-logical"}))
      ->type_name("NAME");
  command
      ->add_option("--host-allocator", arguments->allocators,
                   "Where the pools' memory comes from: mmap, shm or store; POOL=KIND for one.")
      ->type_name("[POOL=]KIND");
  command->add_flag("--no-staging", arguments->no_staging,
                    "Turn pools off that cannot be taken as they are.");
  CLI::Option* url =
      command->add_option("--url", arguments->server.url, "A server that runs: ask, try nothing.");
  for (CLI::Option* option : command->get_options()) {
    if (option != url && option->get_name() != "--help") url->excludes(option);
  }
  command->add_option("--api-key", arguments->server.api_key, "Its key, where it asks for one.")
      ->needs(url);
  command->add_flag("--json", arguments->json, "Print one JSON object: registration.");
  command->callback([&run, arguments, url] {
    arguments->url_given = url->count() > 0;
    run = [arguments] { return examine(*arguments); };
  });
}

}  // namespace hitide::cli
