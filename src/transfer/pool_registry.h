// PoolRegistry: registers pools with a store, as a transaction.
//
//   all verdicts --> register, pool by pool --> undo what ended off --> one row a pool
//                          |
//                          +-- refused, thrown, answered short --> undone in reverse
//                                                              --> the next path down
//
// No failure of a registration fails the call: it costs the pool a path. Nothing stays
// half-registered: a pool is zero_copy with all of its regions, or none of them is registered.
// A region that several pools (or several calls) name is registered once and counted; it stays
// registered until the last of them lets go.
//
// Every pool goes through attach(): those at start together, one that comes later by itself, and
// all again when a store that was down is back.
//
// Threading: all methods from any thread; one attach() or detach() at a time, the others wait. The
// registrar is called under the lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/registration.h>
#include <hitide/result.h>

#include "base/metrics.h"
#include "base/mutex.h"
#include "pool/registrability.h"
#include "spec/registration.h"
#include "transfer/registrar.h"

namespace hitide {

struct PoolToRegister {
  PoolMemory memory;
  // Exchanges the pool's memory for memory that the store's client hands out and describes it. Null
  // where that cannot be done. Called at most once, only after an adoption has failed, and only
  // while the pool is not in use.
  std::function<Result<PoolMemory>()> move_to_store_memory = {};
};

// Of regions. They may outlive a registry, so that the next one counts on.
struct RegistrationCounters {
  Counter attempts, failures, undone;
};

class PoolRegistry {
 public:
  // `registrar` must outlive the registry. counters: null: from 0.
  PoolRegistry(Registrar& registrar, const RegistrationRules& rules,
               std::shared_ptr<RegistrationCounters> counters = nullptr);
  ~PoolRegistry();  // detach_all()
  PoolRegistry(const PoolRegistry&) = delete;
  PoolRegistry& operator=(const PoolRegistry&) = delete;

  // One row for each of `pools`, in order. Logs one warning for each pool that is worse off than it
  // could be, and one line where the whole client is; of pools that it knows, changes alone. If a
  // required pool ends off, so does every other; then the new ones are unregistered again, while
  // earlier ones stay as they are until the caller, who has to end L3 first, detaches them.
  std::vector<PoolRegistration> attach(std::span<const PoolToRegister> pools,
                                       const ClientCapabilities& client);

  // Lets go of what the latest attach() of this pool has registered. not_found: the pool is not
  // attached; nothing changes.
  Status detach(std::string_view pool);
  // Everything, in the reverse order of registration.
  void detach_all();

  // The latest row of each pool, in the order of their first attach().
  std::vector<PoolRegistration> pools() const;
  // True while any pool with bytes is on.
  bool storage_on() const;
  // Regions that are registered now.
  std::size_t region_count() const;
  void write_metrics(MetricsText& text) const;

 private:
  struct Region {
    std::span<std::byte> bytes;
    std::uint32_t count = 0;
  };
  struct Hold {
    std::string pool;
    std::vector<std::span<std::byte>> regions;
  };

  void register_pool(const PoolToRegister& pool, const ClientCapabilities& client,
                     PoolRegistration& row) HITIDE_REQUIRES(mutex_);
  Status hold_regions(const PoolMemory& memory) HITIDE_REQUIRES(mutex_);
  Status call_registrar(std::span<const MemoryRegion> regions) HITIDE_REQUIRES(mutex_);
  void move_to_store_memory(const PoolToRegister& pool, const ClientCapabilities& client,
                            PoolRegistration& row) HITIDE_REQUIRES(mutex_);
  void let_go(const Hold& hold) HITIDE_REQUIRES(mutex_);
  void unregister(std::span<std::byte> bytes) HITIDE_REQUIRES(mutex_);
  Region* find(std::span<std::byte> bytes) HITIDE_REQUIRES(mutex_);
  std::vector<std::span<std::byte>> registered() const HITIDE_REQUIRES(mutex_);
  void enter(std::span<const PoolRegistration> rows) HITIDE_REQUIRES(mutex_);

  Registrar& registrar_;
  const RegistrationRules rules_;

  const std::shared_ptr<RegistrationCounters> counters_;

  mutable Mutex mutex_;
  std::vector<Region> regions_ HITIDE_GUARDED_BY(mutex_);  // in the order of registration
  std::vector<Hold> holds_ HITIDE_GUARDED_BY(mutex_);      // in the order of registration
  std::vector<PoolRegistration> rows_ HITIDE_GUARDED_BY(mutex_);
};

}  // namespace hitide
