// Small helpers around calls to an ObjectStore.
#pragma once

#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hitide/object_store.h>

namespace hitide {

// Keeps the first failure and the latest time.
inline void merge(CallOutcome& into, CallOutcome from) {
  if (into.status.ok()) into.status = std::move(from.status);
  into.buffers_busy_until = std::max(into.buffers_busy_until, from.buffers_busy_until);
}

inline std::vector<std::string_view> views(std::span<const std::string> keys) {
  return {keys.begin(), keys.end()};
}

// A store of somebody else's may throw, whatever its contract says: that fails this call alone. The
// results keep what they had, which is internal from the start.
template <typename Call>
CallOutcome guarded(const Call& call) {
  CallOutcome outcome;
  try {
    return call();
  } catch (const std::exception& error) {
    outcome.status = Status(StatusCode::internal, std::string("the store threw: ") + error.what());
  } catch (...) {
    outcome.status = Status(StatusCode::internal, "the store threw");
  }
  return outcome;
}

}  // namespace hitide
