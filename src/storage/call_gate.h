// CallGate: counts the calls in a store, so that close() can wait for them and later calls are
// refused. And the few checks that every backend makes on the items of a call.
#pragma once

#include <cstdint>
#include <new>
#include <span>
#include <string_view>

#include <hitide/object_store.h>

#include "base/clock.h"
#include "base/mutex.h"

namespace hitide {

class CallGate {
 public:
  // One call in flight, from enter() to its end. False when the gate was closed.
  class Pass {
   public:
    explicit Pass(CallGate& gate) : gate_(gate), entered_(gate.enter()) {}
    ~Pass() {
      if (entered_) gate_.leave();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    explicit operator bool() const { return entered_; }

   private:
    CallGate& gate_;
    const bool entered_;
  };

  // Refuses new calls and waits for those inside. False: some were still inside at the deadline.
  bool close(TimePoint deadline);

 private:
  bool enter();
  void leave();

  Mutex mutex_;
  CondVar empty_;
  std::uint64_t inside_ HITIDE_GUARDED_BY(mutex_) = 0;
  bool closed_ HITIDE_GUARDED_BY(mutex_) = false;
};

// Answers every item and the call with `code`: failed_precondition (closed) or deadline_exceeded.
CallOutcome refuse_call(std::span<ItemResult> out, StatusCode code, std::string_view call);

// Runs `one(i)`, which answers an ItemResult, for every item until the deadline is up; the items
// left over answer deadline_exceeded. `call` is named in messages.
template <typename One>
CallOutcome for_each_item(CallGate& gate, std::string_view call, std::span<ItemResult> out,
                          const CallOptions& options, const One& one) {
  const CallGate::Pass pass(gate);
  if (!pass) return refuse_call(out, StatusCode::failed_precondition, call);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (options.deadline != kNoDeadline && SystemClock::instance().now() >= options.deadline) {
      return refuse_call(out.subspan(i), StatusCode::deadline_exceeded, call);
    }
    try {
      out[i] = one(i);
    } catch (const std::bad_alloc&) {
      out[i] = {.code = StatusCode::resource_exhausted};
    }
  }
  return {};
}

inline bool usable_key(std::string_view key, std::size_t key_bytes_max) {
  return !key.empty() && key.size() <= key_bytes_max;
}

template <typename Buffer>
std::uint64_t total_bytes(std::span<const Buffer> buffers) {
  std::uint64_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.size();
  return total;
}

}  // namespace hitide
