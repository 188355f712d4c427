// Adapter and cache salt of a request that come in its headers, as a proxy sets them.
#pragma once

#include <optional>

#include "engine/engine.h"
#include "server/openai_types.h"
#include "server/reply.h"

namespace hitide {

inline constexpr char kCacheSaltHeader[] = "x-hitide-cache-salt";
inline constexpr char kAdapterHeader[] = "x-hitide-adapter";

// Adds what the headers say to what the body says. An error (400) where both name one and differ:
// whichever was meant, the other may be somebody else's.
std::optional<ApiError> take_tenant(const RequestBody& body, GenerationRequest& request);

}  // namespace hitide
