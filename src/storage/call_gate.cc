#include "storage/call_gate.h"

#include <fmt/format.h>

#include "base/mutex.h"

namespace hitide {

bool CallGate::enter() {
  const MutexLock lock(mutex_);
  if (closed_) return false;
  ++inside_;
  return true;
}

void CallGate::leave() {
  // Notified under the lock: the waiter may destroy the gate as soon as it sees zero.
  const MutexLock lock(mutex_);
  if (--inside_ == 0) empty_.notify_all();
}

bool CallGate::close(TimePoint deadline) {
  MutexLock lock(mutex_);
  closed_ = true;
  const auto empty = [this]() HITIDE_REQUIRES(mutex_) { return inside_ == 0; };
  if (deadline == kNoDeadline) {
    empty_.wait(lock, empty);
    return true;
  }
  return empty_.wait_until(lock, deadline, empty);
}

CallOutcome refuse_call(std::span<ItemResult> out, StatusCode code, std::string_view call) {
  for (ItemResult& result : out) result = {.code = code, .bytes = 0};
  const std::string_view why = code == StatusCode::failed_precondition
                                   ? "the store is closed"
                                   : "the deadline was up before all items had been looked at";
  return {.status = Status(code, fmt::format("{}: {} ({} items left)", call, why, out.size()))};
}

}  // namespace hitide
