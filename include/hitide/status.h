// Status: the outcome of an operation, which must be looked at.
//
// A miss is a value, never an error. Codes are few, and each fixes what the caller does; the
// message says what, which key or path, which value, which limit, and what to do about it.
//
// Threading: a Status is a value; one object must not be used by two threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hitide {

// What the caller should do is part of each code's meaning.
enum class StatusCode : std::uint8_t {
  ok = 0,
  invalid_argument,     // the call is wrong: fix it, do not retry
  failed_precondition,  // the object is in the wrong state (closed, not attached)
  not_found,            // the named thing does not exist; for pages: a miss
  already_exists,       // treat as done on a put
  resource_exhausted,   // evict, back off, or ask for less
  unavailable,          // the other side is away: retry later, count as a miss
  deadline_exceeded,    // the time was up: count as a miss
  cancelled,            // the caller took the request back
  data_loss,            // bytes do not verify: drop the page, count as a miss, alert
  unimplemented,        // this build or backend cannot do it
  internal,             // a bug: report it
};

// The code's own spelling, for example "not_found".
std::string_view to_string(StatusCode code);

// Success is one null pointer; a failure carries a code and a message.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const { return state_ ? state_->code : StatusCode::ok; }
  // Empty for ok. Lives as long as this Status.
  std::string_view message() const;
  // "code: message", or "ok".
  std::string to_string() const;
  // Returns the same failure with `context` and ": " in front of its message.
  Status with_context(std::string_view context) const;
  // The named way to drop a failure on purpose.
  void ignore() const {}

 private:
  struct State {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<State> state_;
};

inline Status ok_status() { return {}; }

}  // namespace hitide

// Returns the failure of `expression` to the caller.
#define HITIDE_RETURN_IF_ERROR(expression)                                      \
  do {                                                                          \
    if (::hitide::Status hitide_status_ = (expression); !hitide_status_.ok()) { \
      return hitide_status_;                                                    \
    }                                                                           \
  } while (false)
