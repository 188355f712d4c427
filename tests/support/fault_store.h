// FaultStore: an ObjectStore that passes calls on to another one and fails on command.
//
// Faults are looked up per item; the first that matches and is not used up applies. Threading: all
// methods from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <hitide/object_store.h>

namespace hitide {

enum class StoreCall : std::uint8_t { exists, get, put, remove };

struct StoreFault {
  enum class Kind : std::uint8_t {
    error,        // the item answers `code`; the store below is not asked
    lost,         // the item is removed from the store below just before the call: as if evicted
    short_bytes,  // get: answers ok with one byte less; the last byte is wrong
    flipped_bit,  // get: answers ok, one bit of the bytes is wrong
    unanswered,   // the result is left as the caller had it
  };
  StoreCall call = StoreCall::get;
  Kind kind = Kind::error;
  StatusCode code = StatusCode::unavailable;  // for error
  std::string key_part = {};                  // matches keys that contain it; empty: all
  std::uint64_t skip = 0;                     // so many matching items pass first
  std::uint64_t times = UINT64_MAX;           // then so many are hit
  std::uint64_t bit = 0;                      // for flipped_bit: which one, modulo the length
};

class FaultStore final : public ObjectStore {
 public:
  explicit FaultStore(std::unique_ptr<ObjectStore> inner);
  ~FaultStore() override;  // releases what is held

  void add(StoreFault fault);
  void clear_faults();
  // Latch: from now on calls of this kind wait before they do anything. With `heed_deadline` they
  // give up at their deadline, as the contract says; without it they hang, as broken backends do.
  void hold(StoreCall call, bool heed_deadline = true);
  void release(StoreCall call);
  // True when `count` calls of this kind were waiting at once before the deadline.
  bool wait_until_held(StoreCall call, std::uint64_t count, TimePoint deadline);
  // What later outcomes say in buffers_busy_until.
  void set_buffers_busy_until(TimePoint time);
  // The limits that capabilities() names, instead of those of the store below.
  void set_batch_items_max(std::uint32_t items);

  struct Entry {
    StoreCall call;
    std::vector<std::string> keys;
  };
  // Every call since the start, or since clear_log(), in the order of arrival.
  std::vector<Entry> log() const;
  void clear_log();
  std::uint64_t registrations() const;  // register less unregister

  StoreCapabilities capabilities() const override;
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  Result<std::uint64_t> remove_prefix(std::string_view prefix,
                                      const CallOptions& options) override {
    return inner_->remove_prefix(prefix, options);
  }
  Status wait_until_ready(TimePoint deadline) override {
    return inner_->wait_until_ready(deadline);
  }
  Status health() const override { return inner_->health(); }
  Result<MemoryRegion> allocate_memory(const std::string& name, std::uint64_t bytes) override {
    return inner_->allocate_memory(name, bytes);
  }
  void release_memory(std::span<std::byte> bytes) override { inner_->release_memory(bytes); }
  Status register_memory(const MemoryRegion& region) override;
  Status unregister_memory(std::span<std::byte> bytes) override;
  StoreStats stats() const override;
  Status close(TimePoint deadline) override;

 private:
  struct Latch {
    bool held = false;
    bool heed_deadline = true;
    std::uint64_t waiting = 0;
  };
  Latch& latch(StoreCall call) { return latches_[static_cast<std::size_t>(call)]; }
  // Logs the call and waits at the latch. False: the deadline came first.
  bool arrive(StoreCall call, std::vector<std::string> keys, const CallOptions& options);
  // The fault for one item, or none (kind error with code ok).
  StoreFault take_fault(StoreCall call, std::string_view key);
  template <typename Item, typename Pass, typename Spoil>
  CallOutcome carry_out(StoreCall call, std::span<const Item> items, std::span<ItemResult> out,
                        const CallOptions& options, const Pass& pass, const Spoil& spoil);

  const std::unique_ptr<ObjectStore> inner_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StoreFault> faults_;           // guarded by mutex_
  Latch latches_[4];                         // guarded by mutex_
  std::vector<Entry> log_;                   // guarded by mutex_
  TimePoint busy_until_ = TimePoint::min();  // guarded by mutex_
  std::uint32_t batch_items_max_ = 0;        // guarded by mutex_; 0: the inner store's
  std::uint64_t registrations_ = 0;          // guarded by mutex_
};

}  // namespace hitide
