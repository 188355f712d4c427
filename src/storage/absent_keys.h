// AbsentKeys: objects that a store was just said not to hold, so that a put of them need not ask.
//
// A request asks for the pages of its prompt, computes what is missing, and stores it moments
// later; asking again would be a call for an answer that is known. Somebody else may have stored
// such an object meanwhile: keys name their content, so a put of it changes nothing and costs its
// move. Hence this is never an answer to a reader.
//
// Bounds: kept for kKeptFor to twice as long, and at most 2 * kKeysMax keys of 8 bytes (with their
// table about 5 MiB); what is forgotten early is asked for. Two keys of one hash are one key.
//
// Threading: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>

#include <hitide/types.h>

#include "base/mutex.h"

namespace hitide {

class AbsentKeys {
 public:
  static constexpr Duration kKeptFor = std::chrono::seconds(15);
  static constexpr std::size_t kKeysMax = 65'536;

  void insert(std::string_view key, TimePoint now);
  bool contains(std::string_view key, TimePoint now);
  void erase(std::string_view key);

 private:
  // What is older than two generations goes.
  void age(TimePoint now) HITIDE_REQUIRES(mutex_);

  Mutex mutex_;
  std::unordered_set<std::uint64_t> young_ HITIDE_GUARDED_BY(mutex_);  // hashes
  std::unordered_set<std::uint64_t> old_ HITIDE_GUARDED_BY(mutex_);
  TimePoint young_since_ HITIDE_GUARDED_BY(mutex_){};
};

}  // namespace hitide
