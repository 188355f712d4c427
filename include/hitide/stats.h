// CacheStats: counters and gauges of one cache. Gauges are a moment's values; counters only grow,
// and start at 0 with the cache. Units are in the names; tokens are of prompts.
//
// Threading: a value; all of it is of one moment but for what storage says of itself.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/explanation.h>
#include <hitide/object_store.h>
#include <hitide/registration.h>

namespace hitide {

// How L3 is.
enum class StorageStatus : std::uint8_t {
  none,     // none was asked for
  off,      // asked for, and not to be had: storage_detail says why
  waiting,  // the store does not answer yet, or takes over memory; attached by itself
  on,
  failing,  // attached, but calls fail now: storage_detail says why; tried again by itself
};
std::string_view to_string(StorageStatus status);

struct PoolStats {
  std::uint64_t pages_total = 0;
  std::uint64_t pages_free = 0;
  std::uint64_t pages_evictable = 0;
  std::uint64_t pages_pinned = 0;
  std::uint64_t pages_in_flight = 0;  // owned by a request or an operation
};

struct CacheStats {
  PoolStats device;
  PoolStats host;
  std::uint64_t sequences_total = 0;
  std::uint64_t sequences_free = 0;

  std::uint64_t requests = 0;
  std::uint64_t prompt_tokens = 0;
  std::array<std::uint64_t, kTierCount> served_tokens{};        // by Tier
  std::array<std::uint64_t, kMissReasonCount> missed_tokens{};  // by MissReason
  std::array<std::uint64_t, kTierCount> evicted_pages{};        // by Tier; storage counts itself
  std::uint64_t backed_up_pages_host = 0;
  std::uint64_t backed_up_pages_storage = 0;
  std::uint64_t backup_dropped_pages_host = 0;     // no room in L2
  std::uint64_t backup_dropped_pages_storage = 0;  // the store refused or failed
  std::uint64_t loaded_back_pages = 0;
  std::uint64_t prefetched_pages = 0;
  std::uint64_t prefetch_queries = 0;
  std::uint64_t prefetch_retries = 0;  // of these, those that asked again
  std::uint64_t backup_retries = 0;    // writes to storage of what it had not taken
  // Decisions of the cost model, by the tier that the span was on, and what they are made from. The
  // speeds are 0 until they have been measured.
  std::array<std::uint64_t, kTierCount> spans_loaded{};
  std::array<std::uint64_t, kTierCount> spans_recomputed{};
  std::array<double, kTierCount> load_bytes_per_s{};
  std::array<double, kTierCount> load_latency_s{};
  double prefill_tokens_per_s = 0.0;
  std::uint64_t late_completions_dropped = 0;
  std::uint64_t verification_failures = 0;
  std::uint64_t bypass_trips = 0;  // a broken invariant turned the cache off

  std::string storage_backend;  // as asked for; "none" where L3 is off
  std::string storage_detail;   // why L3 is not on, or where it lies
  StorageStatus storage_status = StorageStatus::none;
  std::vector<PoolRegistration> registration;  // one row a pool; empty without a store
  StoreStats storage;
};

}  // namespace hitide
