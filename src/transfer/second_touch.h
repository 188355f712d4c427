// SecondTouch: which pages have been offered before.
//
// Bounds: of the last kKeysMax to twice as many pages, 8 bytes each; what is forgotten is new
// again. Two keys of one hash are one key. Threading: any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <unordered_set>
#include <utility>

#include <hitide/types.h>

#include "base/mutex.h"

namespace hitide {

class SecondTouch {
 public:
  static constexpr std::size_t kKeysMax = 65'536;

  // True when the page was offered before; it is remembered either way.
  bool again(const PageKey& key) {
    const std::size_t hash = std::hash<PageKey>()(key);
    const MutexLock lock(mutex_);
    if (young_.contains(hash) || old_.contains(hash)) return true;
    if (young_.size() >= kKeysMax) {
      old_ = std::move(young_);
      young_.clear();
    }
    young_.insert(hash);
    return false;
  }

 private:
  Mutex mutex_;
  std::unordered_set<std::size_t> young_ HITIDE_GUARDED_BY(mutex_);
  std::unordered_set<std::size_t> old_ HITIDE_GUARDED_BY(mutex_);
};

}  // namespace hitide
