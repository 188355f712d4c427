#include "bench/cases.h"
namespace hitide::bench {
std::vector<Case> engine_cases() { return {}; }
}  // namespace hitide::bench
