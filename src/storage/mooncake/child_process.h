// ChildProcess: a helper process with a socket on its descriptor 3 and its standard error in a
// pipe. It is killed and waited for by the destructor at the latest, so that no zombie stays.
//
// The child is told the parent's process id as its last argument, and is killed by the system with
// the thread that started it, whatever program it runs: start() belongs on a thread that lives as
// long as the child may.
//
// Threading: kill() and dead() from any thread; the rest from one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/file.h"
#include "base/mutex.h"

namespace hitide {

using EnvironmentPairs = std::vector<std::pair<std::string, std::string>>;

struct ChildCommand {
  std::string program;  // looked up in PATH where it has no slash
  std::vector<std::string> arguments = {};
  EnvironmentPairs environment = {};           // set for the child, whatever this process has
  EnvironmentPairs environment_defaults = {};  // set where this process has no such variable
};

class ChildProcess {
 public:
  // failed_precondition: the program cannot be run; resource_exhausted: no descriptors or
  // processes.
  static Result<std::unique_ptr<ChildProcess>> start(const ChildCommand& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The near end of the socket, once.
  UniqueFd take_socket() { return std::move(socket_); }
  int error_fd() const { return errors_.get(); }
  // Reads what the child has written to standard error, without waiting; keeps the end of it.
  void drain_errors();
  // The last line read so far.
  std::string error_tail() const;
  void forget_errors() { error_text_.clear(); }

  // SIGTERM or SIGKILL; nothing once it has been waited for.
  void signal(int number);
  // True: it is dead and waited for. False: not by the deadline.
  bool wait(TimePoint deadline);

 private:
  ChildProcess(pid_t pid, UniqueFd socket, UniqueFd errors);

  const pid_t pid_;
  UniqueFd socket_;
  UniqueFd errors_;
  std::string error_text_;
  Mutex mutex_;
  bool waited_for_ HITIDE_GUARDED_BY(mutex_) = false;  // the id may be somebody else's by now
};

}  // namespace hitide
