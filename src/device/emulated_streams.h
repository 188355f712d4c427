// EmulatedStreams: pieces of work on streams, in the order in which they end.
//
//   launch --> [ queue of a stream ] --start when it is the head and its waits are over-->
//     running until its end --> finish
//
// A piece of work is named by its number, which rises over all streams. Time is told.
//
// Threading: one thread at a time; the device holds its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include <hitide/types.h>

#include "base/random.h"

namespace hitide {

struct EmulatedWork {
  std::uint64_t number = 0;
  std::vector<std::uint64_t> waits;  // numbers that must have finished before it starts
  Duration duration{};
  std::function<void()> start;   // reads its sources
  std::function<void()> finish;  // writes its targets, answers
  std::function<void()> cancel;  // in place of both: answers only
};

class EmulatedStreams {
 public:
  explicit EmulatedStreams(std::uint64_t seed) : random_(seed) {}

  std::uint64_t next_number() { return ++last_number_; }
  // Requires a number of next_number(), higher than that of any work launched before.
  void launch(std::uint32_t stream, EmulatedWork work);

  // Starts what can start. Returns when the first running piece ends; nothing: none is running.
  std::optional<TimePoint> start_ready(TimePoint now);
  // Takes out the piece that ends first, a seeded one of several. Requires that one is running.
  EmulatedWork take_next();
  // It has taken effect: what waits for it may start.
  void finished(std::uint64_t number) { pending_.erase(number); }

  bool pending(std::uint64_t number) const { return pending_.count(number) != 0; }
  std::size_t count() const { return pending_.size(); }
  // Takes all work of a stream out, running or not.
  std::vector<EmulatedWork> take_all(std::uint32_t stream);
  Duration jitter(Duration most);

 private:
  struct Stream {
    std::deque<EmulatedWork> queue;
    std::optional<TimePoint> head_ends;  // set: the head is running
  };
  Random random_;
  std::uint64_t last_number_ = 0;
  std::vector<Stream> streams_;
  std::set<std::uint64_t> pending_;
};

}  // namespace hitide
