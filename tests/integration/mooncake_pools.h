// Host pools on a real Mooncake store, registered by the rule, and their pages moved to it and
// back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pool/host_memory.h"
#include "runtime/store_client.h"
#include "storage/mooncake/mooncake_store.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/registrar_double.h"
#include "transfer/pool_registry.h"

namespace hitide {

inline constexpr std::uint64_t kSlotBytes = 128u << 10;

// The pools of one test over one store. The registrar stands before the store, so that a test can
// make it fail.
class MooncakePools {
 public:
  struct Shape {
    AllocatorKind allocator = AllocatorKind::shm;
    std::uint32_t segments = 1;
    std::uint32_t slots_per_segment = 4;
    bool required = true;
  };

  explicit MooncakePools(const MooncakeOptions& options, bool staging = true);
  ~MooncakePools();
  MooncakePools(const MooncakePools&) = delete;
  MooncakePools& operator=(const MooncakePools&) = delete;

  MooncakeStore& store() { return *store_; }
  const ClientCapabilities& client() const { return opened_.client; }
  RegistrarDouble& registrar() { return *registrar_; }
  PoolRegistry& registry() { return *registry_; }

  // Memory for a pool, and what the registry is told of it: while the pool is not in use its memory
  // may be exchanged for the store's.
  PoolToRegister add(const std::string& name, const Shape& shape);
  static PoolToRegister logical(const std::string& name);
  std::vector<PoolRegistration> attach(const std::vector<PoolToRegister>& pools);
  std::vector<PoolRegistration> attach(const std::vector<PoolToRegister>& pools,
                                       const ClientCapabilities& client);

  // Puts all slots of a pool, reads them back over other bytes, compares. Checks that they went the
  // way that `path` says.
  void expect_travels(const std::string& pool, RegistrationPath path);
  // L2 by itself.
  void expect_host_works(const std::string& pool);
  std::span<std::byte> segment(const std::string& pool, std::size_t index = 0) const;

  // Lines of the registry, warnings and worse.
  std::vector<std::string> warnings() const;
  void forget_warnings();

 private:
  struct Memory {
    Shape shape;
    std::unique_ptr<HostMemory> bytes;
  };
  Result<PoolMemory> build(const std::string& name, AllocatorKind kind);
  void write(const std::string& pool, const std::string& salt);
  void expect_holds(const std::string& pool, const std::string& salt);

  OpenedStore opened_;
  MooncakeStore* store_ = nullptr;
  std::map<std::string, Memory> memory_;
  std::unique_ptr<StoreRegistrar> real_;
  std::unique_ptr<RegistrarDouble> registrar_;
  std::unique_ptr<PoolRegistry> registry_;
  int moves_ = 0;

  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;  // guarded by mutex_
};

// The row says this and names that.
void expect_row(const PoolRegistration& row, RegistrationVerdict verdict, RegistrationPath path,
                const std::vector<std::string>& named = {});

}  // namespace hitide
