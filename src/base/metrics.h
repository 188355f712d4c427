// Metrics cells: counters, gauges and histograms that threads may bump without a lock, and the
// Prometheus text they make.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hitide {

class Counter {
 public:
  // Relaxed: a count is read for people, and orders nothing.
  void add(std::uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Cumulative histogram over fixed upper bounds (ascending), plus +Inf.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  std::span<const double> bounds() const { return bounds_; }
  // Per bucket (not cumulative), one more than bounds.
  std::vector<std::uint64_t> counts() const;
  double sum() const;

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
  std::atomic<std::uint64_t> sum_micro_{0};  // millionths, so that it can be added atomically
};

inline constexpr double kSecondsBounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                            0.1,    0.3,    1,     3,     10,   30};

// Builds Prometheus text format 0.0.4. One HELP and TYPE line per name; labels are given as
// `key="value"` pairs, escaped by label().
class MetricsText {
 public:
  void counter(std::string_view name, std::string_view help, double value,
               std::string_view labels = {});
  void gauge(std::string_view name, std::string_view help, double value,
             std::string_view labels = {});
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram,
                 std::string_view labels = {});
  // Lines that another page has: none of its names may be on this one.
  void lines(std::string_view lines) { text_ += lines; }
  static std::string label(std::string_view key, std::string_view value);
  std::string text() && { return std::move(text_); }

 private:
  void header(std::string_view name, std::string_view help, std::string_view type);
  void sample(std::string_view name, std::string_view labels, double value);
  std::string text_;
  std::string last_name_;
};

}  // namespace hitide
