#include "store_place.h"

#include <hitide/file_store.h>

#include "cli.h"
#include "spec/storage_config.h"
#include "surroundings.h"

namespace hitide::cli {

Result<StorageOptions> store_options(const std::string& backend, const std::string& extra_config,
                                     const std::string& directory) {
  ServeOptions options;
  StorageOptions& storage = options.cache.storage;
  storage.backend = backend;
  storage.mooncake.python = default_python();
  options.storage_extra_config = extra_config;
  HITIDE_ASSIGN_OR_RETURN(const StorageConfigReport report,
                          apply_storage_config(storage_environment(), options));
  log_storage_config(report);
  if (storage.mooncake.package_path.empty()) storage.mooncake.package_path = installed_package();
  if (!directory.empty()) storage.path = directory;
  if (backend == "file" && storage.path.empty()) {
    storage.path = default_file_store();
    if (storage.path.empty()) {
      return Status(StatusCode::invalid_argument,
                    "no directory is known: name one, or set HOME or XDG_CACHE_HOME");
    }
  }
  return storage;
}

Result<std::vector<std::string>> file_stores_at(const std::string& path) {
  std::vector<std::string> found = file_store_directories(path);
  if (found.empty()) {
    return Status(StatusCode::not_found,
                  path + ": there is no file store (it has a file FORMAT, or folders rank0, ...)");
  }
  return found;
}

int store_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::not_found:
      return kNotFound;
    case StatusCode::invalid_argument:
      return kUsage;
    case StatusCode::unavailable:
    case StatusCode::failed_precondition:
      return kUnavailable;
    default:
      return kFailed;
  }
}

}  // namespace hitide::cli
