#include "server/api_keys.h"

namespace hitide {
namespace {

// What follows "Bearer " (in any case); empty: the header says something else.
std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower != kScheme[i]) return {};
  }
  return authorization.substr(kScheme.size());
}

// `secret` is not empty.
bool equal_secrets(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^
                                        static_cast<unsigned char>(secret[i % secret.size()]));
  }
  return difference == 0;
}

ApiError refuse(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

}  // namespace

std::optional<ApiError> ApiKeys::refusal(Access access, std::string_view authorization) const {
  if (access == Access::anyone) return std::nullopt;
  const std::string_view given = bearer_of(authorization);
  const bool is_admin = !admin_api_key_.empty() && equal_secrets(given, admin_api_key_);
  const bool is_user = !api_key_.empty() && equal_secrets(given, api_key_);
  if (access == Access::user) {
    if (api_key_.empty() || is_user || is_admin) return std::nullopt;
    return refuse(401, "invalid_api_key",
                  "the header `Authorization: Bearer KEY` has no valid key");
  }
  if (!admin_api_key_.empty()) {
    if (is_admin) return std::nullopt;
    return refuse(401, "invalid_api_key",
                  "this address wants the key of --admin-api-key in the header `Authorization: "
                  "Bearer KEY`");
  }
  if (!api_key_.empty()) {
    if (is_user) return std::nullopt;
    return refuse(401, "invalid_api_key",
                  "the header `Authorization: Bearer KEY` has no valid key");
  }
  if (loopback_) return std::nullopt;
  return refuse(403, "admin_off",
                "this address is off, as the server can be reached from other machines and has no "
                "key: start it with --admin-api-key");
}

}  // namespace hitide
