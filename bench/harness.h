// The measuring half of hitide_bench: pairs of measurements, what is made of them, and the report.
//
// A row compares two ways of doing the same work in one run: ours, reference, ours, reference, ...
// so that whatever disturbs the machine disturbs both. Its ratio is the median of the pairs'
// ratios; `ours` and `reference` are the medians of each side. A ratio is therefore not exactly the
// quotient of the two medians.
//
// Threading: everything here belongs to the thread of main().
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <hitide/status.h>

namespace hitide::bench {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The value must be computed, and nothing known about it stays known.
template <typename T>
inline void keep(T& value) {
  asm volatile("" : "+m"(value) : : "memory");
}

// One entry of each side per pair, in the row's unit.
struct Pairs {
  std::vector<double> ours;
  std::vector<double> reference;
};

// All of them take a copy, and at least one value.
double median(std::vector<double> values);
// Median of the distances from the median.
double median_deviation(std::vector<double> values);
// The smallest value that at least `share` of all values do not exceed; share in (0, 1].
double quantile(std::vector<double> values, double share);

struct Target {
  enum class Kind { at_most, at_least } kind = Kind::at_most;
  double ratio = 1.0;
};
inline Target at_most(double ratio) { return {Target::Kind::at_most, ratio}; }
inline Target at_least(double ratio) { return {Target::Kind::at_least, ratio}; }

struct Row {
  std::string name;
  std::string unit;  // of both sides, for example "us" or "MB/s"
  Pairs pairs = {};
  std::optional<Target> target = {};  // none: for information
  std::string note = {};              // for people; only in the table
};

// Calls `ours` and `reference` in turn, `warm_up` times for nothing and then `pairs` times. Each
// answers its own measurement in the row's unit.
template <typename Ours, typename Reference>
Pairs measure(int warm_up, int pairs, Ours&& ours, Reference&& reference) {
  Pairs out;
  for (int i = 0; i < warm_up + pairs; ++i) {
    const double first = ours();
    const double second = reference();
    if (i < warm_up) continue;
    out.ours.push_back(first);
    out.reference.push_back(second);
  }
  return out;
}

// As above where a measurement can fail: the first failure ends it.
using Measurement = std::function<Status(double& value)>;
Status measure_checked(int warm_up, int pairs, const Measurement& ours,
                       const Measurement& reference, Pairs& out);

class Report {
 public:
  void print_head() const;
  // Prints the row and keeps it.
  void add(const Row& row);
  // A JSON list of {name, ours, reference, unit, ratio, target, ok}; target is "<= 1.5", ">= 0.9"
  // or null where the row is for information.
  std::string json() const;
  std::size_t row_count() const { return rows_.size(); }
  std::vector<std::string> missed() const;

 private:
  struct Line {
    std::string name, unit, target;
    double ours = 0.0, reference = 0.0, ratio = 0.0;
    bool ok = true;
  };
  std::vector<Line> rows_;
};

struct Settings {
  std::string model_path;       // empty: no model
  std::string scratch;          // directory for files; the same disk as what it is compared with
  std::string mooncake_python;  // an interpreter with the Mooncake package
};

// One piece of work that reports one or several rows.
struct Case {
  std::vector<std::string> rows;  // their names, all of them
  bool needs_model = false;
  std::function<Status(const Settings& settings, Report& report)> run;
};

}  // namespace hitide::bench
