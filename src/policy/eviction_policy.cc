#include "policy/eviction_policy.h"

namespace hitide {
namespace {

// From the second use on, as in the reference.
constexpr std::uint32_t kProtectedHits = 2;

// Keeps the order of signed numbers.
std::uint64_t ordered(std::int32_t value) {
  return static_cast<std::uint32_t>(value) ^ 0x80000000u;
}

}  // namespace

RankLeaf rank_for(EvictionPolicy policy) {
  using Facts = EvictionFacts;
  switch (policy) {
    case EvictionPolicy::lru:
      return nullptr;
    case EvictionPolicy::lfu:
      return [](const Facts& f) { return EvictionRank{f.hits, f.used}; };
    case EvictionPolicy::slru:
      return [](const Facts& f) { return EvictionRank{f.hits >= kProtectedHits, f.used}; };
    case EvictionPolicy::fifo:
      return [](const Facts& f) { return EvictionRank{f.created, 0}; };
    case EvictionPolicy::mru:
      return [](const Facts& f) { return EvictionRank{~f.used, 0}; };
    case EvictionPolicy::filo:
      return [](const Facts& f) { return EvictionRank{~f.created, 0}; };
    case EvictionPolicy::priority:
      return [](const Facts& f) { return EvictionRank{ordered(f.priority), f.used}; };
  }
  return nullptr;
}

}  // namespace hitide
