#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

#include <hitide/registration.h>

#include "base/clock.h"
#include "pool/host_pool.h"
#include "runtime/pool_memory.h"
#include "runtime/pool_trial.h"
#include "runtime/store_client.h"
#include "storage/mooncake/private_store.h"
#include "transfer/pool_registry.h"

namespace hitide {
namespace {

constexpr Duration kStartWait = std::chrono::seconds(40);
constexpr Duration kAnswerWait = std::chrono::seconds(10);
constexpr Duration kTrialWait = std::chrono::seconds(30);
// A store keeps some of its memory free, and objects must fit beside each other.
constexpr std::uint64_t kPrivateStoreRoom = 4;

TimePoint now() { return SystemClock::instance().now(); }

AllocatorKind kind_for(const RegistrationCheck& check, const std::string& pool) {
  for (const auto& one : check.pool_allocators) {
    if (one.pool == pool) return one.kind;
  }
  return check.allocator;
}

Status validate(const RegistrationCheck& check, const StorageOptions& storage) {
  HITIDE_RETURN_IF_ERROR(validate(check.model));
  for (const auto& one : check.pool_allocators) {
    const auto& pools = check.model.pools;
    if (std::none_of(pools.begin(), pools.end(),
                     [&](auto& pool) { return pool.name == one.pool; })) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("host allocator: the model has no pool {}", one.pool));
    }
  }
  if (check.start_store && storage.backend != "mooncake") {
    return Status(StatusCode::invalid_argument,
                  fmt::format("a store can be started for mooncake, not for {}", storage.backend));
  }
  return ok_status();
}

// The pools of a check: memory and what the registry is told of it.
struct CheckedPools {
  std::vector<std::unique_ptr<HostPool>> host;  // [pools]; null: without bytes
  std::vector<PoolToRegister> to_register;      // [pools]
};

// `store` null: there is none that could hand memory out, and nothing will be attached; memory that
// it would have handed out is only described.
Result<CheckedPools> build_pools(const RegistrationCheck& check, ObjectStore* store) {
  CheckedPools pools;
  for (const PoolSpec& pool : check.model.pools) {
    pools.host.emplace_back();
    if (!has_bytes(pool)) {
      pools.to_register.push_back({.memory = describe_without_memory(pool)});
      continue;
    }
    const AllocatorKind kind = kind_for(check, pool.name);
    const bool stand_in = kind == AllocatorKind::store && store == nullptr;
    HITIDE_ASSIGN_OR_RETURN(auto allocator,
                            allocator_of(stand_in ? AllocatorKind::shm : kind, store));
    auto host = HostPool::create(pool, check.pages, std::move(allocator));
    if (!host.ok() && host.status().code() == StatusCode::unimplemented) {
      return Status(StatusCode::invalid_argument, std::string(host.status().message()));
    }
    HITIDE_RETURN_IF_ERROR(host.status());
    pools.host.back() = std::move(host).value();
    pools.to_register.push_back({.memory = pools.host.back()->describe()});
    pools.to_register.back().memory.allocator = kind;
  }
  return pools;
}

Result<PoolMemory> move_to_store_memory(HostPool& pool, ObjectStore& store) {
  HITIDE_RETURN_IF_ERROR(pool.exchange_memory(allocator_of(store)));
  return pool.describe();
}

Result<std::vector<PoolRegistration>> attach_and_try(const RegistrationCheck& check,
                                                     ObjectStore& store,
                                                     const ClientCapabilities& client) {
  HITIDE_ASSIGN_OR_RETURN(CheckedPools pools, build_pools(check, &store));
  for (std::size_t p = 0; p < pools.host.size(); ++p) {
    HostPool* host = pools.host[p].get();
    if (host == nullptr) continue;
    pools.to_register[p].move_to_store_memory = [host, &store] {
      return move_to_store_memory(*host, store);
    };
  }
  StoreRegistrar registrar(store);
  PoolRegistry registry(registrar, {.staging_allowed = check.staging_allowed});
  std::vector<PoolRegistration> rows = registry.attach(pools.to_register, client);
  try_pools(store, check.model, pools.host, now() + kTrialWait, rows);
  return rows;
}

// Memory that this machine gives to the store is mounted beside the start; the store may have no
// other.
void wait_for_own_segment(const ObjectStore& store, const StorageOptions& options) {
  const MooncakeOptions& mooncake = options.mooncake;
  const bool gives = options.backend == "mooncake" && !mooncake.standalone_storage &&
                     mooncake.global_segment_size > 0 && mooncake.master_metrics_port != 0;
  const TimePoint deadline = now() + kAnswerWait;
  while (gives && store.stats().bytes_limit < mooncake.global_segment_size && now() < deadline) {
    ::poll(nullptr, 0, 50);
  }
}

// A file store with the trial's pages: a folder of its own in the store's, which goes afterwards.
// In the store itself they would push out pages of models where it is full. Whoever has the store
// open has the folder too.
class TrialFolder {
 public:
  explicit TrialFolder(const std::string& store) : path_(store + "/trial") { remove(); }
  ~TrialFolder() { remove(); }
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  void remove() {
    std::error_code error;  // what is left costs space, and the next trial removes it
    std::filesystem::remove_all(path_, error);
  }
  const std::string path_;
};

// So large that opening a store evicts nothing of it.
constexpr std::uint64_t kKeepsAll = 1ull << 50;

std::uint64_t bytes_of(const RegistrationCheck& check) {
  std::uint64_t sum = 0;
  for (const PoolSpec& pool : check.model.pools) sum += pool.page_bytes * check.pages;
  return sum;
}

}  // namespace

Result<std::vector<PoolRegistration>> check_registration(const RegistrationCheck& check,
                                                         const StorageOptions& storage) {
  HITIDE_RETURN_IF_ERROR(validate(check, storage));
  StorageOptions options = storage;
  std::unique_ptr<PrivateStore> own;
  if (check.start_store) {
    HITIDE_ASSIGN_OR_RETURN(
        own, PrivateStore::start(storage.mooncake, kPrivateStoreRoom * bytes_of(check),
                                 now() + kStartWait));
    options.mooncake = own->options();
  }
  const bool file = options.backend == "file" && !options.path.empty();
  if (file && options.bytes_max != 0) options.bytes_max = kKeepsAll;
  std::optional<TrialFolder> folder;
  OpenedStore real;  // stays open, and so locked, for as long as the trial takes
  OpenedStore opened = open_store_client(options, now() + kAnswerWait);
  if (file && opened.status.ok()) {
    real = std::move(opened);
    folder.emplace(options.path);
    options.path = folder->path();
    options.bytes_max = storage.bytes_max;
    opened = open_store_client(options, now() + kAnswerWait);
  }
  if (opened.status.code() == StatusCode::invalid_argument) return opened.status;
  if (opened.status.ok()) {
    wait_for_own_segment(*opened.store, options);
    return attach_and_try(check, *opened.store, opened.client);
  }
  HITIDE_ASSIGN_OR_RETURN(const CheckedPools pools, build_pools(check, nullptr));
  std::vector<PoolMemory> asked;
  for (const PoolToRegister& pool : pools.to_register) asked.push_back(pool.memory);
  return plan_registration(asked, opened.client, {.staging_allowed = check.staging_allowed});
}

}  // namespace hitide
