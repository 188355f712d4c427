// hitide doctor: which pools a store can take as they are, and what becomes of the others: of a
// store that is tried, or of a server that runs; and what the machine has for a cache.

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <hitide/machine.h>
#include <hitide/registration.h>

#include "argument_checks.h"
#include "ask_server.h"
#include "cli.h"
#include "machine_report.h"
#include "serve_arguments.h"
#include "spec/option_table.h"
#include "spec/storage_config.h"
#include "storage_text.h"
#include "store_place.h"
#include "surroundings.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "doctor";
// Options of `serve` that say what is asked of the machine.
constexpr std::array<std::string_view, 5> kRows = {
    "--hicache-size", "--hicache-ratio", "--threads", "--host-huge-pages", "--host-numa",
};

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
  bool backend_given = false;
  bool machine = false;
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

// The machine, for what a server would do with these options.
Result<std::vector<MachineLine>> look_at_machine(const Arguments& arguments,
                                                 const GivenOptions& given,
                                                 const StorageOptions& tried) {
  ServeOptions options;
  for (const auto& [name, value] : given) {
    HITIDE_RETURN_IF_ERROR(set_option(option_table(), name, value, options));
  }
  MachineCheck check{
      .host = options.cache.host, .storage = tried, .threads = options.engine.threads};
  if (check.storage.backend == "file" && check.storage.path.empty()) {
    check.storage.path = default_file_store();
  }
  // Its own store is on this machine, over TCP, whatever is configured.
  if (arguments.start_store) check.storage.mooncake.protocol = "tcp";
  for (const std::string& text : arguments.allocators) {
    if (text.find('=') == std::string::npos) check.host.allocator = text;
  }
  return check_machine(check);
}

int print(const Arguments& arguments, const std::vector<MachineLine>& machine,
          const std::vector<PoolRegistration>* pools) {
  if (arguments.json) {
    const std::string registration =
        pools == nullptr ? "" : "\"registration\":" + registration_json(*pools) + ",";
    std::printf("{%s\"machine\":%s}\n", registration.c_str(), machine_json(machine).c_str());
  } else {
    if (pools != nullptr) {
      std::printf("store: %s\n%s", arguments.backend.c_str(), registration_text(*pools).c_str());
    }
    std::fputs(machine_text(machine, pools == nullptr).c_str(), stdout);
  }
  const int code = printed(kCommand);
  const bool good = machine_fits(machine) && (pools == nullptr || storage_on(*pools));
  return good ? code : kFailed;
}

int examine_machine(const Arguments& arguments, const GivenOptions& given) {
  // As serve, whose store is in files unless it is told otherwise.
  const std::string backend = arguments.backend_given ? arguments.backend : "file";
  const auto storage = store_options(backend, arguments.extra_config, arguments.directory);
  if (!storage.ok()) return complain(kCommand, std::string(storage.status().message()), kUsage);
  StorageOptions asked = *storage;
  if (!arguments.python.empty()) asked.mooncake.python = arguments.python;
  const auto machine = look_at_machine(arguments, given, asked);
  if (!machine.ok()) return complain(kCommand, std::string(machine.status().message()), kUsage);
  return print(arguments, *machine, nullptr);
}

int examine(const Arguments& arguments, const GivenOptions& given) {
  if (arguments.url_given) return ask(arguments);
  if (arguments.machine) return examine_machine(arguments, given);
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
  const auto machine = look_at_machine(arguments, given, *storage);
  if (!machine.ok()) return complain(kCommand, std::string(machine.status().message()), kUsage);
  return print(arguments, *machine, &*rows);
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(kCommand,
                                         "Try a store with pools of a preset: which of them it can "
                                         "take, and how; and look at the machine. Or "
                                         "ask a server that runs.");
  auto arguments = std::make_shared<Arguments>();
  CLI::Option* backend =
      command->add_option("--hicache-storage-backend", arguments->backend, "The store to try.")
          ->capture_default_str()
          ->check(CLI::IsMember({"file", "memory", "mooncake", "null"}))
          ->type_name("BACKEND");
  command->add_option("--directory", arguments->directory, "Directory of the file store.")
      ->check(not_empty)
      ->type_name("DIR");
  command
      ->add_option("--hicache-storage-backend-extra-config", arguments->extra_config,
                   "As for serve; text, or @FILE.")
      ->check(not_empty)
      ->type_name("CONFIG");
  command->add_flag("--start-store", arguments->start_store,
                    "mooncake: with a store of its own on this machine, stopped afterwards.");
  command->add_flag("--standalone", arguments->standalone,
                    "mooncake: through a daemon of this machine, by a thin client.");
  command
      ->add_option("--python", arguments->python,
                   "An interpreter that has Mooncake. Default: as configured, else that of make "
                   "setup, else python3.")
      ->check(not_empty)
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
  command->add_flag("--machine", arguments->machine,
                    "Look at the machine alone, for a server with these options; try no store.");
  auto given = add_table_options(*command, kRows);
  CLI::Option* url =
      command->add_option("--url", arguments->server.url, "A server that runs: ask, try nothing.")
          ->check(header_text);
  for (CLI::Option* option : command->get_options()) {
    if (option != url && option->get_name() != "--help") url->excludes(option);
  }
  command->add_option("--api-key", arguments->server.api_key, "Its key, where it asks for one.")
      ->check(header_text)
      ->needs(url);
  command->add_flag("--json", arguments->json, "Print one JSON object: registration, machine.");
  command->callback([&run, arguments, given, url, backend] {
    arguments->url_given = url->count() > 0;
    arguments->backend_given = backend->count() > 0;
    run = [arguments, given] { return examine(*arguments, *given); };
  });
}

}  // namespace hitide::cli
