// Prefetch decisions: is storage asked at all, and how long may a request wait for it. Pure.
#pragma once

#include <cstdint>

#include <hitide/options.h>
#include <hitide/types.h>

namespace hitide {

// How fast prompts are computed here: an average that follows the last measurements. Starts from a
// guess where there is one.
class PrefillSpeed {
 public:
  explicit PrefillSpeed(double tokens_per_s_guess) : tokens_per_s_(tokens_per_s_guess) {}
  // `tokens` computed in `time`; runs of less than 16 tokens say little and are left out.
  void note(std::uint32_t tokens, Duration time);
  bool known() const { return tokens_per_s_ > 0.0; }
  double tokens_per_s() const { return tokens_per_s_; }
  // Duration::max() while nothing is known.
  Duration predict(std::uint32_t tokens) const;

 private:
  double tokens_per_s_;
};

// How long a storage call may take, whoever waits for it: a request's deadline ends its waiting
// only, and what arrives later is kept for the next request.
Duration storage_call_limit(std::uint64_t bytes);

// What a prefetch would bring.
struct PrefetchSpan {
  std::uint32_t tokens = 0;
  std::uint64_t bytes = 0;
};

// How long a request waits for it.
//   timeout        min(base + per_ki_token * tokens / 1024, timeout_max, predicted time to compute
//                  the tokens): waiting longer than that is never worth it
//   wait_complete  until all has come; what bounds it are the limits of the calls, one query and
//                  the reads one after the other
Duration prefetch_wait(const PolicyOptions& policy, const PrefetchSpan& span,
                       const PrefillSpeed& speed);

enum class PrefetchChoice : std::uint8_t { ask, below_threshold, rate_limited };

// `occupied_pages`: spans of the prefetches under way. A declined prefetch is declined for good;
// the request never waits for room.
PrefetchChoice choose_prefetch(const PolicyOptions& policy, std::uint32_t span_tokens,
                               std::uint64_t occupied_pages, std::uint64_t host_pages);

// Until storage is asked again for a request that waits to be admitted and was asked `retries`
// times again before.
Duration prefetch_retry_delay(const PolicyOptions& policy, std::uint32_t retries);

}  // namespace hitide
