#include "replay/simulated_shell.h"

#include <algorithm>
#include <variant>

namespace hitide {

void SimulatedStorage::put(const PageKey& key) {
  if (pages_max_ == 0 || !keys_.insert(key).second) return;
  order_.push_back(key);
  if (order_.size() <= pages_max_) return;
  keys_.erase(order_.front());
  order_.pop_front();
  ++evicted_;
}

SimulatedShell::SimulatedShell(const CoreConfig& config, std::uint64_t storage_pages,
                               const StorageSpeed& speed)
    : core_(config), storage_(storage_pages), speed_(speed) {}

void SimulatedShell::carry_out(Plan plan) {
  while (!plan.ops.empty()) {
    std::vector<PlanOp> ops = std::move(plan.ops);
    plan.ops.clear();
    for (PlanOp& op : ops) {
      if (std::holds_alternative<SequenceCommand>(op)) continue;
      if (std::holds_alternative<StorageQueryOp>(op)) {
        schedule(std::move(op), reads_until_, 0);
      } else if (const auto* read = std::get_if<StorageReadOp>(&op)) {
        const std::size_t pages = read->keys.size();
        schedule(std::move(op), reads_until_, pages);
      } else if (const auto* write = std::get_if<StorageWriteOp>(&op)) {
        const std::size_t pages = write->keys.size();
        schedule(std::move(op), writes_until_, pages);
      } else {
        core_.on_completion(answer(op), now_, plan);
      }
    }
  }
}

void SimulatedShell::schedule(PlanOp op, TimePoint& lane, std::size_t pages) {
  Duration time = speed_.latency;
  if (speed_.pages_per_s > 0.0) {
    const double seconds = static_cast<double>(pages) / speed_.pages_per_s;
    time += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  lane = std::max(lane, now_) + time;
  events_.push({.at = lane, .number = events_made_++, .op = std::move(op)});
}

Completion SimulatedShell::answer(const PlanOp& op) {
  Completion done;
  if (const auto* copy = std::get_if<CopyOp>(&op)) {
    done.id = copy->id;
    done.pages.assign(copy->pages.size(), StatusCode::ok);
  } else if (const auto* agree = std::get_if<AgreeOp>(&op)) {
    done.id = agree->id;
    for (const std::uint8_t stop : agree->stop_points) {
      done.pages.push_back(stop != 0 ? StatusCode::ok : StatusCode::not_found);
    }
  } else if (const auto* query = std::get_if<StorageQueryOp>(&op)) {
    done.id = query->id;
    for (const PageKey& key : query->keys) {
      done.pages.push_back(storage_.holds(key) ? StatusCode::ok : StatusCode::not_found);
    }
  } else if (const auto* read = std::get_if<StorageReadOp>(&op)) {
    done.id = read->id;
    for (const PageKey& key : read->keys) {
      done.pages.push_back(storage_.holds(key) ? StatusCode::ok : StatusCode::not_found);
    }
  } else if (const auto* write = std::get_if<StorageWriteOp>(&op)) {
    done.id = write->id;
    done.pages.assign(write->keys.size(), StatusCode::ok);
    for (const PageKey& key : write->keys) storage_.put(key);
  }
  return done;
}

void SimulatedShell::pass(TimePoint until) {
  while (!events_.empty() && events_.top().at <= until) {
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    Plan plan;
    core_.on_completion(answer(event.op), now_, plan);
    carry_out(std::move(plan));
  }
  now_ = std::max(now_, until);
}

void SimulatedShell::wait_ready(RequestId id) {
  pass(now_);
  while (core_.state(id) == PrefixState::waiting) {
    const TimePoint next = events_.empty() ? kNoDeadline : events_.top().at;
    const TimePoint until = std::min(next, core_.next_deadline());
    if (until == kNoDeadline) return;  // nothing that it could wait for
    pass(until);
    Plan plan;
    core_.tick(now_, plan);
    carry_out(std::move(plan));
  }
}

}  // namespace hitide
