// hitide verify: reads every record of a file store and compares it with its checksum.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <hitide/file_store.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "cli.h"
#include "store_place.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "verify";

struct Arguments {
  std::string directory;
  std::string extra_config;
  bool repair = false;
  bool json = false;
};

struct Verified {
  std::string path;
  FileStoreVerification found;
};

nlohmann::ordered_json json_of(const Verified& store) {
  const FileStoreVerification& found = store.found;
  nlohmann::ordered_json out = {{"path", store.path},
                                {"objects", found.objects},
                                {"bytes", found.bytes},
                                {"objects_damaged", found.objects_damaged},
                                {"objects_dropped", found.objects_dropped},
                                {"damaged_bytes", found.damaged_bytes},
                                {"segments_unreadable", found.segments_unreadable},
                                {"damage", nlohmann::ordered_json::array()}};
  for (const FileStoreDamage& damage : found.damage) {
    out["damage"].push_back({{"path", damage.path},
                             {"offset", damage.offset},
                             {"key", damage.key},
                             {"bytes", damage.bytes},
                             {"reason", damage.reason},
                             {"dropped", damage.dropped}});
  }
  return out;
}

std::string text_of(const Verified& store) {
  const FileStoreVerification& found = store.found;
  std::string out =
      fmt::format("{}: {} objects read, {} bytes: {} damaged, {} dropped\n", store.path,
                  found.objects, found.bytes, found.objects_damaged, found.objects_dropped);
  if (found.segments_unreadable > 0) {
    out += fmt::format("{} segments cannot be read\n", found.segments_unreadable);
  }
  for (const FileStoreDamage& damage : found.damage) {
    const std::string what = damage.key.empty()
                                 ? fmt::format("{} bytes", damage.bytes)
                                 : fmt::format("at {}: {}", damage.offset, damage.key);
    out += fmt::format("  {} {}: {}{}\n", damage.path, what, damage.reason,
                       damage.dropped ? " (dropped)" : "");
  }
  return out;
}

bool sound(const FileStoreVerification& found) {
  return found.objects_damaged == found.objects_dropped && found.segments_unreadable == 0;
}

int verify(const Arguments& arguments) {
  const auto refuse = [](const Status& status) {
    return complain(kCommand, std::string(status.message()), store_exit_code(status));
  };
  const auto options = store_options("file", arguments.extra_config, arguments.directory);
  if (!options.ok()) return refuse(options.status());
  const auto paths = file_stores_at(options->path);
  if (!paths.ok()) return refuse(paths.status());
  bool all_sound = true;
  nlohmann::ordered_json out = {{"stores", nlohmann::ordered_json::array()}};
  std::string text;
  for (const std::string& path : *paths) {
    const auto found = verify_file_store({.path = path, .drop_damaged = arguments.repair});
    if (!found.ok()) return refuse(found.status());
    const Verified store{.path = path, .found = *found};
    all_sound = all_sound && sound(*found);
    out["stores"].push_back(json_of(store));
    text += text_of(store);
  }
  out["sound"] = all_sound;
  std::fputs(
      arguments.json
          ? (out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n").c_str()
          : text.c_str(),
      stdout);
  const int code = printed(kCommand);
  if (code != kDone || all_sound) return code;
  return complain(kCommand,
                  arguments.repair ? "there is damage that cannot be dropped; delete the segments "
                                     "that cannot be read while no server has the store open"
                                   : "there is damage; --repair drops what is damaged",
                  kDamaged);
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      kCommand, "Read every record of a file store and compare it with its checksum.");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("directory", arguments->directory,
                   "The store's. Default: as configured, else where serve has it.")
      ->check(not_empty)
      ->type_name("DIR");
  command
      ->add_option("--hicache-storage-backend-extra-config", arguments->extra_config,
                   "As for serve; text, or @FILE.")
      ->check(not_empty)
      ->type_name("CONFIG");
  command->add_flag(
      "--repair", arguments->repair,
      "Drop what is damaged, so that it is stored anew when it is wanted. Not while a "
      "server has the store open.");
  command->add_flag("--json", arguments->json, "Print one JSON object: stores, sound.");
  command->callback([&run, arguments] { run = [arguments] { return verify(*arguments); }; });
}

}  // namespace hitide::cli
