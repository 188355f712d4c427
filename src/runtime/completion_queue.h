// CompletionQueue: what the device, the lanes and the ranks have to say, on its way to the core.
//
// Threading: any thread may post; one thread takes. Posting never blocks for long: the queue is
// bounded by the operations in flight, each of which is answered once.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include <hitide/device.h>

#include "spec/plan.h"

namespace hitide {

class CompletionQueue {
 public:
  void post(Completion completion);
  // Ends the current wait of take(), so that a new deadline is seen.
  void wake();
  // No more waiting: take() returns what is there.
  void close();

  // Moves everything that has arrived into `out` (cleared first); waits for something, for wake(),
  // for close() or for the deadline.
  void take(std::deque<Completion>& out, TimePoint deadline);
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Completion> completions_;  // guarded by mutex_
  bool woken_ = false;                  // guarded by mutex_
  bool closed_ = false;                 // guarded by mutex_
};

}  // namespace hitide
