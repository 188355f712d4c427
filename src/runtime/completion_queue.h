// CompletionQueue: what the device, the lanes and the ranks have to say, on its way to the core.
//
// Threading: any thread may post; one thread takes. Posting never blocks for long: the queue is
// bounded by the operations in flight, each of which is answered once.
#pragma once

#include <deque>

#include <hitide/device.h>

#include "base/mutex.h"
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
  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<Completion> completions_ HITIDE_GUARDED_BY(mutex_);
  bool woken_ HITIDE_GUARDED_BY(mutex_) = false;
  bool closed_ HITIDE_GUARDED_BY(mutex_) = false;
};

}  // namespace hitide
