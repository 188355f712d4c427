#include "storage/mooncake/stoppable_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace hitide {
namespace {

TimePoint now() { return SystemClock::instance().now(); }

}  // namespace

StoppableThread::StoppableThread() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void StoppableThread::start(std::function<void()> body) {
  const MutexLock lock(join_mutex_);
  thread_ = std::thread(std::move(body));
}

void StoppableThread::stop() {
  stopping_ = true;
  const std::uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) {
    log_error("stop_thread", {{"wake", "failed"}});  // the counter is full: it is awake
  }
  const MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool StoppableThread::pause(Duration time) const {
  const TimePoint end = now() + time;
  while (!stopping()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now()).count();
    if (left <= 0) return false;
    pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
    ::poll(&wake, 1, static_cast<int>(left));
  }
  return true;
}

}  // namespace hitide
