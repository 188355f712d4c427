#include "replay/trace.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/random.h"

namespace hitide {
namespace {

constexpr std::uint32_t kBytesPerToken = 4;
constexpr std::uint64_t kPromptTokensMax = 1u << 24;
constexpr std::int64_t kMilliseconds = 1'000'000;
constexpr std::int64_t kMicroseconds = 1'000;
constexpr std::int64_t kTimeMax = std::int64_t{1} << 53;  // beyond it a double loses whole units

Status wrong(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

Result<Duration> time_of(const nlohmann::json& json, std::int64_t unit_ns) {
  const auto found = json.find("timestamp");
  if (found == json.end() || !found->is_number()) return wrong("'timestamp' is not a number");
  const double value = found->get<double>();
  // A stamp in microseconds since 1970 has nanoseconds that fit as well.
  if (!(value >= 0.0 && value < static_cast<double>(kTimeMax) &&
        value < 9.0e18 / static_cast<double>(unit_ns))) {
    return wrong(fmt::format("'timestamp' {} is out of range", value));
  }
  return Duration(static_cast<std::int64_t>(value) * unit_ns);
}

Status read_blocks(const nlohmann::json& json, std::uint32_t block_tokens, TraceRequest& request) {
  const auto length = json.find("input_length");
  if (length == json.end() || !length->is_number_unsigned()) {
    return wrong("'input_length' is not a whole number");
  }
  const std::uint64_t tokens = length->get<std::uint64_t>();
  if (tokens < 1 || tokens > kPromptTokensMax) {
    return wrong(fmt::format("'input_length' {} is not in 1..{}", tokens, kPromptTokensMax));
  }
  const nlohmann::json& ids = json.at("hash_ids");
  if (!ids.is_array()) return wrong("'hash_ids' is not a list");
  const std::uint64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  if (ids.size() != blocks) {
    return wrong(
        fmt::format("{} hash_ids, but {} tokens are {} blocks of {}; the trace's blocks "
                    "may have another size: --block-tokens",
                    ids.size(), tokens, blocks, block_tokens));
  }
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_unsigned()) return wrong("'hash_ids' has what is not a number >= 0");
    request.blocks.push_back(id.get<std::uint64_t>());
  }
  request.tokens = static_cast<std::uint32_t>(tokens);
  return {};
}

Status read_text(const nlohmann::json& json, TraceRequest& request) {
  const nlohmann::json& input = json.at("input");
  if (!input.is_string()) return wrong("'input' is not a text");
  request.text = input.get<std::string>();
  const std::uint64_t tokens = (request.text.size() + kBytesPerToken - 1) / kBytesPerToken;
  if (tokens < 1 || tokens > kPromptTokensMax) {
    return wrong(fmt::format("'input' has {} bytes, not 1..{}", request.text.size(),
                             kPromptTokensMax * kBytesPerToken));
  }
  request.tokens = static_cast<std::uint32_t>(tokens);
  return {};
}

// What a line is; all lines of a trace are of the kind of the first.
Status read_line(std::string_view line, std::uint32_t block_tokens, Trace& trace) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return wrong("not a JSON object");
  const bool blocks = json.contains("hash_ids");
  if (!blocks && !json.contains("input")) return wrong("neither 'hash_ids' nor 'input' in it");
  if (trace.requests.empty()) {
    trace.block_tokens = blocks ? block_tokens : 0;
  } else if (blocks != (trace.block_tokens > 0)) {
    return wrong("the lines before are of the other kind ('hash_ids' or 'input')");
  }
  TraceRequest request;
  HITIDE_ASSIGN_OR_RETURN(request.at, time_of(json, blocks ? kMilliseconds : kMicroseconds));
  HITIDE_RETURN_IF_ERROR(blocks ? read_blocks(json, block_tokens, request)
                                : read_text(json, request));
  trace.requests.push_back(std::move(request));
  return {};
}

}  // namespace

Result<Trace> parse_trace(std::string_view lines, std::uint32_t block_tokens) {
  Trace trace;
  std::size_t number = 0;
  try {
    while (!lines.empty()) {
      ++number;
      const std::size_t end = std::min(lines.find('\n'), lines.size());
      const std::string_view line = lines.substr(0, end);
      lines.remove_prefix(std::min(end + 1, lines.size()));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const Status status = read_line(line, block_tokens, trace);
      if (!status.ok()) return status.with_context(fmt::format("line {}", number));
    }
  } catch (const std::exception& error) {
    return wrong(fmt::format("line {}: {}", number, error.what()));
  }
  if (trace.requests.empty()) return wrong("there is no request in it");
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.at < b.at; });
  const Duration first = trace.requests.front().at;
  for (TraceRequest& request : trace.requests) request.at -= first;
  return trace;
}

void prompt_tokens(const Trace& trace, const TraceRequest& request, std::vector<TokenId>& out) {
  out.clear();
  out.reserve(request.tokens);
  if (trace.block_tokens == 0) {
    for (std::size_t at = 0; at < request.text.size(); at += kBytesPerToken) {
      std::uint32_t token = 0;
      const std::size_t end = std::min(request.text.size(), at + kBytesPerToken);
      for (std::size_t i = at; i < end; ++i) {
        token = token << 8 | static_cast<unsigned char>(request.text[i]);
      }
      // One bit less than four bytes have: ids are not negative. Texts that differ in that bit of
      // a byte above 127 alone are the price.
      out.push_back(static_cast<TokenId>(token & 0x7fffffffu));
    }
    return;
  }
  for (const std::uint64_t block : request.blocks) {
    Random random(Random(block).next());
    for (std::uint32_t i = 0; i < trace.block_tokens && out.size() < request.tokens; ++i) {
      out.push_back(static_cast<TokenId>(random.next() >> 33));
    }
  }
}

}  // namespace hitide
