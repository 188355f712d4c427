// Result<T>: a value or the Status that says why there is none. Must be looked at.
//
// Threading: a value, as T is. It owns what it holds.
#pragma once

#include <cstdlib>
#include <optional>
#include <utility>

#include <hitide/status.h>

namespace hitide {

namespace result_internal {
// Ends the program with the status on standard error: value() was called on a failure.
[[noreturn]] void die_on_bad_access(const Status& status);
}  // namespace result_internal

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    if (status_.ok())
      status_ = Status(StatusCode::internal, "a Result was built from an ok Status");
  }
  Result(StatusCode code, std::string message) : status_(code, std::move(message)) {}

  bool ok() const { return value_.has_value(); }
  // ok_status() when there is a value.
  const Status& status() const { return status_; }

  // Requires ok(); ends the program otherwise.
  T& value() & {
    check();
    return *value_;
  }
  const T& value() const& {
    check();
    return *value_;
  }
  T value() && {
    check();
    return std::move(*value_);
  }
  T value_or(T fallback) && { return ok() ? std::move(*value_) : std::move(fallback); }
  T* operator->() {
    check();
    return &*value_;
  }
  const T* operator->() const {
    check();
    return &*value_;
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  void check() const {
    if (!value_) result_internal::die_on_bad_access(status_);
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace hitide

#define HITIDE_CONCAT_INNER(a, b) a##b
#define HITIDE_CONCAT(a, b) HITIDE_CONCAT_INNER(a, b)
// HITIDE_ASSIGN_OR_RETURN(auto x, f()): x = the value, or returns f's failure to the caller.
#define HITIDE_ASSIGN_OR_RETURN(declaration, expression) \
  HITIDE_ASSIGN_OR_RETURN_IMPL(HITIDE_CONCAT(hitide_result_, __LINE__), declaration, expression)
#define HITIDE_ASSIGN_OR_RETURN_IMPL(name, declaration, expression) \
  auto name = (expression);                                         \
  if (!name.ok()) return name.status();                             \
  declaration = std::move(name).value()
