#include "storage/breaker.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "storage/store_call.h"

namespace hitide {

void FailureWindow::add(TimePoint now, double failed_share) {
  const std::int64_t number = number_at(now);
  Slice& slice = slices_[static_cast<std::size_t>(number) % kSlices];
  if (slice.number != number) slice = {.number = number, .sums = {}};
  ++slice.sums.calls;
  slice.sums.failed += failed_share;
}

FailureWindow::Sums FailureWindow::sums(TimePoint now) const {
  const std::int64_t number = number_at(now);
  Sums all;
  for (const Slice& slice : slices_) {
    if (slice.number < 0 || slice.number <= number - static_cast<std::int64_t>(kSlices)) continue;
    all.calls += slice.sums.calls;
    all.failed += slice.sums.failed;
  }
  return all;
}

Breaker::Breaker(const BreakerOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      lately_{Lately{.window = FailureWindow(options.window)},
              Lately{.window = FailureWindow(options.window)}} {}

void Breaker::release_quarantined() {
  const TimePoint now = clock_.now();
  while (!quarantined_.empty() && quarantined_.front().until <= now) {
    state_.quarantined_bytes -= quarantined_.front().bytes;
    quarantined_.pop_front();
  }
}

bool Breaker::too_much_quarantined() const {
  return memory_bytes_ > 0 &&
         static_cast<double>(state_.quarantined_bytes) >
             options_.quarantine_share_max * static_cast<double>(memory_bytes_);
}

Breaker::Pass Breaker::admit(Kind kind) {
  const MutexLock lock(mutex_);
  release_quarantined();
  if (!state_.open) return Pass::call;
  if (hanging_ == 0 && !too_much_quarantined() && clock_.now() >= state_.next_probe) {
    if (!lately(kind).failed && kind == Kind::query) return Pass::beside;
    if (!probing_) {
      probing_ = true;
      return Pass::probe;
    }
  }
  ++state_.refused;
  return Pass::refused;
}

void Breaker::open(std::string_view why) {
  state_.open = true;
  ++state_.opened;
  pause_ = options_.pause_first;
  state_.next_probe = clock_.now() + pause_;
  log_warning("storage_breaker_opened", {{"why", why},
                                         {"quarantined_bytes", state_.quarantined_bytes},
                                         {"next_probe_s", to_seconds(pause_)}});
}

void Breaker::close() {
  state_.open = false;
  for (Lately& kind : lately_) {
    kind.failures_in_a_row = 0;
    kind.window.clear();
    kind.failed = false;
  }
  log_info("storage_breaker_closed");
}

void Breaker::count(Kind kind, const Report& report) {
  Lately& lately = this->lately(kind);
  const TimePoint now = clock_.now();
  lately.window.add(now, report.failed_share);
  lately.failures_in_a_row = report.verdict == Verdict::bad ? lately.failures_in_a_row + 1 : 0;
  const FailureWindow::Sums sums = lately.window.sums(now);
  const bool row = lately.failures_in_a_row >= options_.failures_to_open;
  const bool share = sums.calls >= options_.window_calls_min &&
                     sums.failed >= options_.failed_share_to_open * static_cast<double>(sums.calls);
  if (!row && !share) return;
  lately.failed = true;
  open(row ? "calls failed in a row" : "too many calls failed lately");
}

void Breaker::report(Kind kind, Pass pass, const Report& report) {
  const MutexLock lock(mutex_);
  if (pass == Pass::probe) probing_ = false;
  if (report.verdict == Verdict::unknown) return;
  const bool on_trial = pass == Pass::probe || pass == Pass::beside;
  if (!on_trial) {
    if (!state_.open) count(kind, report);
    return;
  }
  if (!state_.open) return;
  if (report.verdict == Verdict::bad) {
    lately(kind).failed = true;
    pause_ = std::min(pause_ * 2, options_.pause_max);
    state_.next_probe = clock_.now() + pause_;
  } else if (pass == Pass::probe && !too_much_quarantined()) {
    close();
  }
}

void Breaker::hangs(Kind kind) {
  const MutexLock lock(mutex_);
  ++hanging_;
  lately(kind).failed = true;
  if (!state_.open) open("a call does not return");
}

void Breaker::returned() {
  const MutexLock lock(mutex_);
  --hanging_;
}

void Breaker::set_memory_bytes(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  memory_bytes_ = bytes;
}

void Breaker::quarantine(std::uint64_t bytes, TimePoint until) {
  const MutexLock lock(mutex_);
  release_quarantined();
  if (until <= clock_.now() || bytes == 0) return;
  const auto later = std::find_if(quarantined_.begin(), quarantined_.end(),
                                  [&](const Quarantined& other) { return other.until > until; });
  quarantined_.insert(later, {.until = until, .bytes = bytes});
  state_.quarantined_bytes += bytes;
  if (!state_.open && too_much_quarantined()) open("too much memory is in quarantine");
}

BreakerState Breaker::state() const {
  const MutexLock lock(mutex_);
  BreakerState state = state_;
  if (!state.open || !too_much_quarantined()) return state;
  // No probe before enough of it is free again.
  const double allowed = options_.quarantine_share_max * static_cast<double>(memory_bytes_);
  std::uint64_t left = state.quarantined_bytes;
  for (const Quarantined& part : quarantined_) {
    left -= part.bytes;
    state.next_probe = std::max(state.next_probe, part.until);
    if (static_cast<double>(left) <= allowed) break;
  }
  return state;
}

// ---- BreakerStore -------------------------------------------------------------------------------

class BreakerStore::Entry {
 public:
  Entry(const BreakerStore& store, const InFlight& call) : store_(store) {
    const MutexLock lock(store_.flight_mutex_);
    at_ = store_.in_flight_.insert(store_.in_flight_.end(), call);
  }
  ~Entry() {
    const MutexLock lock(store_.flight_mutex_);
    if (at_->noted) at_->breaker->returned();
    store_.in_flight_.erase(at_);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  const BreakerStore& store_;
  std::list<InFlight>::iterator at_;
};

BreakerStore::BreakerStore(std::unique_ptr<ObjectStore> inner, const BreakerOptions& options,
                           const Clock& clock)
    : inner_(std::move(inner)),
      clock_(clock),
      options_(options),
      reads_(options, clock),
      writes_(options, clock) {}

// Looked at by whoever comes next, as nobody can wait for those that hang.
void BreakerStore::note_overdue() const {
  const MutexLock lock(flight_mutex_);
  const TimePoint now = clock_.now();
  for (InFlight& call : in_flight_) {
    if (call.noted || now < call.overdue) continue;
    call.noted = true;
    call.breaker->hangs(call.kind);
    note_failure(*call.breaker, fmt::format("{}: a call does not return", call.call));
  }
}

void BreakerStore::note_failure(const Breaker& breaker, std::string failure) const {
  const MutexLock lock(failure_mutex_);
  (&breaker == &writes_ ? last_write_failure_ : last_read_failure_) = std::move(failure);
}

Breaker::Report BreakerStore::judge(const CallOutcome& outcome, std::span<const ItemResult> out,
                                    const CallOptions& options) const {
  using Verdict = Breaker::Verdict;
  constexpr Breaker::Report kBad = {.verdict = Verdict::bad, .failed_share = 1};
  switch (outcome.status.code()) {
    case StatusCode::ok:
      break;
    case StatusCode::unavailable:
    case StatusCode::internal:
      return kBad;
    case StatusCode::deadline_exceeded:
      // The caller's time was up, or the store's own limit was.
      if (clock_.now() >= options.deadline) return {};
      return kBad;
    default:
      return {};
  }
  const auto away = std::count_if(out.begin(), out.end(), [](const ItemResult& result) {
    return result.code == StatusCode::unavailable;
  });
  const double share = static_cast<double>(away) / static_cast<double>(out.size());
  return {.verdict = share > 0.5 ? Verdict::bad : Verdict::good, .failed_share = share};
}

template <typename Do>
CallOutcome BreakerStore::guarded(Breaker& breaker, Breaker::Kind kind, std::string_view call,
                                  std::span<ItemResult> out, const CallOptions& options,
                                  const Do& carry_out) {
  if (out.empty()) return carry_out();  // answered without I/O: it proves nothing
  note_overdue();
  const Breaker::Pass pass = breaker.admit(kind);
  if (pass == Breaker::Pass::refused) {
    for (ItemResult& result : out) result = {.code = StatusCode::unavailable};
    const BreakerState state = breaker.state();
    return {.status =
                Status(StatusCode::unavailable,
                       fmt::format("{}: the store kept failing; next try in {:.1f} s", call,
                                   std::max(0.0, to_seconds(state.next_probe - clock_.now()))))};
  }
  CallOutcome outcome;
  {
    const TimePoint limit = clock_.now() + options_.hang_limit;
    const TimePoint overdue =
        options.deadline < limit ? options.deadline + options_.hang_slack : limit;
    const Entry entry(*this, {&breaker, kind, call, overdue});
    // What throws must report too, or there would be no further probe.
    outcome = hitide::guarded(carry_out);
  }
  const Breaker::Report report = judge(outcome, out, options);
  if (report.verdict == Breaker::Verdict::bad) {
    note_failure(breaker, outcome.status.ok()
                              ? fmt::format("{}: most objects were unavailable", call)
                              : std::string(outcome.status.message()));
  }
  breaker.report(kind, pass, report);
  return outcome;
}

template <typename Item>
void BreakerStore::note_quarantine(const CallOutcome& outcome, std::span<const Item> items) {
  if (outcome.buffers_busy_until <= clock_.now()) return;
  std::uint64_t bytes = 0;
  for (const Item& item : items) {
    for (const auto buffer : item.buffers) bytes += buffer.size();
  }
  reads_.quarantine(bytes, outcome.buffers_busy_until);
}

CallOutcome BreakerStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                 const CallOptions& options) {
  return guarded(reads_, Breaker::Kind::query, "exists", out, options,
                 [&] { return inner_->exists(keys, out, options); });
}

CallOutcome BreakerStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                              const CallOptions& options) {
  CallOutcome outcome = guarded(reads_, Breaker::Kind::move, "get", out, options,
                                [&] { return inner_->get(items, out, options); });
  note_quarantine(outcome, items);
  return outcome;
}

CallOutcome BreakerStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                              const CallOptions& options) {
  // While reads are refused a put may be the probe that ends it.
  Breaker& breaker = reads_.state().open ? reads_ : writes_;
  CallOutcome outcome = guarded(breaker, Breaker::Kind::move, "put", out, options,
                                [&] { return inner_->put(items, out, options); });
  note_quarantine(outcome, items);
  return outcome;
}

