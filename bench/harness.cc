#include "bench/harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hitide::bench {
namespace {

std::string to_text(const std::optional<Target>& target) {
  if (!target) return "";
  return fmt::format("{} {}", target->kind == Target::Kind::at_most ? "<=" : ">=", target->ratio);
}

bool meets(const std::optional<Target>& target, double ratio) {
  if (!target) return true;
  return target->kind == Target::Kind::at_most ? ratio <= target->ratio : ratio >= target->ratio;
}

// Four digits that count.
std::string number(double value) {
  const double size = std::abs(value);
  const int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double median_deviation(std::vector<double> values) {
  const double middle = median(values);
  for (double& value : values) value = std::abs(value - middle);
  return median(std::move(values));
}

Status measure_checked(int warm_up, int pairs, const Measurement& ours,
                       const Measurement& reference, Pairs& out) {
  for (int i = 0; i < warm_up + pairs; ++i) {
    double first = 0.0;
    double second = 0.0;
    HITIDE_RETURN_IF_ERROR(ours(first));
    HITIDE_RETURN_IF_ERROR(reference(second));
    if (i < warm_up) continue;
    out.ours.push_back(first);
    out.reference.push_back(second);
  }
  return ok_status();
}

void Report::print_head() const {
  fmt::print("{:<26} {:>10} {:>10} {:<7} {:>7} {:>6}  {:<8} {:<6} {}\n", "row", "ours", "reference",
             "unit", "ratio", "+-", "target", "", "");
  std::fflush(stdout);
}

void Report::add(const Row& row) {
  std::vector<double> ratios(row.pairs.ours.size());
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    ratios[i] = row.pairs.ours[i] / row.pairs.reference[i];
  }
  Line line{.name = row.name, .unit = row.unit, .target = to_text(row.target)};
  line.ours = median(row.pairs.ours);
  line.reference = median(row.pairs.reference);
  line.ratio = median(ratios);
  line.ok = meets(row.target, line.ratio);
  const char* const verdict = !row.target ? "" : line.ok ? "ok" : "MISSED";
  fmt::print("{:<26} {:>10} {:>10} {:<7} {:>7} {:>6}  {:<8} {:<6} {}\n", line.name,
             number(line.ours), number(line.reference), line.unit, number(line.ratio),
             number(median_deviation(ratios)), line.target, verdict, row.note);
  std::fflush(stdout);
  rows_.push_back(std::move(line));
}

std::string Report::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Line& row : rows_) {
    list.push_back({{"name", row.name},
                    {"ours", row.ours},
                    {"reference", row.reference},
                    {"unit", row.unit},
                    {"ratio", row.ratio},
                    {"target", row.target.empty() ? nlohmann::ordered_json(nullptr)
                                                  : nlohmann::ordered_json(row.target)},
                    {"ok", row.ok}});
  }
  return list.dump(2) + "\n";
}

std::vector<std::string> Report::missed() const {
  std::vector<std::string> names;
  for (const Line& row : rows_) {
    if (!row.ok) names.push_back(row.name);
  }
  return names;
}

}  // namespace hitide::bench
