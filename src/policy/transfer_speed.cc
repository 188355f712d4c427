#include "policy/transfer_speed.h"

#include <algorithm>
#include <chrono>

namespace hitide {
namespace {

// What is left of an older measurement with each newer one.
constexpr double kKept = 0.7;
// Below this relative spread of sizes one cannot tell a time per move from a time per byte.
constexpr double kSpreadMin = 0.01;

double to_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

Duration seconds(double value) {
  constexpr double kMost = 1e6;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(value, kMost)));
}

}  // namespace

void TransferSpeed::note(std::uint64_t bytes, Duration time, TimePoint now) {
  if (bytes == 0 || time < Duration::zero()) return;
  const double x = static_cast<double>(bytes);
  const double y = to_seconds(time);
  weight_ = kKept * weight_ + 1.0;
  x_ = kKept * x_ + x;
  y_ = kKept * y_ + y;
  xx_ = kKept * xx_ + x * x;
  xy_ = kKept * xy_ + x * y;
  measured_ = now;
}

TransferSpeed::Fit TransferSpeed::fit() const {
  if (!known()) return {};
  const Fit by_bytes{0.0, y_ / x_};
  const double spread = weight_ * xx_ - x_ * x_;
  if (spread < kSpreadMin * weight_ * xx_) return by_bytes;
  const double byte_s = (weight_ * xy_ - x_ * y_) / spread;
  if (byte_s <= 0.0) return {y_ / weight_, 0.0};
  const double latency_s = (y_ - byte_s * x_) / weight_;
  if (latency_s < 0.0) return by_bytes;
  return {latency_s, byte_s};
}

Duration TransferSpeed::predict(std::uint64_t bytes) const {
  if (!known()) return Duration::max();
  const Fit fitted = fit();
  return seconds(fitted.latency_s + fitted.byte_s * static_cast<double>(bytes));
}

Duration TransferSpeed::latency() const { return seconds(fit().latency_s); }

double TransferSpeed::bytes_per_s() const {
  const double byte_s = fit().byte_s;
  return byte_s > 0.0 ? 1.0 / byte_s : 0.0;
}

LoadCost load_cost(std::uint32_t tokens, std::uint64_t bytes, const TransferSpeed& first,
                   const TransferSpeed* second, const PrefillSpeed& prefill) {
  if (!first.known() || !prefill.known()) return {};
  LoadCost cost{.known = true, .load = first.predict(bytes), .recompute = prefill.predict(tokens)};
  if (second != nullptr && second->known()) cost.load += second->predict(bytes);
  return cost;
}

}  // namespace hitide