CallOutcome BreakerStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                 const CallOptions& options) {
  return guarded(reads_, Breaker::Kind::query, "remove", out, options,
                 [&] { return inner_->remove(keys, out, options); });
}

BreakerState BreakerStore::state() const {
  note_overdue();
  BreakerState state = reads_.state();
  const BreakerState writes = writes_.state();
  if (!state.open && writes.open) {
    state.open = true;
    state.next_probe = writes.next_probe;
  }
  state.opened += writes.opened;
  state.refused += writes.refused;
  return state;
}

StoreStats BreakerStore::stats() const {
  StoreStats stats = inner_->stats();
  const BreakerState state = this->state();
  stats.outages = state.opened;
  stats.refused = state.refused;
  return stats;
}

Status BreakerStore::health() const {
  note_overdue();
  const BreakerState reads = reads_.state();
  const BreakerState writes = writes_.state();
  if (!reads.open && !writes.open) return inner_->health();
  const TimePoint next = reads.open ? reads.next_probe : writes.next_probe;
  const MutexLock lock(failure_mutex_);
  return Status(StatusCode::unavailable,
                fmt::format("{} fail ({}); next try in {:.1f} s", reads.open ? "calls" : "puts",
                            reads.open ? last_read_failure_ : last_write_failure_,
                            std::max(0.0, to_seconds(next - clock_.now()))));
}

Status BreakerStore::register_memory(const MemoryRegion& region) {
  HITIDE_RETURN_IF_ERROR(inner_->register_memory(region));
  const MutexLock lock(memory_mutex_);
  Registered& entry = registered_[region.bytes.data()];
  if (entry.count++ == 0) {
    entry.bytes = region.bytes.size();
    registered_bytes_ += entry.bytes;
  }
  reads_.set_memory_bytes(registered_bytes_);
  return {};
}

Status BreakerStore::unregister_memory(std::span<std::byte> bytes) {
  HITIDE_RETURN_IF_ERROR(inner_->unregister_memory(bytes));
  const MutexLock lock(memory_mutex_);
  const auto entry = registered_.find(bytes.data());
  if (entry != registered_.end() && --entry->second.count == 0) {
    registered_bytes_ -= entry->second.bytes;
    registered_.erase(entry);
  }
  reads_.set_memory_bytes(registered_bytes_);
  return {};
}

}  // namespace hitide
