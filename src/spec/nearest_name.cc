#include "spec/nearest_name.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace hitide {
namespace {

constexpr std::size_t kNameBytesMax = 100;  // of a name that is compared at all
constexpr std::size_t kDistanceMax = 4;

char folded(char c) {
  if (c == '_') return '-';
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between beginnings of a and of b: two back, one back, this one.
  std::vector<std::size_t> older(b.size() + 1), old(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) now[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    older.swap(old);
    old.swap(now);
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      now[j] = std::min({old[j] + 1, now[j - 1] + 1, old[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
          folded(a[i - 2]) == folded(b[j - 1])) {
        now[j] = std::min(now[j], older[j - 2] + 1);
      }
    }
  }
  return now[b.size()];
}

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> names) {
  if (name.size() > kNameBytesMax) return {};
  std::string_view nearest;
  std::size_t least = std::min(kDistanceMax, std::max<std::size_t>(1, name.size() / 3)) + 1;
  for (const std::string_view known : names) {
    const std::size_t distance = edit_distance(name, known);
    if (distance < least) {
      least = distance;
      nearest = known;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> names) {
  const std::string_view nearest = nearest_name(name, names);
  return nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest);
}

}  // namespace hitide
