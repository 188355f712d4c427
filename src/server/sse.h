// Server-sent events as OpenAI's streams use them: one line of data each.
#pragma once

#include <string>
#include <string_view>

namespace hitide {

// `data` has no line break (JSON written without indentation).
inline std::string sse_event(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

inline std::string sse_done() { return sse_event("[DONE]"); }

}  // namespace hitide
