#include "server/tenant.h"

#include <string>

#include <fmt/format.h>

namespace hitide {
namespace {

std::optional<ApiError> take_field(const std::string& from_header, const char* header,
                                   const char* field, std::optional<std::string>& value) {
  if (from_header.empty()) return std::nullopt;
  if (value && *value != from_header) {
    ApiError error;
    error.param = field;
    error.code = "invalid_value";
    error.message =
        fmt::format("'{}' is not what the header {} says; give one of them", field, header);
    return error;
  }
  value = from_header;
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> take_tenant(const RequestBody& body, GenerationRequest& request) {
  if (auto error =
          take_field(body.cache_salt, kCacheSaltHeader, "cache_salt", request.cache_salt)) {
    return error;
  }
  return take_field(body.extra_key, kAdapterHeader, "extra_key", request.extra_key);
}

}  // namespace hitide
