// Is a span worth bringing up, or is it computed again?
#include <algorithm>

#include "cache/cache_core.h"
#include "policy/transfer_speed.h"

namespace hitide {

// Where a page's bytes are not known, pages are counted: the unit does not matter.
std::uint64_t CacheCore::span_bytes(std::uint32_t pages) const {
  return pages * std::max<std::uint64_t>(config_.page_bytes, 1);
}

// Of pages [begin, end) of the prompt, all of them or none: both costs grow with the length, so
// what is not worth it as a whole is not worth it in part. The figures become part of the
// explanation.
bool CacheCore::worth_loading(Request& request, Tier tier, std::uint32_t begin, std::uint32_t end,
                              TimePoint now) {
  const PolicyOptions& policy = config_.policy;
  if (!policy.cost_model || policy.prefetch_policy == PrefetchPolicy::wait_complete) return true;
  const bool stored = tier == Tier::storage;
  const LoadCost cost =
      load_cost((end - begin) * config_.page_size, span_bytes(end - begin),
                stored ? storage_speed_ : host_speed_, stored ? &host_speed_ : nullptr, speed_);
  if (!cost.known) return true;
  const bool loads =
      cost.loads() || (!stored && probe_due(host_speed_.measured(), now, kHostProbeInterval));
  std::vector<LoadDecision>& decisions = request.explanation.decisions;
  std::erase_if(decisions, [&](const LoadDecision& other) { return other.tier == tier; });
  decisions.push_back({.tier = tier,
                       .begin = begin * config_.page_size,
                       .end = end * config_.page_size,
                       .load = cost.load,
                       .recompute = cost.recompute,
                       .loads = loads});
  return loads;
}

}  // namespace hitide
