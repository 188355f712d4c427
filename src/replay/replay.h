// Replays a trace of requests through the cache core, one request after the other, in simulated
// time, and counts which tier would have served what.
//
// A prompt is opened at its time in the trace or when the one before is done, waits for storage as
// the policy says, is admitted, committed and released. Answers are not cached: a trace does not
// say what they were.
#pragma once

#include <array>
#include <cstdint>

#include <hitide/explanation.h>
#include <hitide/options.h>
#include <hitide/result.h>

#include "replay/simulated_shell.h"
#include "replay/trace.h"

namespace hitide {

// What counts as cached.
enum class LruDefinition : std::uint8_t {
  core,  // as in a server: whole pages, and the last token of a prompt is always computed
  leaf,  // as simulators of caches have it: the last page counts even where it is not full, and a
         // prompt may be served as a whole. One tier; what goes is the leaf used longest ago
};

struct ReplayOptions {
  std::uint32_t page_size = 512;    // tokens, >= 1
  std::uint64_t device_pages = 0;   // >= 1
  std::uint64_t host_pages = 0;     // 0: no host tier, and so no storage; leaf: 0
  std::uint64_t storage_pages = 0;  // 0: none; leaf: 0
  LruDefinition definition = LruDefinition::core;
  PolicyOptions policy;
  double prefill_tokens_per_s = 0.0;  // for what is waited for storage; 0: not known
  StorageSpeed storage_speed;
};

// Tokens of some requests: of the prompts, of those served, and of those that would be with a cache
// that never evicts.
struct ReplayShare {
  std::uint64_t requests = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t served_tokens = 0;
  std::uint64_t ceiling_tokens = 0;
};

struct ReplayReport {
  ReplayShare all;
  ReplayShare last_half;  // of the requests: the cache is warm there
  Duration span{};        // from the first request to the last
  std::array<std::uint64_t, kTierCount> served_tokens{};  // by Tier
  std::array<std::uint64_t, kTierCount> served_pages{};
  std::array<std::uint64_t, kMissReasonCount> missed_tokens{};  // by MissReason
  std::array<std::uint64_t, kTierCount> evicted_pages{};        // by Tier
  std::uint64_t refused_requests = 0;  // prompts longer than the device; their tokens: pool_full
  Duration storage_wait{};             // of all requests together
};

// internal: an invariant of the core broke; the message says which.
Result<ReplayReport> replay(const Trace& trace, const ReplayOptions& options);

}  // namespace hitide
