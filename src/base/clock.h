// Clock: the seam to time. The core is told `now`; the shell asks a Clock, and tests bring their
// own.
#pragma once

#include <atomic>

#include <hitide/types.h>

namespace hitide {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  static const SystemClock& instance() {
    static const SystemClock clock;
    return clock;
  }
};

// Moves only when told to. Safe to read and move from several threads.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(now_ns_.load())); }
  void advance(Duration by) { now_ns_.fetch_add(by.count()); }

 private:
  std::atomic<std::int64_t> now_ns_{1};
};

inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
inline double to_milliseconds(Duration duration) { return to_seconds(duration) * 1e3; }
inline Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace hitide
