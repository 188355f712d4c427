#include "bytes_text.h"

#include <iterator>

#include <fmt/format.h>

namespace hitide::cli {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::uint64_t kUnit = 1024;
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kUnit && unit + 1 < std::size(kNames)) {
    value /= kUnit;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kNames[unit]);
}

}  // namespace hitide::cli
