// Breaker: keeps calls from a store that keeps failing, and tries it again now and then.
//
//   closed    all calls pass; so many failures in a row open it
//   open      calls are refused at once, until a pause is over
//   half open one call passes, the probe: its success closes the breaker, its failure opens it for
//             twice the pause
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include <hitide/object_store.h>

#include "base/clock.h"

namespace hitide {

struct BreakerOptions {
  std::uint32_t failures_to_open = 3;  // in a row; >= 1
  Duration pause_first = std::chrono::milliseconds(500);
  Duration pause_max = std::chrono::seconds(30);
};

struct BreakerState {
  bool open = false;
  std::uint64_t opened = 0;   // times that it went from closed to open
  std::uint64_t refused = 0;  // calls
  TimePoint next_probe = TimePoint::min();
};

class Breaker {
 public:
  enum class Pass : std::uint8_t { refused, call, probe };
  enum class Verdict : std::uint8_t { good, bad, unknown };

  Breaker(const BreakerOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

  // What a call may do. After `call` and `probe` report() must follow, with the same answer.
  Pass admit();
  // Late reports of calls that began before it opened change nothing while it is open. A probe of
  // which nothing is known lets the next call be one.
  void report(Pass pass, Verdict verdict);
  BreakerState state() const;

 private:
  const BreakerOptions options_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  BreakerState state_;          // guarded by mutex_
  std::uint32_t failures_ = 0;  // guarded by mutex_; in a row while closed
  Duration pause_{0};           // guarded by mutex_; of the present opening
  bool probing_ = false;        // guarded by mutex_
};

// A store behind a breaker. A call fails when its status says that the store is away or broken, or
// when more than half of its items are unavailable; running out of the caller's own time is not the
// store's failure, nor are misses and full stores. Refused calls answer unavailable.
class BreakerStore final : public ObjectStore {
 public:
  // `clock` must outlive this object.
  BreakerStore(std::unique_ptr<ObjectStore> inner, const BreakerOptions& options,
               const Clock& clock = SystemClock::instance());

  StoreCapabilities capabilities() const override { return inner_->capabilities(); }
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  Status wait_until_ready(TimePoint deadline) override {
    return inner_->wait_until_ready(deadline);
  }
  Status register_memory(const MemoryRegion& region) override {
    return inner_->register_memory(region);
  }
  Status unregister_memory(std::span<std::byte> bytes) override {
    return inner_->unregister_memory(bytes);
  }
  Result<MemoryRegion> allocate_memory(const std::string& name, std::uint64_t bytes) override {
    return inner_->allocate_memory(name, bytes);
  }
  void release_memory(std::span<std::byte> bytes) override { inner_->release_memory(bytes); }
  StoreStats stats() const override { return inner_->stats(); }
  Status close(TimePoint deadline) override { return inner_->close(deadline); }

  BreakerState state() const { return breaker_.state(); }
  ObjectStore& inner() { return *inner_; }

 private:
  template <typename Do>
  CallOutcome guarded(std::string_view call, std::span<ItemResult> out, const CallOptions& options,
                      const Do& carry_out);
  Breaker::Verdict judge(const CallOutcome& outcome, std::span<const ItemResult> out,
                         const CallOptions& options) const;

  const std::unique_ptr<ObjectStore> inner_;
  const Clock& clock_;
  Breaker breaker_;
};

}  // namespace hitide
