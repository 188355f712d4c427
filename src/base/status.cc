#include <hitide/status.h>

#include <cstdio>

#include <hitide/result.h>

namespace hitide {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid_argument";
    case StatusCode::failed_precondition:
      return "failed_precondition";
    case StatusCode::not_found:
      return "not_found";
    case StatusCode::already_exists:
      return "already_exists";
    case StatusCode::resource_exhausted:
      return "resource_exhausted";
    case StatusCode::unavailable:
      return "unavailable";
    case StatusCode::deadline_exceeded:
      return "deadline_exceeded";
    case StatusCode::cancelled:
      return "cancelled";
    case StatusCode::data_loss:
      return "data_loss";
    case StatusCode::unimplemented:
      return "unimplemented";
    case StatusCode::internal:
      return "internal";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message) {
  if (code != StatusCode::ok) state_ = std::make_unique<State>(State{code, std::move(message)});
}

Status::Status(const Status& other) {
  if (other.state_) state_ = std::make_unique<State>(*other.state_);
}

Status& Status::operator=(const Status& other) {
  if (this != &other) state_ = other.state_ ? std::make_unique<State>(*other.state_) : nullptr;
  return *this;
}

std::string_view Status::message() const {
  return state_ ? std::string_view(state_->message) : std::string_view();
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text(hitide::to_string(state_->code));
  text += ": ";
  text += state_->message;
  return text;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return {};
  std::string text(context);
  text += ": ";
  text += state_->message;
  return Status(state_->code, std::move(text));
}

namespace result_internal {
void die_on_bad_access(const Status& status) {
  std::fprintf(stderr,  // tidy: allow-print the last words before the end
               "hitide: a Result without a value was read: %s\n", status.to_string().c_str());
  std::abort();
}
}  // namespace result_internal

}  // namespace hitide
