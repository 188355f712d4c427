// KeyGuard: of the calls of this process, only gets may use one key at the same time.
//
// The store frees an object's space while others still read or write it, and calls a put that
// another put is still busy with a success. Both would break the contract of ObjectStore.
//
// Threading: any thread. All keys of a call are taken at once, so that calls cannot wait for each
// other in a circle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hitide/types.h>

#include "base/mutex.h"

namespace hitide {

class KeyGuard {
 public:
  enum class Use : std::uint8_t { shared, exclusive };

  // The keys of one call, held until this goes away.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept
        : guard_(std::exchange(other.guard_, nullptr)), keys_(std::move(other.keys_)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (guard_ != nullptr) guard_->release(keys_);
    }
    // False: the deadline was up first.
    explicit operator bool() const { return guard_ != nullptr; }

   private:
    friend class KeyGuard;
    Hold(KeyGuard* guard, std::vector<std::string> keys) : guard_(guard), keys_(std::move(keys)) {}
    KeyGuard* guard_ = nullptr;
    std::vector<std::string> keys_;
  };

  // Waits until nobody uses one of the keys in a way that excludes this one. Repeated keys count
  // once.
  Hold take(std::vector<std::string> keys, Use use, TimePoint deadline);

 private:
  struct Users {
    std::size_t readers = 0;
    bool writer = false;
  };
  bool free(const std::vector<std::string>& keys, Use use) const HITIDE_REQUIRES(mutex_);
  void release(const std::vector<std::string>& keys);

  Mutex mutex_;
  CondVar released_;
  std::unordered_map<std::string, Users> users_ HITIDE_GUARDED_BY(mutex_);  // keys in use only
};

}  // namespace hitide
