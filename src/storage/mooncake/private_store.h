// PrivateStore: a Mooncake store on this machine for one process: a master and the owner of a
// segment, started as `hitide store up` starts them (python/hitide/store/up.py). They are stopped
// in order by the destructor and end with this process.
//
// Threading: one thread, which must live as long as the store.
#pragma once

#include <cstdint>
#include <memory>

#include <hitide/mooncake_options.h>
#include <hitide/result.h>
#include <hitide/types.h>

#include "storage/mooncake/child_process.h"

namespace hitide {

class PrivateStore {
 public:
  // Of `options` the interpreter and the mode are used; standalone_storage: the owner is a daemon.
  // segment_bytes is rounded up to whole 64 MiB. Returns once the store can be used.
  // failed_precondition: no interpreter or no package; unavailable: it did not start, and why;
  // deadline_exceeded: not by the deadline.
  static Result<std::unique_ptr<PrivateStore>> start(const MooncakeOptions& options,
                                                     std::uint64_t segment_bytes,
                                                     TimePoint deadline);
  ~PrivateStore();
  PrivateStore(const PrivateStore&) = delete;
  PrivateStore& operator=(const PrivateStore&) = delete;

  // The options given, with what a client of this store needs.
  const MooncakeOptions& options() const { return options_; }

 private:
  PrivateStore(std::unique_ptr<ChildProcess> process, const MooncakeOptions& options);
  Status read_variables(TimePoint deadline);
  Status ended();

  const std::unique_ptr<ChildProcess> process_;
  UniqueFd socket_;  // closing it asks the process to stop
  MooncakeOptions options_;
  bool ready_ = false;  // it has said so, and stops by itself when it is asked to
};

}  // namespace hitide
