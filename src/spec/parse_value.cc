#include "spec/parse_value.h"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace hitide {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr double kKibi = 1024.0;
constexpr std::array<Unit, 13> kUnits = {{{"b", 1.0},
                                          {"k", 1e3},
                                          {"kb", 1e3},
                                          {"kib", kKibi},
                                          {"m", 1e6},
                                          {"mb", 1e6},
                                          {"mib", kKibi* kKibi},
                                          {"g", 1e9},
                                          {"gb", 1e9},
                                          {"gib", kKibi* kKibi* kKibi},
                                          {"t", 1e12},
                                          {"tb", 1e12},
                                          {"tib", kKibi* kKibi* kKibi* kKibi}}};
constexpr double kBytesMax = 9.2e18;  // below 2^63

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// At most 200 characters of what was given, so that a message stays one line.
std::string quoted(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 200)) {
    shown += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return "'" + shown + (text.size() > 200 ? "...'" : "'");
}

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

}  // namespace

Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t least, std::uint64_t most) {
  const std::string_view digits = trim(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = end == digits.data() + digits.size() && !digits.empty();
  if (!whole || error == std::errc::invalid_argument) {
    return refuse(fmt::format("{} is not a whole number in {}..{}", quoted(text), least, most));
  }
  if (error != std::errc() || value < least || value > most) {
    return refuse(fmt::format("{} is not in {}..{}", quoted(text), least, most));
  }
  return value;
}

Result<double> parse_number(std::string_view text, double least, double most) {
  const std::string_view digits = trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) {
    return refuse(fmt::format("{} is not a number in {}..{}", quoted(text), least, most));
  }
  if (value < least || value > most) {
    return refuse(fmt::format("{} is not in {}..{}", quoted(text), least, most));
  }
  return value;
}

Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t bare_unit) {
  const std::string_view trimmed = trim(text);
  double value = 0;
  const char* const last = trimmed.data() + trimmed.size();
  const auto [end, error] = std::from_chars(trimmed.data(), last, value);
  const Status bad = refuse(fmt::format(
      "{} is not a size; write a number >= 0, with a unit such as MB, GB or GiB", quoted(text)));
  if (error != std::errc() || !std::isfinite(value) || value < 0) return bad;
  const std::string_view unit_text = trim(std::string_view(end, std::size_t(last - end)));
  double unit = static_cast<double>(bare_unit);
  if (!unit_text.empty()) {
    std::string lower;
    for (const char c : unit_text) lower += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    unit = 0;
    for (const Unit& known : kUnits) {
      if (known.name == lower) unit = known.bytes;
    }
    if (unit == 0) return bad;
  }
  if (value * unit > kBytesMax) {
    return refuse(fmt::format("{} is more than {} bytes", quoted(text), kBytesMax));
  }
  return static_cast<std::uint64_t>(std::llround(value * unit));
}

std::string format_bytes(std::uint64_t bytes) {
  struct Step {
    std::uint64_t bytes;
    std::string_view name;
  };
  constexpr std::array<Step, 6> kSteps = {{{1ull << 40, "TiB"},
                                           {1'000'000'000'000ull, "TB"},
                                           {1ull << 30, "GiB"},
                                           {1'000'000'000ull, "GB"},
                                           {1ull << 20, "MiB"},
                                           {1'000'000ull, "MB"}}};
  if (bytes == 0) return "0";
  for (const Step& step : kSteps) {
    if (bytes >= step.bytes && bytes % (step.bytes / 4) == 0) {
      return fmt::format("{} {}", double(bytes) / double(step.bytes), step.name);
    }
  }
  return fmt::format("{}", bytes);
}

}  // namespace hitide
