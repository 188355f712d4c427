// BoundedQueue: a blocking queue of values between threads, closed once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include <hitide/types.h>

namespace hitide {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `value` is untouched then.
  bool try_push(T& value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }

  // Waits for an item, for the deadline, or for close(). After close() the rest is still handed
  // out. Nothing: the deadline passed, or closed and empty.
  std::optional<T> pop(TimePoint deadline = kNoDeadline) {
    std::unique_lock lock(mutex_);
    const auto available = [this] { return closed_ || !items_.empty(); };
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
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;  // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace hitide
