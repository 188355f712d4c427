// BoundedQueue: a blocking queue of values between threads, closed once.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include <hitide/types.h>

#include "base/mutex.h"

namespace hitide {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `value` is untouched then.
  bool try_push(T& value) {
    {
      const MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }

  // Waits for an item, for the deadline, or for close(). After close() the rest is still handed
  // out. Nothing: the deadline passed, or closed and empty.
  std::optional<T> pop(TimePoint deadline = kNoDeadline) {
    MutexLock lock(mutex_);
    const auto available = [this]() HITIDE_REQUIRES(mutex_) { return closed_ || !items_.empty(); };
    if (deadline == kNoDeadline) {
      ready_.wait(lock, available);
    } else if (!ready_.wait_until(lock, deadline, available)) {
      return std::nullopt;
    }
    if (items_.empty()) return std::nullopt;
    T value = std::move(items_.front());
    items_.pop_front();
    return value;
  }

  void close() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  bool closed() const {
    const MutexLock lock(mutex_);
    return closed_;
  }

  std::size_t size() const {
    const MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable Mutex mutex_;
  CondVar ready_;
  std::deque<T> items_ HITIDE_GUARDED_BY(mutex_);
  bool closed_ HITIDE_GUARDED_BY(mutex_) = false;
};

}  // namespace hitide
