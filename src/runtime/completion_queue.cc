#include "runtime/completion_queue.h"

namespace hitide {

void CompletionQueue::post(Completion completion) {
  {
    const MutexLock lock(mutex_);
    completions_.push_back(std::move(completion));
  }
  arrived_.notify_one();
}

void CompletionQueue::wake() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  arrived_.notify_one();
}

void CompletionQueue::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

void CompletionQueue::take(std::deque<Completion>& out, TimePoint deadline) {
  out.clear();
  MutexLock lock(mutex_);
  const auto ready = [this]() HITIDE_REQUIRES(mutex_) {
    return closed_ || woken_ || !completions_.empty();
  };
  if (deadline == kNoDeadline) {
    arrived_.wait(lock, ready);
  } else {
    arrived_.wait_until(lock, deadline, ready);
  }
  woken_ = false;
  out.swap(completions_);
}

bool CompletionQueue::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace hitide
