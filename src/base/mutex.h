// Mutex, its locks and CondVar: those of the standard library, told to clang's thread-safety
// analysis (tools/lint.py, https://clang.llvm.org/docs/ThreadSafetyAnalysis.html).
//
//   Mutex mutex_;
//   int count_ HITIDE_GUARDED_BY(mutex_) = 0;
//   void add_locked() HITIDE_REQUIRES(mutex_);
//   ready_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) { return count_ > 0; });
//
// With another compiler the attributes are nothing. Cost: none over std::mutex.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__clang__)
#define HITIDE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HITIDE_THREAD_ATTRIBUTE(x)
#endif

// Of a member: it is read and written with the mutex held only.
#define HITIDE_GUARDED_BY(x) HITIDE_THREAD_ATTRIBUTE(guarded_by(x))
// Of a function: its callers hold the mutex.
#define HITIDE_REQUIRES(...) HITIDE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// Of a function that the analysis cannot follow; say why beside it.
#define HITIDE_NOT_ANALYZED HITIDE_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace hitide {

class HITIDE_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() HITIDE_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() HITIDE_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex from construction to destruction, but for what lies between unlock() and lock().
class HITIDE_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HITIDE_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() HITIDE_THREAD_ATTRIBUTE(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() HITIDE_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }
  void unlock() HITIDE_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Gives a mutex that the caller holds away, and has it again from its destruction on. A MutexLock
// of it need not be told: it holds the mutex before and after.
class HITIDE_THREAD_ATTRIBUTE(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) HITIDE_THREAD_ATTRIBUTE(release_capability(mutex))
      : mutex_(mutex) {
    mutex_.unlock();
  }
  ~MutexUnlock() HITIDE_THREAD_ATTRIBUTE(release_capability()) { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits give the mutex away meanwhile and hold it again when they return. The analysis does not
// follow how `condition` is called: mark the lambda HITIDE_REQUIRES.
class CondVar {
 public:
  void notify_one() { variable_.notify_one(); }
  void notify_all() { variable_.notify_all(); }

  void wait(MutexLock& lock) { variable_.wait(lock.lock_); }
  template <typename Condition>
  void wait(MutexLock& lock, Condition condition) HITIDE_NOT_ANALYZED {
    variable_.wait(lock.lock_, std::move(condition));
  }
  template <typename Time>
  std::cv_status wait_until(MutexLock& lock, const Time& time) {
    return variable_.wait_until(lock.lock_, time);
  }
  template <typename Time, typename Condition>
  bool wait_until(MutexLock& lock, const Time& time, Condition condition) HITIDE_NOT_ANALYZED {
    return variable_.wait_until(lock.lock_, time, std::move(condition));
  }
  template <typename Duration>
  std::cv_status wait_for(MutexLock& lock, const Duration& duration) {
    return variable_.wait_for(lock.lock_, duration);
  }
  template <typename Duration, typename Condition>
  bool wait_for(MutexLock& lock, const Duration& duration,
                Condition condition) HITIDE_NOT_ANALYZED {
    return variable_.wait_for(lock.lock_, duration, std::move(condition));
  }

 private:
  std::condition_variable variable_;
};

}  // namespace hitide
