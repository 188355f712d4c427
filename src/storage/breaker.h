// Breaker: keeps calls from a store that keeps failing, and tries it again now and then.
//
//   closed    all calls pass; it opens when so many calls of a kind fail in a row, or too large a
//             share of what a kind asked for in the last seconds
//   open      calls are refused at once, until a pause is over
//   half open one call of a kind that failed passes, the probe: its success closes the breaker, its
//             failure opens it for twice the pause. Queries pass beside it where they did not fail:
//             where they find nothing, nobody would move anything
//
// Kinds are told apart since a store that has lost an owner of memory still answers queries well,
// and every get badly.
//
// It is open, too, while a call does not return long after its time was up: whoever made it is lost
// to the caller until then, and no second one shall be.
//
// And it is open while too much memory is in quarantine: calls that were given up left buffers
// behind that somebody may still write to, and each further call could cost more of them.
//
// Threading: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <hitide/object_store.h>
#include <hitide/options.h>

#include "base/clock.h"
#include "base/mutex.h"

namespace hitide {

struct BreakerState {
  bool open = false;
  std::uint64_t opened = 0;   // times that it went from closed to open
  std::uint64_t refused = 0;  // calls
  TimePoint next_probe = TimePoint::min();
  std::uint64_t quarantined_bytes = 0;
};

// How calls went lately, in slices of a tenth of the window.
class FailureWindow {
 public:
  explicit FailureWindow(Duration window) : slice_(window / static_cast<int>(kSlices)) {}

  void add(TimePoint now, double failed_share);
  // Calls in the window, and the sum of their shares.
  struct Sums {
    std::uint64_t calls = 0;
    double failed = 0;
  };
  Sums sums(TimePoint now) const;
  void clear() { slices_ = {}; }

 private:
  static constexpr std::size_t kSlices = 10;
  struct Slice {
    std::int64_t number = -1;  // of slices since the clock's start
    Sums sums;
  };
  std::int64_t number_at(TimePoint now) const { return now.time_since_epoch() / slice_; }

  const Duration slice_;
  std::array<Slice, kSlices> slices_{};
};

class Breaker {
 public:
  enum class Kind : std::uint8_t { query = 0, move };  // exists and remove; get and put
  enum class Pass : std::uint8_t {
    refused,
    call,
    probe,
    beside,  // half open, and of a kind that did not fail: proves nothing by success
  };
  enum class Verdict : std::uint8_t { good, bad, unknown };
  struct Report {
    Verdict verdict = Verdict::unknown;
    double failed_share = 0;  // of its items
  };

  Breaker(const BreakerOptions& options, const Clock& clock);

  // What a call may do. After all but `refused` report() must follow, with the same answer.
  Pass admit(Kind kind);
  // Late reports of calls that began before it opened change nothing while it is open. A probe of
  // which nothing is known lets the next call be one.
  void report(Kind kind, Pass pass, const Report& report);
  // Memory that calls work with: what quarantine is a share of. 0: not known, it is not looked at.
  void set_memory_bytes(std::uint64_t bytes);
  // A call that was admitted is overdue: open at once, and no probe before returned() has come for
  // each. report() follows as ever when it returns.
  void hangs(Kind kind);
  void returned();
  // So many bytes may not be used before `until`.
  void quarantine(std::uint64_t bytes, TimePoint until);
  BreakerState state() const;

 private:
  static constexpr std::size_t kKinds = 2;
  struct Lately {
    std::uint32_t failures_in_a_row = 0;
    FailureWindow window;
    bool failed = false;  // opened the breaker
  };
  struct Quarantined {
    TimePoint until;
    std::uint64_t bytes;
  };

  Lately& lately(Kind kind) HITIDE_REQUIRES(mutex_) {
    return lately_[static_cast<std::size_t>(kind)];
  }
  void count(Kind kind, const Report& report) HITIDE_REQUIRES(mutex_);
  void open(std::string_view why) HITIDE_REQUIRES(mutex_);
  void close() HITIDE_REQUIRES(mutex_);
  void release_quarantined() HITIDE_REQUIRES(mutex_);
  bool too_much_quarantined() const HITIDE_REQUIRES(mutex_);

