#include "policy/prefetch_policy.h"

#include <algorithm>
#include <chrono>

namespace hitide {
namespace {
constexpr std::uint32_t kNoteTokensMin = 16;
constexpr double kNewWeight = 0.25;

Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}
}  // namespace

void PrefillSpeed::note(std::uint32_t tokens, Duration time) {
  if (tokens < kNoteTokensMin || time <= Duration::zero()) return;
  const double measured = tokens / std::chrono::duration<double>(time).count();
  tokens_per_s_ = known() ? tokens_per_s_ + kNewWeight * (measured - tokens_per_s_) : measured;
}

Duration PrefillSpeed::predict(std::uint32_t tokens) const {
  if (!known()) return Duration::max();
  return seconds(tokens / tokens_per_s_);
}

Duration storage_call_limit(std::uint64_t bytes) {
  constexpr double kBytesPerSecond = 64.0 * 1024 * 1024;
  return seconds(3.0 + static_cast<double>(bytes) / kBytesPerSecond);
}

Duration prefetch_wait(const PolicyOptions& policy, const PrefetchSpan& span,
                       const PrefillSpeed& speed) {
  if (policy.prefetch_policy == PrefetchPolicy::wait_complete) {
    // The answer to a call that ran into its limit comes a moment after it.
    constexpr Duration kSlack = std::chrono::seconds(1);
    return storage_call_limit(0) + storage_call_limit(span.bytes) + kSlack;
  }
  const double formula = policy.prefetch_timeout_base_s +
                         policy.prefetch_timeout_per_ki_token_s * (span.tokens / 1024.0);
  const Duration capped = seconds(std::min(formula, policy.prefetch_timeout_max_s));
  return std::min(capped, speed.predict(span.tokens));
}

Duration prefetch_retry_delay(const PolicyOptions& policy, std::uint32_t retries) {
  return seconds(policy.prefetch_retry_interval_s * (1u << std::min(retries, 16u)));
}

PrefetchChoice choose_prefetch(const PolicyOptions& policy, std::uint32_t span_tokens,
                               std::uint64_t occupied_pages, std::uint64_t host_pages) {
  if (span_tokens < policy.prefetch_threshold_tokens) return PrefetchChoice::below_threshold;
  const double limit = policy.prefetch_occupancy_max * static_cast<double>(host_pages);
  if (static_cast<double>(occupied_pages) >= limit) return PrefetchChoice::rate_limited;
  return PrefetchChoice::ask;
}

}  // namespace hitide
