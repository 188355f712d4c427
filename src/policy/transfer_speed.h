// Cost decisions: is a span brought up from a lower tier, or computed again. Pure.
#pragma once

#include <cstdint>

#include <hitide/types.h>

#include "policy/prefetch_policy.h"

namespace hitide {

// How long moves from one tier take: a time for each move and a time for each byte, fitted to the
// last moves, of which newer ones count more. A move is measured from the request for it to its
// answer, with all waiting in between.
class TransferSpeed {
 public:
  void note(std::uint64_t bytes, Duration time, TimePoint now);
  bool known() const { return weight_ > 0.0; }
  // Duration::max() while nothing is known.
  Duration predict(std::uint64_t bytes) const;
  Duration latency() const;
  double bytes_per_s() const;  // without the latency; 0: not known
  // When the last move was measured.
  TimePoint measured() const { return measured_; }

 private:
  struct Fit {
    double latency_s = 0.0;
    double byte_s = 0.0;
  };
  Fit fit() const;

  // Weighted sums over moves; x: bytes, y: seconds.
  double weight_ = 0.0;
  double x_ = 0.0;
  double y_ = 0.0;
  double xx_ = 0.0;
  double xy_ = 0.0;
  TimePoint measured_{};
};

// What is predicted for a span.
struct LoadCost {
  bool known = false;  // else the two times mean nothing, and the span is loaded
  Duration load{};
  Duration recompute{};
  bool loads() const { return !known || load < recompute; }
};

// The span's bytes come through `first` and, where that is not null, through `second` after it. One
// that is not known counts nothing; `first` must be known for a prediction, and so must `prefill`.
LoadCost load_cost(std::uint32_t tokens, std::uint64_t bytes, const TransferSpeed& first,
                   const TransferSpeed* second, const PrefillSpeed& prefill);

// A tier that loses against recomputing is tried again after so long, since nothing else would tell
// when it has become faster. A probe of storage makes nobody wait; one of the host delays a
// request.
inline constexpr Duration kStorageProbeInterval = std::chrono::seconds(10);
inline constexpr Duration kHostProbeInterval = std::chrono::seconds(60);
constexpr bool probe_due(const TimePoint measured, TimePoint now, Duration interval) {
  return now - measured >= interval;
}

}  // namespace hitide
