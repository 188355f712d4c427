#include "server/worker_pool.h"

#include <exception>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace hitide {

WorkerPool::WorkerPool(std::size_t threads_max, std::size_t waiting_max)
    : threads_max_(threads_max), waiting_max_(waiting_max) {}

WorkerPool::~WorkerPool() { stop(); }

bool WorkerPool::submit(std::function<void()>&& job) {
  const MutexLock lock(mutex_);
  if (stopping_ || jobs_.size() + running_ >= threads_max_ + waiting_max_) return false;
  jobs_.push_back(std::move(job));
  if (idle_ < jobs_.size() && threads_.size() < threads_max_) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      // The threads that run take the job.
      log_limited(LogLevel::warning, "server_thread_not_started", std::chrono::seconds(10),
                  {{"threads", threads_.size()}, {"error", error.what()}});
      if (threads_.empty()) {
        job = std::move(jobs_.back());
        jobs_.pop_back();
        return false;
      }
    }
  }
  job_ready_.notify_one();
  return true;
}

void WorkerPool::work() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    job_ready_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;  // stopping
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    ++running_;
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
    job = nullptr;  // what it holds goes now, not with the next one
    lock.lock();
    --running_;
  }
}

void WorkerPool::stop() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  job_ready_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hitide
