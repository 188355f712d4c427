#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include <hitide/registration.h>

#include "pool/host_pool.h"
#include "pool/host_size.h"
#include "storage/registry.h"
#include "transfer/pool_registry.h"

namespace hitide {
namespace {

AllocatorKind kind_for(const RegistrationCheck& check, const std::string& pool) {
  for (const auto& one : check.pool_allocators) {
    if (one.pool == pool) return one.kind;
  }
  return check.allocator;
}

Status validate(const RegistrationCheck& check) {
  HITIDE_RETURN_IF_ERROR(validate(check.model));
  for (const auto& one : check.pool_allocators) {
    const auto& pools = check.model.pools;
    if (std::none_of(pools.begin(), pools.end(),
                     [&](auto& pool) { return pool.name == one.pool; })) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("host allocator: the model has no pool {}", one.pool));
    }
  }
  return ok_status();
}

Result<std::shared_ptr<HostAllocator>> allocator_of(AllocatorKind kind) {
  if (kind == AllocatorKind::shm) return shm_allocator();
  if (kind == AllocatorKind::mmap) return mmap_allocator();
  return Status(
      StatusCode::invalid_argument,
      fmt::format("host allocator {}: only mmap and shm memory can be had without a store "
                  "that hands memory out",
                  to_string(kind)));
}

}  // namespace

Result<std::vector<PoolRegistration>> check_registration(const RegistrationCheck& check,
                                                         const StorageOptions& storage) {
  HITIDE_RETURN_IF_ERROR(validate(check));
  std::vector<std::unique_ptr<HostPool>> memory;
  std::vector<PoolToRegister> pools;
  for (const PoolSpec& pool : check.model.pools) {
    if (pool.kind == PoolKind::logical) {
      pools.push_back({.memory = describe_without_memory(pool)});
      continue;
    }
    HITIDE_ASSIGN_OR_RETURN(auto allocator, allocator_of(kind_for(check, pool.name)));
    HITIDE_ASSIGN_OR_RETURN(auto host, HostPool::create(pool, check.pages, std::move(allocator)));
    pools.push_back({.memory = host->describe()});
    memory.push_back(std::move(host));
  }
  ClientCapabilities client;
  Result<std::unique_ptr<ObjectStore>> store = open_object_store(storage);
  if (!store.ok()) {
    if (store.status().code() == StatusCode::invalid_argument) return store.status();
    client.reachable = false;
    client.detail = store.status().to_string();
    std::vector<PoolMemory> asked;
    for (const PoolToRegister& pool : pools) asked.push_back(pool.memory);
    return plan_registration(asked, client, {.staging_allowed = check.staging_allowed});
  }
  client = client_of((*store)->capabilities(), available_memory().value_or(UINT64_MAX));
  StoreRegistrar registrar(**store);
  PoolRegistry registry(registrar, {.staging_allowed = check.staging_allowed});
  return registry.attach(pools, client);
}

}  // namespace hitide
