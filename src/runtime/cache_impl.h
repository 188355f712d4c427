// CacheImpl: the shell around CacheCore.
//
//   engine calls --+--> [mutex: core] --plan--> device queue, storage lanes, rank group
//                  |                                   |
//   core thread ---+<------ CompletionQueue <----------+
//
// The mutex is held for the core's own computing and for handing a plan on, never across I/O, a
// copy or a callback: devices and lanes only queue what they are given.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <hitide/cache.h>

#include "base/clock.h"
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
                                                 OpenedStore opened, std::function<void()> notify);
  ~CacheImpl() override;

  Result<PrefixHandle> open_prefix(const PrefixRequest& request);
  void note_prefill(std::uint32_t tokens, Duration time);
  Status flush();
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
  CacheImpl(const CacheOptions& options, const ModelSpec& model, Device& device,
            std::function<void()> notify);
  Status start(const CacheOptions& options, const ModelSpec& model, OpenedStore opened);
  Status make_host_pool(const CacheOptions& options, const ModelSpec& model, const HostSize& size);
  void storage_attached(TransferEngine& lanes);
  void post(CopyCompletion completion) override;
  void run_core();
  void take_completions(const std::deque<Completion>& completions);
  // Hands a plan on, in order. Requires mutex_.
  void dispatch(Plan& plan);
  void dispatch_copy(const CopyOp& copy);
  void report_trip();

  // Runs `step(core, plan)` under the mutex and hands on what it planned.
  template <typename Step>
  auto with_core(const Step& step)
      -> decltype(step(std::declval<CacheCore&>(), std::declval<Plan&>()));

  // Constant after start().
  Device& device_;
  const std::function<void()> notify_;
  const Clock& clock_ = SystemClock::instance();
  std::unique_ptr<StorageTier> storage_;
  std::unique_ptr<HostPool> host_pool_;  // until close(): its memory may be the store's

  // Synchronise themselves.
  CompletionQueue completions_;
  SoloRankGroup ranks_;

  mutable std::mutex mutex_;
  std::condition_variable idle_;     // operations_in_flight() may have become 0
  std::unique_ptr<CacheCore> core_;  // guarded by mutex_
  TransferEngine* lanes_ = nullptr;  // guarded by mutex_; storage_'s, once L3 is on
  bool notify_pending_ = false;      // guarded by mutex_
  bool trip_reported_ = false;       // guarded by mutex_
  bool closed_ = false;              // guarded by mutex_
  std::size_t checked_ = 0;          // guarded by mutex_; completions since the last check

  std::mutex close_mutex_;   // one close at a time
  bool close_done_ = false;  // guarded by close_mutex_
  Status close_status_;      // guarded by close_mutex_
  std::thread core_thread_;  // guarded by close_mutex_ once started
};

}  // namespace hitide
