#include "storage/breaker.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {

Breaker::Pass Breaker::admit() {
  const std::lock_guard lock(mutex_);
  if (!state_.open) return Pass::call;
  if (!probing_ && clock_.now() >= state_.next_probe) {
    probing_ = true;
    return Pass::probe;
  }
  ++state_.refused;
  return Pass::refused;
}

void Breaker::report(Pass pass, Verdict verdict) {
  const std::lock_guard lock(mutex_);
  if (pass == Pass::probe) {
    probing_ = false;
    if (verdict == Verdict::good) {
      state_.open = false;
      failures_ = 0;
      log_info("storage_breaker_closed");
    } else if (verdict == Verdict::bad) {
      pause_ = std::min(pause_ * 2, options_.pause_max);
      state_.next_probe = clock_.now() + pause_;
    }
    return;
  }
  if (state_.open || verdict == Verdict::unknown) return;
  failures_ = verdict == Verdict::good ? 0 : failures_ + 1;
  if (failures_ < options_.failures_to_open) return;
  state_.open = true;
  ++state_.opened;
  pause_ = options_.pause_first;
  state_.next_probe = clock_.now() + pause_;
  log_warning("storage_breaker_opened",
              {{"failures", failures_}, {"next_probe_s", to_seconds(pause_)}});
}

BreakerState Breaker::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

BreakerStore::BreakerStore(std::unique_ptr<ObjectStore> inner, const BreakerOptions& options,
                           const Clock& clock)
    : inner_(std::move(inner)), clock_(clock), breaker_(options, clock) {}

Breaker::Verdict BreakerStore::judge(const CallOutcome& outcome, std::span<const ItemResult> out,
                                     const CallOptions& options) const {
  using Verdict = Breaker::Verdict;
  switch (outcome.status.code()) {
    case StatusCode::ok:
      break;
    case StatusCode::unavailable:
    case StatusCode::internal:
      return Verdict::bad;
    case StatusCode::deadline_exceeded:
      // The caller's time was up, or the store's own limit was.
      return clock_.now() >= options.deadline ? Verdict::unknown : Verdict::bad;
    default:
      return Verdict::unknown;
  }
  const auto away = std::count_if(out.begin(), out.end(), [](const ItemResult& result) {
    return result.code == StatusCode::unavailable;
  });
  return static_cast<std::size_t>(away) * 2 > out.size() ? Verdict::bad : Verdict::good;
}

template <typename Do>
CallOutcome BreakerStore::guarded(std::string_view call, std::span<ItemResult> out,
                                  const CallOptions& options, const Do& carry_out) {
  if (out.empty()) return carry_out();  // answered without I/O: it proves nothing
  const Breaker::Pass pass = breaker_.admit();
  if (pass == Breaker::Pass::refused) {
    for (ItemResult& result : out) result = {.code = StatusCode::unavailable};
    const BreakerState state = breaker_.state();
    return {.status =
                Status(StatusCode::unavailable,
                       fmt::format("{}: the store kept failing; next try in {:.1f} s", call,
                                   std::max(0.0, to_seconds(state.next_probe - clock_.now()))))};
  }
  CallOutcome outcome = carry_out();
  breaker_.report(pass, judge(outcome, out, options));
  return outcome;
}

CallOutcome BreakerStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                 const CallOptions& options) {
  return guarded("exists", out, options, [&] { return inner_->exists(keys, out, options); });
}

CallOutcome BreakerStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                              const CallOptions& options) {
  return guarded("get", out, options, [&] { return inner_->get(items, out, options); });
}

CallOutcome BreakerStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                              const CallOptions& options) {
  return guarded("put", out, options, [&] { return inner_->put(items, out, options); });
}

CallOutcome BreakerStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                 const CallOptions& options) {
  return guarded("remove", out, options, [&] { return inner_->remove(keys, out, options); });
}

}  // namespace hitide
