#include "storage/mooncake/key_guard.h"

#include <algorithm>

namespace hitide {

bool KeyGuard::free(const std::vector<std::string>& keys, Use use) const {
  return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const auto users = users_.find(key);
    return users != users_.end() && (users->second.writer || use == Use::exclusive);
  });
}

KeyGuard::Hold KeyGuard::take(std::vector<std::string> keys, Use use, TimePoint deadline) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::unique_lock lock(mutex_);
  const auto is_free = [&] { return free(keys, use); };
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
    const std::lock_guard lock(mutex_);
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
