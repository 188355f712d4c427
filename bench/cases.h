// What hitide_bench measures, by part.
#pragma once

#include <vector>

#include "bench/harness.h"

namespace hitide::bench {

std::vector<Case> prefix_cases();    // match, next turn, page keys
std::vector<Case> page_cases();      // allocate, free, evict
std::vector<Case> scale_cases();     // insert, split, and 10^3 to 10^6 pages
std::vector<Case> store_cases();     // file store, page store, restart
std::vector<Case> mooncake_cases();  // Mooncake against its own client
#ifdef HITIDE_BENCH_ENGINE
std::vector<Case> llama_cases();   // pages out of and into llama.cpp
std::vector<Case> engine_cases();  // time to first token, decode speed
std::vector<Case> lane_cases();    // several small contexts against the shared one
#endif

}  // namespace hitide::bench
