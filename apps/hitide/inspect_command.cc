// hitide inspect: what lies in a store.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <hitide/file_store.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "bytes_text.h"
#include "cli.h"
#include "master_numbers.h"
#include "store_place.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "inspect";

struct Arguments {
  std::string directory;
  std::string backend = "file";
  std::string extra_config;
  bool segments = false;
  bool json = false;
};

std::uint64_t unix_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

std::string age_text(std::uint64_t at_s, std::uint64_t now_s) {
  if (at_s == 0) return "-";
  const double age = now_s > at_s ? static_cast<double>(now_s - at_s) : 0.0;
  if (age < 120.0) return fmt::format("{:.0f} s", age);
  if (age < 7200.0) return fmt::format("{:.0f} min", age / 60.0);
  if (age < 172800.0) return fmt::format("{:.1f} h", age / 3600.0);
  return fmt::format("{:.1f} d", age / 86400.0);
}

nlohmann::ordered_json json_of(const FileStoreContents& store, std::uint64_t now_s) {
  nlohmann::ordered_json out = {{"path", store.path},
                                {"format", store.format},
                                {"owner", store.owner},
                                {"objects", store.objects},
                                {"pages", store.pages},
                                {"file_bytes", store.file_bytes},
                                {"live_bytes", store.live_bytes},
                                {"dead_bytes", store.dead_bytes},
                                {"damaged_bytes", store.damaged_bytes},
                                {"namespaces", nlohmann::ordered_json::array()},
                                {"segments", nlohmann::ordered_json::array()}};
  const auto time = [](std::uint64_t at_s) {
    return at_s == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(at_s);
  };
  const auto age = [&](std::uint64_t at_s) {
    return at_s == 0 ? nlohmann::ordered_json()
                     : nlohmann::ordered_json(now_s > at_s ? now_s - at_s : 0);
  };
  for (const FileStoreNamespace& space : store.namespaces) {
    out["namespaces"].push_back({{"name", space.name},
                                 {"objects", space.objects},
                                 {"pages", space.pages},
                                 {"bytes", space.bytes},
                                 {"oldest_unix_s", time(space.oldest_s)},
                                 {"newest_unix_s", time(space.newest_s)},
                                 {"oldest_age_s", age(space.oldest_s)},
                                 {"newest_age_s", age(space.newest_s)}});
  }
  for (const FileStoreSegment& segment : store.segments) {
    out["segments"].push_back({{"number", segment.number},
                               {"path", segment.path},
                               {"objects", segment.objects},
                               {"file_bytes", segment.file_bytes},
                               {"live_bytes", segment.live_bytes},
                               {"dead_bytes", segment.dead_bytes},
                               {"damaged_bytes", segment.damaged_bytes},
                               {"error", segment.error}});
  }
  return out;
}

std::string text_of(const FileStoreContents& store, bool segments, std::uint64_t now_s) {
  const std::string owner =
      store.owner == 0 ? "" : fmt::format(", open for writing by process {}", store.owner);
  std::string out =
      fmt::format("{}: format {}{}\n", store.path, store.format, owner) +
      fmt::format("{} pages, {} objects; {} in {} segments: {} live, {} dead, {} damaged\n",
                  store.pages, store.objects, bytes_text(store.file_bytes), store.segments.size(),
                  bytes_text(store.live_bytes), bytes_text(store.dead_bytes),
                  bytes_text(store.damaged_bytes));
  if (!store.namespaces.empty()) {
    out += fmt::format("{:<64} {:>9} {:>9} {:>10} {:>9} {:>9}\n", "namespace", "pages", "objects",
                       "bytes", "oldest", "newest");
  }
  for (const FileStoreNamespace& space : store.namespaces) {
    out += fmt::format("{:<64} {:>9} {:>9} {:>10} {:>9} {:>9}\n",
                       space.name.empty() ? "(none)" : space.name, space.pages, space.objects,
                       bytes_text(space.bytes), age_text(space.oldest_s, now_s),
                       age_text(space.newest_s, now_s));
  }
  for (const FileStoreSegment& segment : store.segments) {
    if (!segment.error.empty()) {
      out += fmt::format("segment {}: cannot be read: {}\n", segment.path, segment.error);
    } else if (segments) {
      out += fmt::format("segment {}: {} objects, {}: {} live, {} dead, {} damaged\n", segment.path,
                         segment.objects, bytes_text(segment.file_bytes),
                         bytes_text(segment.live_bytes), bytes_text(segment.dead_bytes),
                         bytes_text(segment.damaged_bytes));
    }
  }
  return out;
}

