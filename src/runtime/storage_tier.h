// StorageTier: L3 of one cache. Owns the store, registers the host pool with it by the rule
// (<hitide/registration.h>), and runs the lanes.
//
//   store answers? --> attach: register the pool --> lanes run --> on
//        | not yet: asked again, until it does     | refused: tried again, meanwhile staged
//        | never, or a page is larger than its objects may be: off
//
// Stores of other processes are attached on a thread of the tier.
//
// A tier serves one store. Detaching and attaching another is done with another tier, which goes on
// with the counters of the one before it.
//
// No failure fails the start of a cache: it costs L3, or the zero-copy path, and is said once.
//
// Threading: start(), clear() and what ends the tier from one thread; the rest from any.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/options.h>
#include <hitide/registration.h>
#include <hitide/stats.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "pool/host_pool.h"
#include "runtime/store_client.h"
#include "storage/page_store.h"
#include "transfer/pool_registry.h"
#include "transfer/transfer_engine.h"

namespace hitide {

// What the tiers of one cache have counted, one after the other.
struct StorageCounters {
  std::shared_ptr<TransferCells> lanes = std::make_shared<TransferCells>();
  std::shared_ptr<RegistrationCounters> registration = std::make_shared<RegistrationCounters>();
  std::shared_ptr<FailedKeyCounters> failed_keys = std::make_shared<FailedKeyCounters>();
};

class StorageTier {
 public:
  struct Hooks {
    std::function<void(Completion)> on_completion;  // as TransferEngine's
    // L3 has come up: within start(), or later on the tier's own thread. The lanes stay until the
    // tier goes.
    std::function<void(TransferEngine& lanes)> on_attached;
  };

  // `opened` without a store: none was asked for, or it cannot be opened.
  StorageTier(OpenedStore opened, const CacheOptions& options,
              const StorageCounters& counters = {});
  ~StorageTier();
  StorageTier(const StorageTier&) = delete;
  StorageTier& operator=(const StorageTier&) = delete;

  // Null: there is none.
  ObjectStore* store() const { return opened_.store.get(); }
  // The store's name, or that of the one that was asked for.
  const std::string& backend() const { return backend_; }

  // Attaches now where the store answers, waiting for adoption some seconds at most; else later.
  // `pool` must outlive close(). Unless it is in use, it belongs to nobody else until start()
  // returns: its memory may be exchanged.
  void start(const ModelSpec& model, HostPool& pool, Hooks hooks, bool pool_in_use = false);

  // Fills what a store says of itself and how it is attached. Asks the store.
  void fill_stats(CacheStats& stats) const;
  void write_metrics(MetricsText& text) const;

  // Removes this model's objects from the store (PageStore::clear). Between start() and
  // stop_attaching(), where the tier is on.
  Result<std::uint64_t> clear(TimePoint deadline);

  // What ends a tier, in this order; each step may be taken again. After the first nothing comes up
  // any more.
  void stop_attaching();
  // Waits until every operation has ended, while nobody starts any.
  Status drain(TimePoint deadline);
  // Every operation has been answered then.
  Status stop_lanes(TimePoint deadline);
  // Lets go of the pool's memory, which nobody needs any more.
  void detach();
  // Closes the store. Host memory that it handed out must be gone.
  Status close(TimePoint deadline);

 private:
  void turn_off(const Status& reason);  // nobody else is there yet
  void attach();
  Status start_lanes(std::unique_ptr<TransferEngine>& lanes);
  void run();
  void give_up(std::string_view exception);
  bool wait_for_next_try(Duration& pause);
  Result<PoolMemory> move_to_store_memory();
  // Null before start() and without a store; stays until the tier goes.
  PageStore* page_store() const;
  TransferEngine* lanes() const;  // likewise, before attaching has succeeded

  OpenedStore opened_;
  const CacheOptions options_;
  const StorageCounters counters_;
  const std::string backend_;  // as asked for
  const std::string place_;    // where the store lies, for people

  // Set by start().
  HostPool* pool_ = nullptr;
  Hooks hooks_;
  std::unique_ptr<StoreRegistrar> registrar_;
  std::unique_ptr<PoolRegistry> registry_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool tried_ HITIDE_GUARDED_BY(mutex_) = false;  // the first attempt is over
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;
  StorageStatus status_ HITIDE_GUARDED_BY(mutex_) = StorageStatus::none;
  std::string detail_ HITIDE_GUARDED_BY(mutex_);
  std::unique_ptr<PageStore> page_store_ HITIDE_GUARDED_BY(mutex_);
  std::unique_ptr<TransferEngine> lanes_ HITIDE_GUARDED_BY(mutex_);
  std::vector<PoolRegistration> rows_ HITIDE_GUARDED_BY(mutex_);
  Mutex memory_mutex_;  // held while the pool's memory is exchanged
  bool pool_in_use_ HITIDE_GUARDED_BY(memory_mutex_) = false;
  std::thread thread_;  // start() and stop_attaching() only
};

}  // namespace hitide
