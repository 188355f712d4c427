// OwnerProcess: keeps a process running that owns this machine's share of the store's memory. It is
// never killed for a slow call. It mounts its segment as soon as the master is there, and unmounts
// it when it is stopped, so that nobody is sent to memory that is gone.
//
// Threading: any thread. It has one of its own, from the constructor to stop().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <hitide/types.h>

#include "base/mutex.h"
#include "storage/mooncake/child_process.h"
#include "storage/mooncake/frames.h"
#include "storage/mooncake/stoppable_thread.h"

namespace hitide {

class OwnerProcess {
 public:
  // settings: name and value of what the owner reads first (python/hitide/store_agent/owner.py).
  OwnerProcess(ChildCommand command, FramePairs settings);
  ~OwnerProcess();
  OwnerProcess(const OwnerProcess&) = delete;
  OwnerProcess& operator=(const OwnerProcess&) = delete;

  // The owner unmounts and ends; after ten seconds and more it is killed.
  void stop() { thread_.stop(); }
  // True while its segment is mounted, as far as it has said.
  bool mounted() const;
  // Process id, or -1 between two owners.
  int pid() const;

 private:
  void run();
  void run_one();
  // Reads the owner's lines until it ends or stop() is called.
  void follow(ChildProcess& child, int socket);
  void take_line(const std::string& line);
  const ChildCommand command_;
  const FramePairs settings_;

  mutable Mutex mutex_;
  bool mounted_ HITIDE_GUARDED_BY(mutex_) = false;
  int pid_ HITIDE_GUARDED_BY(mutex_) = -1;
  StoppableThread thread_;
};

}  // namespace hitide
