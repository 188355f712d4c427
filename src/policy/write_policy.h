// Write decisions: is a node copied one tier down now. Pure.
#pragma once

#include <cstdint>

#include <hitide/options.h>

namespace hitide {

// `hits`: commits and admissions that used the node, the first commit included.
constexpr bool backup_now(WritePolicy policy, std::uint32_t hits) {
  switch (policy) {
    case WritePolicy::write_through:
      return hits >= 1;
    case WritePolicy::write_through_selective:
      return hits >= 2;
  }
  return false;
}

}  // namespace hitide
