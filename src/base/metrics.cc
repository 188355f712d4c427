#include "base/metrics.h"

#include <algorithm>

#include <fmt/format.h>

namespace hitide {

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()),
      counts_(std::make_unique<std::atomic<std::uint64_t>[]>(bounds.size() + 1)) {}

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_micro_.fetch_add(static_cast<std::uint64_t>(std::max(value, 0.0) * 1e6),
                       std::memory_order_relaxed);
}

std::vector<std::uint64_t> Histogram::counts() const {
  std::vector<std::uint64_t> out(bounds_.size() + 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = counts_[i].load(std::memory_order_relaxed);
  }
  return out;
}

double Histogram::sum() const {
  return static_cast<double>(sum_micro_.load(std::memory_order_relaxed)) / 1e6;
}

void MetricsText::header(std::string_view name, std::string_view help, std::string_view type) {
  if (name == last_name_) return;
  last_name_ = std::string(name);
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsText::sample(std::string_view name, std::string_view labels, double value) {
  text_ += name;
  if (!labels.empty()) text_ += fmt::format("{{{}}}", labels);
  text_ += fmt::format(" {}\n", value);
}

void MetricsText::counter(std::string_view name, std::string_view help, double value,
                          std::string_view labels) {
  header(name, help, "counter");
  sample(name, labels, value);
}

void MetricsText::gauge(std::string_view name, std::string_view help, double value,
                        std::string_view labels) {
  header(name, help, "gauge");
  sample(name, labels, value);
}

void MetricsText::histogram(std::string_view name, std::string_view help,
                            const Histogram& histogram, std::string_view labels) {
  header(name, help, "histogram");
  const std::vector<std::uint64_t> counts = histogram.counts();
  std::uint64_t cumulative = 0;
  const std::string bucket = std::string(name) + "_bucket";
  for (std::size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    const std::string bound =
        i < histogram.bounds().size() ? fmt::format("{}", histogram.bounds()[i]) : "+Inf";
    const std::string le = label("le", bound);
    sample(bucket, labels.empty() ? le : fmt::format("{},{}", labels, le),
           static_cast<double>(cumulative));
  }
  sample(std::string(name) + "_sum", labels, histogram.sum());
  sample(std::string(name) + "_count", labels, static_cast<double>(cumulative));
}

std::string MetricsText::label(std::string_view key, std::string_view value) {
  std::string out(key);
  out += "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

}  // namespace hitide
