#include "server/worker_pool.h"

#include <exception>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace hitide {

WorkerPool::WorkerPool(std::size_t threads_max, std::size_t waiting_max)
    : threads_max_(threads_max), waiting_max_(waiting_max) {}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::submit(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return jobs_.size() < waiting_max_; });
  jobs_.push_back(std::move(job));
  if (idle_ < jobs_.size() && threads_.size() < threads_max_) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      // The threads that run take the job; with none the next submit tries again.
      log_limited(LogLevel::warning, "server_thread_not_started", std::chrono::seconds(10),
                  {{"threads", threads_.size()}, {"error", error.what()}});
    }
  }
  job_ready_.notify_one();
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    job_ready_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;  // stopping
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    room_.notify_one();
    lock.unlock();
    try {
      job();
    } catch (const std::exception& error) {
      log_limited(LogLevel::error, "server_job_failed", std::chrono::seconds(1),
                  {{"error", error.what()}});
    } catch (...) {
      log_limited(LogLevel::error, "server_job_failed", std::chrono::seconds(1),
                  {{"error", "unknown exception"}});
    }
    lock.lock();
  }
}

void WorkerPool::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  job_ready_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hitide
