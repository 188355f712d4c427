// HITIDE_CHECK(condition, message...): ends the program; for tests, tools and start-up.
//
// In a served process a broken invariant must not kill the engine: the core answers it with a
// Status of code internal and the cache goes into bypass, see src/cache/cache_core.h.
#pragma once

#include <string_view>

namespace hitide {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);
}  // namespace hitide

#define HITIDE_CHECK(condition, message)                                 \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::hitide::check_failed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                    \
  } while (false)

// Checked in debug builds only (HITIDE_DEBUG_CHECKS).
#ifdef HITIDE_DEBUG_CHECKS
#define HITIDE_DCHECK(condition, message) HITIDE_CHECK(condition, message)
#else
#define HITIDE_DCHECK(condition, message) \
  do {                                    \
  } while (false)
#endif
