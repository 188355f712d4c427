#include "machine_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hitide::cli {

bool machine_fits(std::span<const MachineLine> lines) {
  return std::none_of(lines.begin(), lines.end(),
                      [](const MachineLine& line) { return line.state == MachineState::problem; });
}

std::string machine_text(std::span<const MachineLine> lines, bool all) {
  const auto fine = [](const MachineLine& line) { return line.state == MachineState::ok; };
  std::string out =
      all ? ""
          : fmt::format("machine: {} of {} ok\n", std::count_if(lines.begin(), lines.end(), fine),
                        lines.size());
  for (const MachineLine& line : lines) {
    if (!all && fine(line)) continue;
    out += fmt::format("{:<14} {:<8} {}\n", line.subject, to_string(line.state), line.found);
    if (!line.advice.empty()) out += fmt::format("{:<24}{}\n", "", line.advice);
  }
  return out;
}

std::string machine_json(std::span<const MachineLine> lines) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const MachineLine& line : lines) {
    out.push_back({{"subject", line.subject},
                   {"state", to_string(line.state)},
                   {"found", line.found},
                   {"advice", line.advice}});
  }
  return out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace hitide::cli
