// What the store's numbers mean for a cache.
#pragma once

#include <cstdint>
#include <string_view>

#include <hitide/status.h>

namespace hitide {

// Results that the agent adds to the store's own.
inline constexpr std::int64_t kItemUnmapped = -20001;
inline constexpr std::int64_t kItemBadKey = -20002;
inline constexpr std::int64_t kItemLengthMismatch = -20003;
inline constexpr std::int64_t kItemBadSize = -20004;
inline constexpr std::int64_t kNoMemory = -20006;
inline constexpr std::int64_t kNotAdoptable = -20007;
inline constexpr std::int64_t kStoreAway = -20008;

// Of a negative result. Whatever may be gone later counts as not there; what another try may cure
// is unavailable; what needs room is resource_exhausted.
StatusCode status_of_code(std::int64_t code);
// The store's name for it, or "code".
std::string_view name_of_code(std::int64_t code);
// The store itself could not be asked: no item of the call was looked at.
bool means_store_down(std::int64_t code);

}  // namespace hitide