int inspect_files(const Arguments& arguments, const StorageOptions& storage) {
  const auto refuse = [](const Status& status) {
    return complain(kCommand, std::string(status.message()), store_exit_code(status));
  };
  const auto paths = file_stores_at(storage.path);
  if (!paths.ok()) return refuse(paths.status());
  const std::uint64_t now_s = unix_now();
  nlohmann::ordered_json out = {{"backend", "file"}, {"stores", nlohmann::ordered_json::array()}};
  std::string text;
  for (const std::string& path : *paths) {
    const auto contents = inspect_file_store(path);
    if (!contents.ok()) return refuse(contents.status());
    out["stores"].push_back(json_of(*contents, now_s));
    text += text_of(*contents, arguments.segments, now_s);
  }
  // Keys are bytes that others wrote.
  if (arguments.json)
    text = out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), stdout);
  return printed(kCommand);
}

int inspect_mooncake(const Arguments& arguments, const StorageOptions& storage) {
  const Result<MasterNumbers> master = ask_master(storage.mooncake);
  if (!master.ok()) {
    return complain(kCommand, std::string(master.status().message()),
                    store_exit_code(master.status()));
  }
  constexpr const char* kNoListing =
      "a Mooncake store does not list what it has by model: a server that uses it says how its own "
      "pages do (hitide doctor --url URL, and /metrics)";
  if (arguments.json) {
    const nlohmann::ordered_json out = {{"backend", "mooncake"},
                                        {"master", storage.mooncake.master_server_address},
                                        {"objects", master->objects},
                                        {"bytes_used", master->bytes_used},
                                        {"bytes_limit", master->bytes_limit},
                                        {"evicted_objects", master->evicted_objects},
                                        {"namespaces", nullptr},
                                        {"note", kNoListing}};
    std::printf("%s\n", out.dump().c_str());
    return printed(kCommand);
  }
  std::printf(
      "master %s: it serves\n%s of %s used by %llu objects of all clients; %llu evicted\n%s\n",
      storage.mooncake.master_server_address.c_str(), bytes_text(master->bytes_used).c_str(),
      bytes_text(master->bytes_limit).c_str(), static_cast<unsigned long long>(master->objects),
      static_cast<unsigned long long>(master->evicted_objects), kNoListing);
  return printed(kCommand);
}

int inspect(const Arguments& arguments) {
  if (arguments.backend == "mooncake" && !arguments.directory.empty()) {
    return complain(kCommand,
                    arguments.directory + ": a directory is of a file store, not of mooncake",
                    kUsage);
  }
  const auto options =
      store_options(arguments.backend, arguments.extra_config, arguments.directory);
  if (!options.ok()) return complain(kCommand, std::string(options.status().message()), kUsage);
  return arguments.backend == "file" ? inspect_files(arguments, *options)
                                     : inspect_mooncake(arguments, *options);
}

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(kCommand, "Say what lies in a store; nothing is changed.");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("directory", arguments->directory,
                   "The file store's. Default: as configured, else where serve has it.")
      ->check(not_empty)
      ->type_name("DIR");
  command->add_option("--hicache-storage-backend", arguments->backend, "Kind of the store.")
      ->capture_default_str()
      ->check(CLI::IsMember({"file", "mooncake"}))
      ->type_name("BACKEND");
  command
      ->add_option("--hicache-storage-backend-extra-config", arguments->extra_config,
                   "As for serve; text, or @FILE.")
      ->check(not_empty)
      ->type_name("CONFIG");
  command->add_flag("--segments", arguments->segments, "A line for each segment, too.");
  command->add_flag("--json", arguments->json, "Print one JSON object: stores, or the master's.");
  command->callback([&run, arguments] { run = [arguments] { return inspect(*arguments); }; });
}

}  // namespace hitide::cli
