// CacheImpl: the shell around CacheCore.
//
//   engine calls --+--> [mutex: core] --plan--> device queue, storage lanes, rank group
//                  |                                   |
//   core thread ---+<------ CompletionQueue <----------+
//
// The mutex is held for the core's own computing and for handing a plan on, never across I/O, a
// copy or a callback: devices and lanes only queue what they are given.
//
// Storage comes and goes while requests are served (cache_storage.cc). The core is told that there
// is none, the lanes are left, what they hold ends or is cancelled, and every answer goes the same
// way as ever: so no page and no pin is lost.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <thread>

#include <hitide/cache.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_core.h"
#include "pool/host_pool.h"
#include "pool/host_size.h"
#include "runtime/completion_queue.h"
#include "runtime/storage_tier.h"
#include "spec/rank_group.h"
#include "transfer/transfer_engine.h"

namespace hitide {

class CacheImpl : public std::enable_shared_from_this<CacheImpl>, private CompletionSink {
 public:
  static Result<std::shared_ptr<CacheImpl>> open(const CacheOptions& options,
                                                 const ModelSpec& model, Device& device,
                                                 const std::function<OpenedStore()>& open_store,
                                                 bool store_given, std::function<void()> notify);
  ~CacheImpl() override;

  const RankGeometry& ranks() const { return model_.ranks; }
  Result<PrefixHandle> open_prefix(const PrefixRequest& request);
  void note_prefill(std::uint32_t tokens, Duration time);
  Status flush();
  // Opens a store; called only where none is attached.
  using OpenStore = std::function<OpenedStore()>;
  // `storage` tells whether the same one is attached already; null: it cannot be.
  Status attach_storage(const OpenStore& open, const StorageOptions* storage,
                        const PolicyOptions& policy, TimePoint deadline);
  Status detach_storage(TimePoint deadline);
  Result<std::uint64_t> clear_storage(TimePoint deadline);
  CacheStats stats() const;
  std::string storage_metrics() const;
  Result<Explanation> explain(std::string_view id) const;
  Status check() const;
  Status close(TimePoint deadline);

  // What PrefixHandle forwards.
  PrefixState state(RequestId id) const;
  std::uint32_t cached_tokens(RequestId id) const;
  std::vector<PageId> pages(RequestId id) const;
  std::string explanation_id(RequestId id) const;
  Result<Admission> admit(RequestId id);
  Result<std::vector<PageId>> reserve(RequestId id, std::uint32_t total_tokens);
  Status commit(RequestId id, std::span<const TokenId> tokens);
  void release(RequestId id);

 private:
  // What lanes and a store get at least to come to an end.
  static constexpr Duration kLaneGrace = std::chrono::seconds(2);

  CacheImpl(const CacheOptions& options, const ModelSpec& model, Device& device,
            std::function<void()> notify);
  Status start(const HostSize& size, OpenedStore opened, bool store_given);
  Status make_host_pool(const CacheOptions& options, const ModelSpec& model, const HostSize& size);
  void storage_attached(TransferEngine& lanes);
  StorageTier::Hooks storage_hooks();
  std::shared_ptr<StorageTier> tier() const;
  Status still_open(std::string_view call) const;
  Status end_storage(TimePoint deadline) HITIDE_REQUIRES(admin_mutex_);
  void replace_tier(std::shared_ptr<StorageTier> tier) HITIDE_REQUIRES(admin_mutex_);
  // No new operation reaches the lanes from now on; what the core still asks for is cancelled.
  void leave_lanes() HITIDE_REQUIRES(admin_mutex_);
  void post(CopyCompletion completion) override;
  void run_core();
  void take_completions(const std::deque<Completion>& completions);
  // Hands a plan on, in order.
  void dispatch(Plan& plan) HITIDE_REQUIRES(mutex_);
  void dispatch_copy(const CopyOp& copy) HITIDE_REQUIRES(mutex_);
  template <typename Op>
  void dispatch_storage(Op op) HITIDE_REQUIRES(mutex_);
  void report_trip() HITIDE_REQUIRES(mutex_);

  // Runs `step(core, plan)` under the mutex and hands on what it planned. failed_precondition: the
  // cache is closed, and `call`, for people, has done nothing.
  template <typename Step>
  auto with_core(std::string_view call, const Step& step)
      -> decltype(step(std::declval<CacheCore&>(), std::declval<Plan&>()));

  // Constant after start().
  Device& device_;
  const std::function<void()> notify_;
  const Clock& clock_ = SystemClock::instance();
  CacheOptions options_;
  ModelSpec model_;
  std::unique_ptr<HostPool> host_pool_;  // until close(): its memory may be the store's

  // Synchronise themselves.
  CompletionQueue completions_;
  SoloRankGroup ranks_;

  mutable Mutex mutex_;
  CondVar idle_;  // operations_in_flight() may have become 0
  std::unique_ptr<CacheCore> core_ HITIDE_GUARDED_BY(mutex_);
  std::shared_ptr<StorageTier> storage_ HITIDE_GUARDED_BY(mutex_);  // never null once started
  TransferEngine* lanes_ HITIDE_GUARDED_BY(mutex_) = nullptr;       // storage_'s, once L3 is on
  // What the stores that were detached have counted, by backend.
  std::map<std::string, StoreStats> earlier_stores_ HITIDE_GUARDED_BY(mutex_);
  bool notify_pending_ HITIDE_GUARDED_BY(mutex_) = false;
  bool trip_reported_ HITIDE_GUARDED_BY(mutex_) = false;
  bool closed_ HITIDE_GUARDED_BY(mutex_) = false;
  std::size_t checked_ HITIDE_GUARDED_BY(mutex_) = 0;  // completions since the last check

  // Attaching, detaching and clearing, one at a time; taken before mutex_.
  Mutex admin_mutex_;
  StorageCounters storage_counters_ HITIDE_GUARDED_BY(admin_mutex_);
  StorageOptions attached_ HITIDE_GUARDED_BY(admin_mutex_);           // of storage_
  bool attached_by_options_ HITIDE_GUARDED_BY(admin_mutex_) = false;  // else attached_ says nothing
  // The host pool lies in its store's memory: open as long as the pool.
  std::shared_ptr<StorageTier> memory_owner_ HITIDE_GUARDED_BY(admin_mutex_);

  Mutex close_mutex_;  // one close at a time, taken before admin_mutex_
  bool close_done_ HITIDE_GUARDED_BY(close_mutex_) = false;
  Status close_status_ HITIDE_GUARDED_BY(close_mutex_);
  std::thread core_thread_ HITIDE_GUARDED_BY(close_mutex_);  // once started
};

}  // namespace hitide
