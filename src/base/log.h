// Structured logging: one line, an event name, and key=value fields. Rate limited per event where
// asked, so that a failing store cannot fill a disk with lines.
//
//   log_warning("store_open_failed", {{"path", path}, {"error", status.to_string()}});
//
// Threading: any thread. Lines go to standard error, or where set_log_sink() says.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include <fmt/format.h>  // tidy: allow-include fields take anything fmt can format

#include <hitide/types.h>

namespace hitide {

enum class LogLevel { debug, info, warning, error };

struct LogField {
  template <typename T>
  LogField(std::string_view field_key, const T& field_value)
      : key(field_key), value(fmt::format("{}", field_value)) {}
  std::string_view key;
  std::string value;
};
using LogFields = std::initializer_list<LogField>;

void log_event(LogLevel level, std::string_view event, LogFields fields);
inline void log_info(std::string_view event, LogFields fields = {}) {
  log_event(LogLevel::info, event, fields);
}
inline void log_warning(std::string_view event, LogFields fields = {}) {
  log_event(LogLevel::warning, event, fields);
}
inline void log_error(std::string_view event, LogFields fields = {}) {
  log_event(LogLevel::error, event, fields);
}

// At most one line of this event every `interval`; the next line says how many were left out.
void log_limited(LogLevel level, std::string_view event, Duration interval, LogFields fields);

void set_log_level(LogLevel level);
// Receives the formatted line without its time. An empty function restores standard error.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace hitide
