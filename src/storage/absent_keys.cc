#include "storage/absent_keys.h"

#include <span>
#include <utility>

#include "base/hash.h"
#include "base/mutex.h"

namespace hitide {
namespace {
std::uint64_t hash_of(std::string_view key) {
  return checksum64(std::as_bytes(std::span(key.data(), key.size())));
}
}  // namespace

void AbsentKeys::age(TimePoint now) {
  const bool full = young_.size() >= kKeysMax;
  if (!full && now < young_since_ + kKeptFor) return;
  // Neither generation is fresh when nothing was noted for so long.
  const bool both = now >= young_since_ + 2 * kKeptFor;
  old_ = both ? std::unordered_set<std::uint64_t>() : std::move(young_);
  young_.clear();
  young_since_ = now;
}

void AbsentKeys::insert(std::string_view key, TimePoint now) {
  const std::uint64_t hash = hash_of(key);
  const MutexLock lock(mutex_);
  age(now);
  young_.insert(hash);
}

bool AbsentKeys::contains(std::string_view key, TimePoint now) {
  const std::uint64_t hash = hash_of(key);
  const MutexLock lock(mutex_);
  age(now);
  return young_.contains(hash) || old_.contains(hash);
}

void AbsentKeys::erase(std::string_view key) {
  const std::uint64_t hash = hash_of(key);
  const MutexLock lock(mutex_);
  young_.erase(hash);
  old_.erase(hash);
}

}  // namespace hitide
