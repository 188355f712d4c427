// SimulatedShell: carries out a CacheCore's plans in simulated time, with no bytes. The device is
// done with a copy at once; storage takes as long as it is told to.
#pragma once

#include <cstdint>
#include <deque>
#include <queue>
#include <unordered_set>
#include <vector>

#include <hitide/types.h>

#include "cache/cache_core.h"
#include "spec/plan.h"

namespace hitide {

// Keys of stored pages. Full: what was written first goes, as segments of the file store do.
class SimulatedStorage {
 public:
  explicit SimulatedStorage(std::uint64_t pages_max) : pages_max_(pages_max) {}
  bool holds(const PageKey& key) const { return keys_.count(key) != 0; }
  void put(const PageKey& key);
  std::uint64_t evicted_pages() const { return evicted_; }

 private:
  std::uint64_t pages_max_;
  std::unordered_set<PageKey> keys_;
  std::deque<PageKey> order_;  // oldest first
  std::uint64_t evicted_ = 0;
};

// How slow storage is. Reads and writes have a lane each, in which one call follows the other.
struct StorageSpeed {
  Duration latency{};        // of each call
  double pages_per_s = 0.0;  // of each lane; 0: no time beyond the latency
};

class SimulatedShell {
 public:
  SimulatedShell(const CoreConfig& config, std::uint64_t storage_pages, const StorageSpeed& speed);

  CacheCore& core() { return core_; }
  const SimulatedStorage& storage() const { return storage_; }
  TimePoint now() const { return now_; }

  // Lets time pass up to `until`, which may be in the past, and delivers what ends before.
  void pass(TimePoint until);
  // Lets time pass until the request is ready to be admitted.
  void wait_ready(RequestId id);
  // Calls `change(core, now, plan)` and carries the plan out.
  template <typename Change>
  auto act(Change change) {
    Plan plan;
    auto result = change(core_, now_, plan);
    carry_out(std::move(plan));
    return result;
  }

 private:
  struct Event {
    TimePoint at;
    std::uint64_t number = 0;  // of two at the same time, the earlier one first
    PlanOp op;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void carry_out(Plan plan);
  void schedule(PlanOp op, TimePoint& lane, std::size_t pages);
  Completion answer(const PlanOp& op);

  CacheCore core_;
  SimulatedStorage storage_;
  StorageSpeed speed_;
  TimePoint now_{std::chrono::seconds(1)};
  TimePoint reads_until_{};  // when the lane has done what it was given
  TimePoint writes_until_{};
  std::uint64_t events_made_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace hitide
