#include "storage/failed_keys.h"

#include <span>
#include <utility>

#include "base/hash.h"

namespace hitide {
namespace {
std::uint64_t hash_of(std::string_view key) {
  return checksum64(std::as_bytes(std::span(key.data(), key.size())));
}
}  // namespace

FailedKeys::FailedKeys(const FailedKeyLimits& limits)
    : limits_(limits),
      counters_(limits.counters ? limits.counters : std::make_shared<FailedKeyCounters>()) {}

void FailedKeys::seen(std::string_view key, TimePoint now) {
  if (limits_.keys_max == 0) return;
  const std::uint64_t hash = hash_of(key);
  const MutexLock lock(mutex_);
  if (young_.size() >= kSeenMax || now >= young_since_ + kSeenFor) {
    const bool both = now >= young_since_ + 2 * kSeenFor;
    old_ = both ? std::unordered_set<std::uint64_t>() : std::move(young_);
    young_.clear();
    young_since_ = now;
  }
  young_.insert(hash);
}

void FailedKeys::failed(std::string_view key, StatusCode code, TimePoint now) {
  if (limits_.keys_max == 0) return;
  const bool if_seen = code == StatusCode::not_found || code == StatusCode::deadline_exceeded;
  if (!if_seen && code != StatusCode::data_loss) return;
  const std::uint64_t hash = hash_of(key);
  const MutexLock lock(mutex_);
  if (if_seen && !was_seen(hash)) return;
  drop_old(now);
  const Entry entry{.code = code, .until = now + limits_.pause};
  if (!entries_.insert_or_assign(hash, entry).second) {
    // Noted anew: its old place in the order means nothing any more.
    std::erase_if(noted_, [hash](const Noted& noted) { return noted.hash == hash; });
  }
  noted_.push_back({.hash = hash, .until = entry.until});
  if (entries_.size() > limits_.keys_max) drop_oldest();
  counters_->noted.add();
}

std::optional<StatusCode> FailedKeys::why(std::string_view key, TimePoint now) {
  if (limits_.keys_max == 0) return std::nullopt;
  const MutexLock lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  drop_old(now);
  const auto entry = entries_.find(hash_of(key));
  if (entry == entries_.end()) return std::nullopt;
  counters_->spared.add();
  return entry->second.code;
}

void FailedKeys::forget(std::string_view key) {
  const MutexLock lock(mutex_);
  if (entries_.empty()) return;
  const std::uint64_t hash = hash_of(key);
  if (entries_.erase(hash) == 0) return;
  std::erase_if(noted_, [hash](const Noted& noted) { return noted.hash == hash; });
}

std::size_t FailedKeys::size(TimePoint now) {
  const MutexLock lock(mutex_);
  drop_old(now);
  return entries_.size();
}

void FailedKeys::drop_oldest() {
  entries_.erase(noted_.front().hash);
  noted_.pop_front();
}

void FailedKeys::drop_old(TimePoint now) {
  while (!noted_.empty() && noted_.front().until <= now) drop_oldest();
}

}  // namespace hitide
