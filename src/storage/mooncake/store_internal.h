// What the two halves of MooncakeStore share.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hitide/status.h>
#include <hitide/types.h>

#include "base/clock.h"
#include "storage/mooncake/frames.h"

namespace hitide {

inline constexpr std::uint32_t kMooncakeKeyBytesMax = 255;
inline constexpr std::size_t kMoveItemsMax = 64;   // objects of one call of the client
inline constexpr std::size_t kAskItemsMax = 4000;  // keys of one call of the client
inline constexpr std::uint64_t kMoveBytesMax = 64ull << 20;
// Objects of one call where all of them together are small.
inline constexpr std::size_t kSmallMoveItemsMax = 2000;
inline constexpr std::uint64_t kSmallMoveBytesMax = 1ull << 20;
// Whatever keys and groups there are, they fit one frame.
static_assert(kAskItemsMax * (2 + kFrameKeyBytesMax) + 4 <= kFrameBodyBytesMax);
static_assert(kSmallMoveItemsMax * (24 + 2 * kFrameKeyBytesMax) + 4 <= kFrameBodyBytesMax);
inline constexpr std::uint32_t kBounceRegion = 0;

inline bool is_past(TimePoint deadline) {
  return deadline != kNoDeadline && SystemClock::instance().now() >= deadline;
}

// What items that were not looked at answer after the call has failed so.
StatusCode code_for_rest(const Status& status);
// The store's own answer that it cannot be asked.
Status store_down_status(AgentCall kind, std::int64_t code);
Status passed_deadline(AgentCall kind, std::size_t left);

}  // namespace hitide
