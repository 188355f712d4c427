// Explanation: for every request, which tier served which span of the prompt, and why the rest was
// not served. The spans are disjoint, in order, and sum to the prompt exactly.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/types.h>

namespace hitide {

// X(name, meaning): the one place that lists the reasons. docs/reasons.md is checked against it.
#define HITIDE_MISS_REASONS(X)                                                              \
  X(last_token, "at least one token of a prompt is always computed, to have logits for it") \
  X(partial_page, "behind the last whole page of the prompt; only whole pages are kept")    \
  X(never_seen, "no request has left this page behind, as far as this process remembers")   \
  X(other_namespace, "these tokens are cached, but under another adapter or cache salt")    \
  X(evicted_device, "was cached on the device and evicted before it had a copy below")      \
  X(evicted_host, "was cached in host memory and evicted; storage did not have it either")  \
  X(storage_miss, "storage was asked and does not hold this page")                          \
  X(below_threshold, "too few pages for storage to be worth a question or a read")          \
  X(deadline, "storage had not delivered this page when the request's deadline was up")     \
  X(storage_off, "storage is not attached, and the page is in no other tier")               \
  X(storage_failed, "storage answered with an error or was unavailable")                    \
  X(rate_limited, "too many prefetches were under way; storage was not asked")              \
  X(verification_failed, "storage returned bytes that do not verify; they were dropped")    \
  X(pool_full, "no page was free in the tier above and none could be evicted")              \
  X(load_failed, "the copy from host memory to the device failed")                          \
  X(not_worth_loading, "recomputing was predicted to be faster than loading")               \
  X(cancelled, "the request ended before it was admitted")                                  \
  X(cache_off, "the cache is off or in bypass")                                             \
  X(unknown, "the page was lost between two decisions (flushed or evicted while waiting)")

enum class MissReason : std::uint8_t {
#define HITIDE_X(name, meaning) name,
  HITIDE_MISS_REASONS(HITIDE_X)
#undef HITIDE_X
};
inline constexpr int kMissReasonCount = 0
#define HITIDE_X(name, meaning) +1
    HITIDE_MISS_REASONS(HITIDE_X)
#undef HITIDE_X
    ;
std::string_view to_string(MissReason reason);
std::string_view meaning(MissReason reason);

struct ServedSpan {
  Tier tier = Tier::device;  // where the bytes came from
  std::uint32_t begin = 0;   // tokens
  std::uint32_t end = 0;
  friend bool operator==(const ServedSpan&, const ServedSpan&) = default;
};

struct MissedSpan {
  MissReason reason = MissReason::unknown;
  std::uint32_t begin = 0;  // tokens
  std::uint32_t end = 0;
  friend bool operator==(const MissedSpan&, const MissedSpan&) = default;
};

// Whether bringing a span up beats computing it, as predicted from what had been measured by then.
// None is made where that is not known, or not asked for.
struct LoadDecision {
  Tier tier = Tier::host;   // where the span was, or was asked for
  std::uint32_t begin = 0;  // tokens
  std::uint32_t end = 0;
  Duration load{};       // predicted time until it would be on the device
  Duration recompute{};  // predicted time to compute it
  bool loads = true;     // false: it was computed instead, for the reason not_worth_loading
};

struct Explanation {
  std::string id = {};     // unique in this process
  std::string label = {};  // the caller's name for the request
  std::uint32_t prompt_tokens = 0;
  std::vector<ServedSpan> served = {};
  std::vector<MissedSpan> missed = {};
  std::vector<LoadDecision> decisions = {};  // the last one of each tier
  Duration storage_wait{};                   // how long the request waited for storage
  Duration load_time{};                      // from admission to the last page on the device
  Duration saved{};       // predicted recompute time of what was served, less the waits
  bool complete = false;  // false while the request is still being admitted

  std::uint32_t served_tokens(Tier tier) const;
  std::uint32_t served_tokens() const;
};

}  // namespace hitide
