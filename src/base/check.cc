#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace hitide {
void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  const int size = static_cast<int>(message.size());
  std::fprintf(stderr,  // tidy: allow-print the last words before the end
               "hitide: %s:%d: check failed: %s: %.*s\n", file, line, condition, size,
               message.data());
  std::abort();
}
}  // namespace hitide
