// Write decisions: when is a node copied one tier down. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include <hitide/options.h>
#include <hitide/types.h>

namespace hitide {

// `hits`: commits and admissions that used the node, the first commit included.
constexpr bool backup_now(WritePolicy policy, std::uint32_t hits) {
  switch (policy) {
    case WritePolicy::write_through:
      return hits >= 1;
    case WritePolicy::write_through_selective:
      return hits >= 2;
    case WritePolicy::write_back:
      return false;  // use alone is no reason
  }
  return false;
}

// A write that storage has not taken whole is tried again so many times, each after four times the
// pause before. So many wait for that at most; what is left over is offered by the next commit.
inline constexpr std::uint32_t kWriteRetriesMax = 3;
inline constexpr std::size_t kWriteRetriesKept = 256;
constexpr Duration write_retry_delay(std::uint32_t attempt) {
  return std::chrono::seconds(1) * (1u << (2 * attempt));
}

// Whether a page that leaves a tier is first copied to the one below, where that has no copy.
constexpr bool copies_before_eviction(WritePolicy policy) {
  return policy == WritePolicy::write_back;
}

// Host pages that are kept free for pages that leave the device, since those cannot wait until
// storage has taken what lies in their way.
constexpr std::uint32_t host_reserve_pages(std::uint32_t host_pages) {
  return (host_pages + 15) / 16;
}

}  // namespace hitide
