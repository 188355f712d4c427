#include "base/log.h"

#include <map>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/mutex.h"

namespace hitide {
namespace {

struct Limit {
  TimePoint next{};
  std::uint64_t suppressed = 0;
};

struct LogState {
  Mutex mutex;
  std::shared_ptr<spdlog::logger> logger;
  std::function<void(LogLevel, std::string_view)> sink;
  LogLevel level = LogLevel::info;
  std::map<std::string, Limit, std::less<>> limits;
};

LogState& state() {
  // Never destroyed: threads may log while the program ends.
  static LogState* const instance = [] {
    auto* made = new LogState;
    made->logger = std::make_shared<spdlog::logger>(
        "hitide", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    made->logger->set_level(spdlog::level::trace);
    made->logger->flush_on(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

bool needs_quotes(std::string_view value) {
  return value.empty() || value.find_first_of(" \"=\n\t") != std::string_view::npos;
}

void append_value(std::string& line, std::string_view value) {
  if (!needs_quotes(value)) {
    line += value;
    return;
  }
  line += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') line += '\\';
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  line += '"';
}

void write(LogLevel level, std::string_view event, LogFields fields, std::uint64_t suppressed) {
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    append_value(line, field.value);
  }
  if (suppressed > 0) line += fmt::format(" suppressed={}", suppressed);
  LogState& s = state();
  const MutexLock lock(s.mutex);
  if (level < s.level) return;
  if (s.sink) {
    s.sink(level, line);
  } else {
    s.logger->log(spdlog_level(level), "{}", line);
  }
}

}  // namespace

void log_event(LogLevel level, std::string_view event, LogFields fields) {
  write(level, event, fields, 0);
}

void log_limited(LogLevel level, std::string_view event, Duration interval, LogFields fields) {
  std::uint64_t suppressed = 0;
  {
    LogState& s = state();
    const TimePoint now = std::chrono::steady_clock::now();
    const MutexLock lock(s.mutex);
    auto it = s.limits.find(event);
    if (it == s.limits.end()) it = s.limits.emplace(std::string(event), Limit{}).first;
    if (now < it->second.next) {
      ++it->second.suppressed;
      return;
    }
    it->second.next = now + interval;
    suppressed = std::exchange(it->second.suppressed, 0);
  }
  write(level, event, fields, suppressed);
}

void set_log_level(LogLevel level) {
  const MutexLock lock(state().mutex);
  state().level = level;
}

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  const MutexLock lock(state().mutex);
  state().sink = std::move(sink);
}

}  // namespace hitide
