// WorkerPool: threads that answer connections. They are started as they are needed, up to a limit;
// beyond it jobs wait in a bounded queue, and beyond that they are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace hitide {

class WorkerPool {
 public:
  WorkerPool(std::size_t threads_max, std::size_t waiting_max);
  ~WorkerPool();  // stop()
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `job` on some thread; never waits. False: the queue is full, stop() has begun, or no
  // thread can be had; `job` is left as it was.
  bool submit(std::function<void()>&& job);
  // Runs what has been submitted, then joins all threads. Idempotent.
  void stop();

 private:
  void work();

  const std::size_t threads_max_;
  const std::size_t waiting_max_;
  Mutex mutex_;
  CondVar job_ready_;
  std::deque<std::function<void()>> jobs_ HITIDE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ HITIDE_GUARDED_BY(mutex_);
  std::size_t idle_ HITIDE_GUARDED_BY(mutex_) = 0;
  std::size_t running_ HITIDE_GUARDED_BY(mutex_) = 0;  // jobs
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;
};

}  // namespace hitide
