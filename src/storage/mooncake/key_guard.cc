#include "storage/mooncake/key_guard.h"

#include <algorithm>

#include "base/mutex.h"

namespace hitide {

bool KeyGuard::free(const std::vector<std::string>& keys, Use use) const {
  const auto excludes = [&](const std::string& key) HITIDE_REQUIRES(mutex_) {
    const auto users = users_.find(key);
    return users != users_.end() && (users->second.writer || use == Use::exclusive);
  };
  return std::none_of(keys.begin(), keys.end(), excludes);
}

KeyGuard::Hold KeyGuard::take(std::vector<std::string> keys, Use use, TimePoint deadline) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  MutexLock lock(mutex_);
  const auto is_free = [&]() HITIDE_REQUIRES(mutex_) { return free(keys, use); };
  if (deadline == kNoDeadline) {
    released_.wait(lock, is_free);
  } else if (!released_.wait_until(lock, deadline, is_free)) {
    return {};
  }
  for (const std::string& key : keys) {
    Users& users = users_[key];
    if (use == Use::exclusive) {
      users.writer = true;
    } else {
      ++users.readers;
    }
  }
  return {this, std::move(keys)};
}

void KeyGuard::release(const std::vector<std::string>& keys) {
  {
    const MutexLock lock(mutex_);
    for (const std::string& key : keys) {
      const auto users = users_.find(key);
      if (users->second.readers > 0) --users->second.readers;
      users->second.writer = false;
      if (users->second.readers == 0) users_.erase(users);
    }
  }
  released_.notify_all();
}

}  // namespace hitide
