// StoppableThread: a thread that watches a helper process: it can be told to stop while it waits.
//
// Threading: start() once; stop() and stopping() from any thread; pause() on the thread itself.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include <hitide/types.h>

#include "base/file.h"
#include "base/mutex.h"

namespace hitide {

class StoppableThread {
 public:
  StoppableThread();
  ~StoppableThread() { stop(); }
  StoppableThread(const StoppableThread&) = delete;
  StoppableThread& operator=(const StoppableThread&) = delete;

  void start(std::function<void()> body);
  // Waits for the end of the body. Again: nothing.
  void stop();
  bool stopping() const { return stopping_.load(); }
  // Waits for the time to pass or for stop(). True: stop().
  bool pause(Duration time) const;
  // Readable once stop() has been called.
  int wake_fd() const { return wake_.get(); }

 private:
  const UniqueFd wake_;  // an eventfd
  std::atomic<bool> stopping_ = false;
  Mutex join_mutex_;
  std::thread thread_ HITIDE_GUARDED_BY(join_mutex_);
};

}  // namespace hitide
