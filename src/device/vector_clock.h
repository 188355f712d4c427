// VectorClock: what is known to be done, by stream. One piece of work is ordered behind another one
// when the clock it was launched with covers that one's tick.
//
// Threading: a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hitide {

class VectorClock {
 public:
  bool covers(std::uint32_t stream, std::uint64_t tick) const {
    return stream < ticks_.size() && ticks_[stream] >= tick;
  }
  // Ticks of one stream rise.
  void add(std::uint32_t stream, std::uint64_t tick) {
    if (stream >= ticks_.size()) ticks_.resize(stream + 1);
    ticks_[stream] = std::max(ticks_[stream], tick);
  }
  void join(const VectorClock& other) {
    if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size());
    for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
      ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> ticks_;
};

}  // namespace hitide
