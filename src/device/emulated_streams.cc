#include "device/emulated_streams.h"

#include <algorithm>
#include <utility>

namespace hitide {

void EmulatedStreams::launch(std::uint32_t stream, EmulatedWork work) {
  if (stream >= streams_.size()) streams_.resize(stream + 1);
  pending_.insert(work.number);
  streams_[stream].queue.push_back(std::move(work));
}

std::optional<TimePoint> EmulatedStreams::start_ready(TimePoint now) {
  std::optional<TimePoint> first;
  for (Stream& stream : streams_) {
    if (stream.queue.empty()) continue;
    EmulatedWork& head = stream.queue.front();
    const bool waits = std::any_of(head.waits.begin(), head.waits.end(),
                                   [this](std::uint64_t number) { return pending(number); });
    if (!stream.head_ends && !waits) {
      if (head.start) head.start();
      stream.head_ends = now + head.duration;
    }
    if (stream.head_ends && (!first || *stream.head_ends < *first)) first = stream.head_ends;
  }
  return first;
}

EmulatedWork EmulatedStreams::take_next() {
  std::vector<Stream*> candidates;
  for (Stream& stream : streams_) {
    if (!stream.head_ends) continue;
    if (!candidates.empty() && *stream.head_ends > *candidates[0]->head_ends) continue;
    if (!candidates.empty() && *stream.head_ends < *candidates[0]->head_ends) candidates.clear();
    candidates.push_back(&stream);
  }
  Stream& chosen = *candidates[random_.below(candidates.size())];
  EmulatedWork work = std::move(chosen.queue.front());
  chosen.queue.pop_front();
  chosen.head_ends.reset();
  return work;
}

std::vector<EmulatedWork> EmulatedStreams::take_all(std::uint32_t stream) {
  std::vector<EmulatedWork> all;
  if (stream >= streams_.size()) return all;
  for (EmulatedWork& work : streams_[stream].queue) {
    pending_.erase(work.number);
    all.push_back(std::move(work));
  }
  streams_[stream].queue.clear();
  streams_[stream].head_ends.reset();
  return all;
}

Duration EmulatedStreams::jitter(Duration most) {
  if (most.count() <= 0) return {};
  return Duration(
      static_cast<Duration::rep>(random_.below(static_cast<std::uint64_t>(most.count()) + 1)));
}

}  // namespace hitide
