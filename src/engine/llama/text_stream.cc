#include "engine/llama/text_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace hitide {
namespace {

struct Lead {
  std::size_t length = 0;          // of the character; 0: no character begins with this byte
  std::uint8_t second_min = 0x80;  // range of the second byte: no overlong forms, no surrogates,
  std::uint8_t second_max = 0xbf;  // nothing above U+10FFFF
};

Lead classify(std::uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xc2) return {};
  if (byte < 0xe0) return {.length = 2};
  if (byte < 0xf0) {
    return {.length = 3,
            .second_min = static_cast<std::uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            .second_max = static_cast<std::uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  if (byte < 0xf5) {
    return {.length = 4,
            .second_min = static_cast<std::uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
            .second_max = static_cast<std::uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
  }
  return {};
}

// Bytes from `at` that fit the character begun there, at most its length; 0 when none begins there.
std::size_t fitting(std::string_view text, std::size_t at, const Lead& lead) {
  if (lead.length == 0) return 0;
  std::size_t n = 1;
  while (n < lead.length && at + n < text.size()) {
    const auto byte = static_cast<std::uint8_t>(text[at + n]);
    const bool fits =
        n == 1 ? byte >= lead.second_min && byte <= lead.second_max : byte >= 0x80 && byte <= 0xbf;
    if (!fits) break;
    ++n;
  }
  return n;
}

}  // namespace

std::size_t incomplete_utf8_tail(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::size_t at = text.size() - back;
    const auto byte = static_cast<std::uint8_t>(text[at]);
    if ((byte & 0xc0) == 0x80) continue;  // not the first byte of a character
    const Lead lead = classify(byte);
    return lead.length > back && fitting(text, at, lead) == back ? back : 0;
  }
  return 0;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool replacing = false;
  for (std::size_t at = 0; at < text.size();) {
    const Lead lead = classify(static_cast<std::uint8_t>(text[at]));
    const std::size_t n = fitting(text, at, lead);
    if (n > 0 && n == lead.length) {
      out.append(text, at, n);
      at += n;
      replacing = false;
      continue;
    }
    if (!replacing) out += "\xef\xbf\xbd";
    replacing = true;
    ++at;
  }
  return out;
}

TextStream::TextStream(std::vector<std::string> stops, bool keep_stop)
    : stops_(std::move(stops)), keep_stop_(keep_stop) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

// Length of the longest end of pending_ that is a proper beginning of a stop string.
std::size_t TextStream::held_for_stops() const {
  std::size_t held = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) held = n;
    }
  }
  return held;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  pending_ += bytes;
  std::size_t stop_at = std::string::npos;
  std::size_t stop_bytes = 0;
  for (const std::string& stop : stops_) {
    const std::size_t at = pending_.find(stop);
    if (at >= stop_at) continue;
    stop_at = at;
    stop_bytes = stop.size();
  }
  if (stop_at != std::string::npos) {
    stopped_ = true;
    pending_.resize(stop_at + (keep_stop_ ? stop_bytes : 0));
    return valid_utf8(std::exchange(pending_, {}));
  }
  std::size_t sendable = pending_.size() - held_for_stops();
  sendable -= incomplete_utf8_tail(std::string_view(pending_).substr(0, sendable));
  std::string out = valid_utf8(std::string_view(pending_).substr(0, sendable));
  pending_.erase(0, sendable);
  return out;
}

std::string TextStream::finish() {
  if (stopped_) return {};
  return valid_utf8(std::exchange(pending_, {}));
}

}  // namespace hitide
