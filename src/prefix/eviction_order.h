// Which unpinned leaf goes first, where that is not simply the one that was used longest ago.
#pragma once

#include <compare>
#include <cstdint>

namespace hitide {

// What is known of a node. `created` and `used` count the tree's own steps, not time.
struct EvictionFacts {
  std::uint32_t hits = 0;     // commits and admissions that used it
  std::int32_t priority = 0;  // the highest of the requests that used it
  std::uint64_t created = 0;
  std::uint64_t used = 0;
};

// The lowest goes first.
struct EvictionRank {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend auto operator<=>(const EvictionRank&, const EvictionRank&) = default;
};

// Pure. Null: by recency alone.
using RankLeaf = EvictionRank (*)(const EvictionFacts& facts);

}  // namespace hitide