  const BreakerOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  BreakerState state_ HITIDE_GUARDED_BY(mutex_);
  std::array<Lately, kKinds> lately_ HITIDE_GUARDED_BY(mutex_);
  std::deque<Quarantined> quarantined_ HITIDE_GUARDED_BY(mutex_);  // by time
  std::uint64_t memory_bytes_ HITIDE_GUARDED_BY(mutex_) = 0;
  Duration pause_ HITIDE_GUARDED_BY(mutex_){0};  // of the present opening
  bool probing_ HITIDE_GUARDED_BY(mutex_) = false;
  std::uint32_t hanging_ HITIDE_GUARDED_BY(mutex_) = 0;  // calls that are overdue
};

// A store behind a breaker. A call fails when its status says that the store is away or broken, or
// when more than half of its items are unavailable; running out of the caller's own time is not the
// store's failure, nor are misses and full stores. Refused calls answer unavailable.
//
// Puts have a breaker of their own: a disk that can only be read is still worth reading. Where
// gets or queries are refused, puts are too.
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
  // Not refused: it is an operator who asks.
  Result<std::uint64_t> remove_prefix(std::string_view prefix,
                                      const CallOptions& options) override {
    return inner_->remove_prefix(prefix, options);
  }
  Status wait_until_ready(TimePoint deadline) override {
    return inner_->wait_until_ready(deadline);
  }
  Status register_memory(const MemoryRegion& region) override;
  Status unregister_memory(std::span<std::byte> bytes) override;
  Result<MemoryRegion> allocate_memory(const std::string& name, std::uint64_t bytes) override {
    return inner_->allocate_memory(name, bytes);
  }
  void release_memory(std::span<std::byte> bytes) override { inner_->release_memory(bytes); }
  StoreStats stats() const override;
  Status health() const override;
  Status close(TimePoint deadline) override { return inner_->close(deadline); }

  // Open: some calls are refused. The counts are of all.
  BreakerState state() const;
  ObjectStore& inner() { return *inner_; }

 private:
  struct Registered {
    std::uint64_t bytes = 0;
    std::uint32_t count = 0;
  };
  struct InFlight {
    Breaker* breaker;
    Breaker::Kind kind;
    std::string_view call;
    TimePoint overdue;
    bool noted = false;
  };
  class Entry;  // of one call, while it is in flight

  template <typename Do>
  CallOutcome guarded(Breaker& breaker, Breaker::Kind kind, std::string_view call,
                      std::span<ItemResult> out, const CallOptions& options, const Do& carry_out);
  void note_overdue() const;
  void note_failure(const Breaker& breaker, std::string failure) const;
  template <typename Item>
  void note_quarantine(const CallOutcome& outcome, std::span<const Item> items);
  Breaker::Report judge(const CallOutcome& outcome, std::span<const ItemResult> out,
                        const CallOptions& options) const;

  const std::unique_ptr<ObjectStore> inner_;
  const Clock& clock_;
  const BreakerOptions options_;
  Breaker reads_;   // of exists, remove and get; while it is open, of puts too
  Breaker writes_;  // of puts

  mutable Mutex flight_mutex_;
  mutable std::list<InFlight> in_flight_ HITIDE_GUARDED_BY(flight_mutex_);

  mutable Mutex failure_mutex_;
  mutable std::string last_read_failure_ HITIDE_GUARDED_BY(failure_mutex_);
  mutable std::string last_write_failure_ HITIDE_GUARDED_BY(failure_mutex_);

  Mutex memory_mutex_;
  std::map<const std::byte*, Registered> registered_ HITIDE_GUARDED_BY(memory_mutex_);
  std::uint64_t registered_bytes_ HITIDE_GUARDED_BY(memory_mutex_) = 0;
};

}  // namespace hitide
