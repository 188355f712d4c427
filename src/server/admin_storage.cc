#include "server/admin_storage.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What is waited for before it is taken back. Calls of the store have limits of their own.
constexpr Duration kChangeTime = std::chrono::seconds(10);
constexpr Duration kClearTime = std::chrono::seconds(60);

constexpr std::string_view kBackend = "hicache_storage_backend";
constexpr std::string_view kExtraConfig = "hicache_storage_backend_extra_config_json";

struct Field {
  std::string_view name;
  std::string_view option;  // that takes its value
};
constexpr std::array<Field, 4> kFields = {{
    {kBackend, "--hicache-storage-backend"},
    {kExtraConfig, "--hicache-storage-backend-extra-config"},
    {"hicache_storage_prefetch_policy", "--hicache-storage-prefetch-policy"},
    {"hicache_write_policy", "--hicache-write-policy"},
}};

TimePoint soon(Duration time) { return SystemClock::instance().now() + time; }

Status invalid(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

OrderedJson done(std::string message) {
  return {{"success", true}, {"message", std::move(message)}};
}

// SGLang answers every failure of these addresses with 400.
Reply failed(const Status& status) {
  ApiError error;
  error.code = "storage_backend";
  error.message = status.message();
  return error_reply(error);
}

std::string option_text(const ServeOptions& options, std::string_view option) {
  return find_option(option_table(), option)->get(options);
}

// The texts of the fields that are there and not null.
Result<std::vector<std::pair<std::string, std::string>>> read_fields(const std::string& body) {
  const OrderedJson json = OrderedJson::parse(body, nullptr, false);
  if (!json.is_object()) return invalid("the body must be a JSON object");
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& [name, value] : json.items()) {
    const bool known =
        std::any_of(kFields.begin(), kFields.end(),
                    [&name = name](const Field& field) { return field.name == name; });
    if (!known) {
      std::string names;
      for (const Field& field : kFields) {
        names += (names.empty() ? "" : ", ") + std::string(field.name);
      }
      return invalid(fmt::format("{}: no such field; there are {}", name, names));
    }
    if (value.is_null()) continue;
    if (!value.is_string()) return invalid(fmt::format("{}: must be text", name));
    fields.emplace_back(name, value.get<std::string>());
  }
  return fields;
}

// Of the launch line, without what belongs to one backend.
StorageOptions fresh_storage(const StorageOptions& launched) {
  StorageOptions storage;
  storage.staging = launched.staging;
  storage.mooncake.python = launched.mooncake.python;
  storage.mooncake.package_path = launched.mooncake.package_path;
  return storage;
}

}  // namespace

StorageAdmin::StorageAdmin(Engine& engine, StorageSettings settings)
    : engine_(engine), settings_(std::move(settings)), current_(settings_.launched) {}

bool StorageAdmin::is_attached() const {
  const StorageStatus status = engine_.cache_stats().storage_status;
  return status != StorageStatus::none && status != StorageStatus::off;
}

Reply StorageAdmin::show() const {
  const CacheStats stats = engine_.cache_stats();
  const bool attached =
      stats.storage_status != StorageStatus::none && stats.storage_status != StorageStatus::off;
  const MutexLock lock(mutex_);
  const std::string& extra = current_.storage_extra_config;
  OrderedJson json;
  json[std::string(kBackend)] =
      attached ? OrderedJson(stats.storage_backend) : OrderedJson(nullptr);
  json["hicache_storage_backend_extra_config"] =
      attached && !extra.empty() ? OrderedJson(extra) : OrderedJson(nullptr);
  for (const Field& field : {kFields[2], kFields[3]}) {
    json[std::string(field.name)] = option_text(current_, field.option);
  }
  json["status"] = to_string(stats.storage_status);
  json["detail"] = stats.storage_detail;
  return json_reply(dump(json));
}

Result<ServeOptions> StorageAdmin::wanted(const std::string& body) const {
  HITIDE_ASSIGN_OR_RETURN(const auto fields, read_fields(body));
  std::string backend, extra;
  for (const auto& [name, value] : fields) {
    if (name == kBackend) backend = value;
    if (name == kExtraConfig) extra = value;
  }
  if (backend.empty()) return invalid(fmt::format("{}: must be given", kBackend));
  if (backend == "none") {
    return invalid(
        fmt::format("{}: 'none' is no store; DELETE detaches the one that is there", kBackend));
  }
  if (!extra.empty() && extra[0] == '@') {
    return invalid(
        fmt::format("{}: must be a JSON object; files are for the launch line", kExtraConfig));
  }
  ServeOptions options;
  {
    const MutexLock lock(mutex_);
    options = current_;
  }
  // Without a configuration of its own, the backend that is there stays as it is.
  const bool stays = extra.empty() && options.cache.storage.backend == backend;
  if (!stays) {
    options.cache.storage = fresh_storage(settings_.launched.cache.storage);
    options.storage_extra_config.clear();
  }
  for (const auto& [name, value] : fields) {
    const auto field = std::find_if(kFields.begin(), kFields.end(),
                                    [&name = name](const Field& one) { return one.name == name; });
    const Status status = set_option(option_table(), field->option, value, options);
    if (!status.ok()) return invalid(fmt::format("{}: {}", name, status.message()));
  }
  if (!stays) {
    HITIDE_ASSIGN_OR_RETURN(const StorageConfigReport report,
                            apply_storage_config(settings_.environment, options));
    log_storage_config(report);
    if (backend == "file" && options.cache.storage.path.empty()) {
      options.cache.storage.path = settings_.default_file_path;
    }
  }
  HITIDE_RETURN_IF_ERROR(validate(options.cache));
  return options;
}

Reply StorageAdmin::attach(const std::string& body) {
  const MutexLock change(change_mutex_);
  Result<ServeOptions> options = wanted(body);
  if (!options.ok()) return failed(options.status());
  const bool was_attached = is_attached();
  const Status status =
      engine_.attach_storage(options->cache.storage, options->cache.policy, soon(kChangeTime));
  if (!status.ok()) return failed(status);
  const std::string& backend = options->cache.storage.backend;
  std::string message =
      was_attached ? fmt::format("{} was attached already; the policies are as asked for", backend)
                   : fmt::format("{} is attached", backend);
  const MutexLock lock(mutex_);
  current_ = std::move(*options);
  return json_reply(dump(done(std::move(message))));
}

Reply StorageAdmin::detach() {
  const MutexLock change(change_mutex_);
  const Status status = engine_.detach_storage(soon(kChangeTime));
  if (status.ok()) {
    return json_reply(dump(done("the storage backend is detached; what it holds stays there")));
  }
  if (!is_attached() && status.code() == StatusCode::deadline_exceeded) {
    return json_reply(dump(done(
        fmt::format("the storage backend is detached; what did not end in time was cancelled: {}",
                    status.message()))));
  }
  return failed(status);
}

Reply StorageAdmin::clear() {
  const MutexLock change(change_mutex_);
  const Result<std::uint64_t> removed = engine_.clear_storage(soon(kClearTime));
  if (!removed.ok()) return failed(removed.status());
  OrderedJson json = done("everything that this model had in the storage backend is removed");
  json["removed_objects"] = *removed;
  return json_reply(dump(json));
}

}  // namespace hitide
