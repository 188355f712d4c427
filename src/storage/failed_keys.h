// FailedKeys: objects that were there and could not be loaded, so that nobody waits for them again
// at once: damaged ones, those that are gone by the time of the get, those that take too long.
//
// A store may go on answering that such an object is there; each request would wait for it, and
// compute it in the end. A plain miss is never noted: somebody may store the object any moment.
// The object is asked for again when the pause is over, or when this process has removed it or
// stored it anew.
//
// Bounds: limits.keys_max keys, the oldest go first; what was seen to be there is kept for kSeenFor
// to twice as long, at most 2 * kSeenMax keys of 8 bytes. Two keys of one hash are one key.
//
// Threading: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <hitide/status.h>
#include <hitide/types.h>

#include "base/metrics.h"
#include "base/mutex.h"

namespace hitide {

// They may outlive what they were counted by, so that the next one counts on.
struct FailedKeyCounters {
  Counter noted;   // times that a key was noted
  Counter spared;  // questions that were not asked
};

struct FailedKeyLimits {
  std::size_t keys_max = 4096;  // 0: nothing is noted
  Duration pause = std::chrono::seconds(30);
  std::shared_ptr<FailedKeyCounters> counters = nullptr;  // counted on; null: from 0
};

class FailedKeys {
 public:
  static constexpr Duration kSeenFor = std::chrono::seconds(60);
  static constexpr std::size_t kSeenMax = 65'536;

  explicit FailedKeys(const FailedKeyLimits& limits);

  // A store has just said that it holds the object.
  void seen(std::string_view key, TimePoint now);
  // What a load of it answered. Only data_loss, and not_found and deadline_exceeded of an object
  // that was seen, are noted.
  void failed(std::string_view key, StatusCode code, TimePoint now);
  // Why it is not to be asked for; nothing: it may be.
  std::optional<StatusCode> why(std::string_view key, TimePoint now);
  // It has been stored anew, or removed: either way what is known of it is over.
  void forget(std::string_view key);

  std::size_t size(TimePoint now);
  const FailedKeyCounters& counters() const { return *counters_; }

 private:
  struct Entry {
    StatusCode code;
    TimePoint until;
  };
  struct Noted {
    std::uint64_t hash;
    TimePoint until;
  };
  void drop_old(TimePoint now) HITIDE_REQUIRES(mutex_);
  void drop_oldest() HITIDE_REQUIRES(mutex_);
  bool was_seen(std::uint64_t hash) const HITIDE_REQUIRES(mutex_) {
    return young_.contains(hash) || old_.contains(hash);
  }

  const FailedKeyLimits limits_;
  const std::shared_ptr<FailedKeyCounters> counters_;

  Mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> entries_ HITIDE_GUARDED_BY(mutex_);  // by hash
  std::deque<Noted> noted_ HITIDE_GUARDED_BY(mutex_);                           // in order of time
  std::unordered_set<std::uint64_t> young_ HITIDE_GUARDED_BY(mutex_);  // hashes that were seen
  std::unordered_set<std::uint64_t> old_ HITIDE_GUARDED_BY(mutex_);
  TimePoint young_since_ HITIDE_GUARDED_BY(mutex_){};
};

}  // namespace hitide
