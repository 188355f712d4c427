#include "serve_options_of.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "spec/option_table.h"
#include "spec/options_file.h"
#include "surroundings.h"

namespace hitide::cli {
namespace {

constexpr std::uint32_t kDeviceTokensMin = 64;  // the least --context-length

// The engine holds whole pages: takes what is beyond the last one off, and refuses what is then too
// small in the option's own words.
Status settle_device_tokens(EngineOptions& engine) {
  const std::uint32_t given = engine.device_tokens;
  if (given == 0) return {};
  engine.device_tokens -= given % engine.page_size;
  const std::uint32_t least = std::max(engine.context_length, kDeviceTokensMin);
  if (engine.device_tokens >= least) return {};
  return Status(StatusCode::invalid_argument,
                fmt::format("--device-tokens: {} is {} whole pages of --page-size {}, and one "
                            "request needs {} tokens",
                            given, given / engine.page_size, engine.page_size, least));
}

}  // namespace

Result<ReadOptions> read_serve_options(const GivenOptions& given) {
  ReadOptions read;
  ServeOptions& options = read.options;
  std::vector<std::string> names;
  for (const auto& [name, value] : given) {
    if (name != "--config") continue;
    HITIDE_RETURN_IF_ERROR(set_option(option_table(), name, value, options));
  }
  // What the command line says is set over it.
  if (!options.config_file.empty()) {
    auto file = apply_options_file(options.config_file, options);
    if (!file.ok()) return file.status().with_context("--config");
    names = std::move(file->given);
    options.engine_flags = std::move(file->engine_flags);
  }
  for (const auto& [name, value] : given) {
    HITIDE_RETURN_IF_ERROR(set_option(option_table(), name, value, options));
    names.push_back(name);
  }
  StorageOptions& storage = options.cache.storage;
  storage.mooncake.package_path = installed_package();
  storage.mooncake.python = default_python();
  HITIDE_ASSIGN_OR_RETURN(read.storage, apply_storage_config(storage_environment(), options));
  if (storage.backend == "file" && storage.path.empty()) {
    storage.path = default_file_store();
    read.no_store_path = storage.path.empty();
  }
  HITIDE_RETURN_IF_ERROR(settle_options(options, names));
  HITIDE_RETURN_IF_ERROR(settle_device_tokens(options.engine));
  return read;
}

}  // namespace hitide::cli
