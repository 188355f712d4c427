// Who may ask for what: the one place where keys are compared.
//
//             no key set            --api-key          --admin-api-key    both
//   anyone    open                  open               open               open
//   user      open                  either key         open               either key
//   admin     on loopback only      the key            the admin key      the admin key
//
// Threading: const after construction; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/openai_types.h"

namespace hitide {

enum class Access {
  anyone,  // probes: /health, /metrics
  user,    // what asks the model or reads
  admin,   // what changes the server's state for everybody
};

class ApiKeys {
 public:
  // Empty: no such key. `loopback`: only this machine can reach the address that is served.
  ApiKeys(std::string api_key, std::string admin_api_key, bool loopback)
      : api_key_(std::move(api_key)),
        admin_api_key_(std::move(admin_api_key)),
        loopback_(loopback) {}

  // Nothing: go on. Else 401 (no valid key; to be sent with WWW-Authenticate: Bearer) or 403 (the
  // address is off here, whatever the key). `authorization` is the header's value, empty when it
  // was not sent. The time taken depends on the length of what was sent, not on how it differs.
  std::optional<ApiError> refusal(Access access, std::string_view authorization) const;

 private:
  const std::string api_key_;
  const std::string admin_api_key_;
  const bool loopback_;
};

}  // namespace hitide
