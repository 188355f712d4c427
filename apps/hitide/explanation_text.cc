#include "explanation_text.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hitide::cli {
namespace {

struct Line {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::string text;
};

std::vector<Line> lines_of(const nlohmann::json& json) {
  std::vector<Line> lines;
  for (const auto& span : json.at("spans")) {
    lines.push_back({span.at("begin"), span.at("end"),
                     fmt::format("served from {}", span.at("tier").get<std::string>())});
  }
  for (const auto& span : json.at("misses")) {
    lines.push_back({span.at("begin"), span.at("end"),
                     fmt::format("computed: {} ({})", span.at("reason").get<std::string>(),
                                 span.at("meaning").get<std::string>())});
  }
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.begin < b.begin; });
  return lines;
}

}  // namespace

Result<std::string> explanation_text(const std::string& json) {
  try {
    const auto parsed = nlohmann::json::parse(json);
    std::string out = fmt::format(
        "request {} ({}): {} prompt tokens{}\n", parsed.at("id").get<std::string>(),
        parsed.at("label").get<std::string>(), parsed.at("prompt_tokens").get<std::uint32_t>(),
        parsed.at("complete").get<bool>() ? "" : ", still being admitted");
    for (const Line& line : lines_of(parsed)) {
      out += fmt::format("  tokens {:>7} to {:>7}  {:>7}  {}\n", line.begin, line.end,
                         line.end - line.begin, line.text);
    }
    for (const auto& decision : parsed.value("decisions", nlohmann::json::array())) {
      out += fmt::format(
          "  tokens {:>7} to {:>7} on {}: {:.1f} ms to load, {:.1f} ms to compute\n",
          decision.at("begin").get<std::uint32_t>(), decision.at("end").get<std::uint32_t>(),
          decision.at("tier").get<std::string>(), decision.at("load_ms").get<double>(),
          decision.at("recompute_ms").get<double>());
    }
    out += fmt::format("waited for storage {:.1f} ms, loaded for {:.1f} ms, saved {:.1f} ms\n",
                       parsed.at("storage_wait_ms").get<double>(),
                       parsed.at("load_ms").get<double>(), parsed.at("saved_ms").get<double>());
    return out;
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the answer is no explanation: {}", error.what()));
  }
}

}  // namespace hitide::cli
