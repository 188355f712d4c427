// Options of the cache. Flags, --print-defaults, docs and validation are derived from one table
// over these structs (src/spec/option_table.cc); a new option is a field here and a row there. The
// meaning, unit and range of each is in docs/options.md, by the name of its flag.
//
// Threading: values. What is given to a Cache is copied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hitide/mooncake_options.h>
#include <hitide/status.h>
#include <hitide/types.h>

namespace hitide {

// Who hands out the host memory of one pool.
struct HostAllocatorChoice {
  std::string pool = {};
  std::string kind = {};
};

struct HostOptions {
  std::uint64_t bytes = 0;        // L2 size; 0: by ratio
  double ratio = 0.0;             // L2 as a multiple of the device's bytes, used when bytes is 0;
                                  // both 0: a quarter of the memory that is free at start
  std::string allocator = "shm";  // "shm", "mmap" or "store" (memory of the store's client)
  std::vector<HostAllocatorChoice> pool_allocators = {};  // of single pools; wins
  // Of shm and mmap memory; the start's log says what was got (event host_memory).
  bool prefault = false;            // touched at the start, by several threads, not when first used
  std::string huge_pages = "auto";  // "auto" (2 MiB, where the system has them) or "off"
  std::string numa = "auto";        // "auto": over all nodes in turn; "off"; or a node's number
};

// When calls are kept from a store that keeps failing, and how soon it is tried again.
struct BreakerOptions {
  std::uint32_t failures_to_open = 3;  // in a row; >= 1
  double failed_share_to_open = 0.5;   // of the items of the calls in the window; 0 < share
  std::uint32_t window_calls_min = 8;  // fewer calls in the window say nothing
  Duration window = std::chrono::seconds(10);
  Duration pause_first = std::chrono::milliseconds(500);
  Duration pause_max = std::chrono::seconds(5);
  double quarantine_share_max = 0.25;              // of the registered memory
  Duration hang_limit = std::chrono::seconds(10);  // a call that takes longer is given up on
  Duration hang_slack = std::chrono::seconds(1);   // nor does it this long past its deadline
  friend bool operator==(const BreakerOptions&, const BreakerOptions&) = default;
};

struct StorageOptions {
  std::string backend = "file";  // "file", "mooncake", "memory", "null" or "none" (no L3)
  std::string path = {};         // file: directory; empty: the default directory
  std::uint64_t bytes_max = 0;   // file: limit; 0: a tenth of the free disk, at most 64 GiB
  std::uint32_t segment_bytes = 256u << 20;  // file: size of a segment
  std::uint32_t sync_interval_ms = 1000;     // file: pause between syncs
  bool sync_puts = false;                    // file: a page counts as stored once it is synced
  std::uint32_t threads = 2;                 // reads and writes in flight
  // Pools that the store cannot take as they are pass through bounce memory; false: they have no
  // L3.
  bool staging = true;
  MooncakeOptions mooncake = {};
  BreakerOptions breaker = {};  // of every backend
  // Keys that were there and could not be loaded are not asked for again for a while.
  std::uint32_t failed_keys_max = 4096;                  // remembered at a time; 0: none
  Duration failed_key_pause = std::chrono::seconds(30);  // so long
  std::uint32_t backup_queue_max = 1024;                 // backups that wait; more are dropped
  bool second_touch = false;  // a page is stored when it is offered a second time
  friend bool operator==(const StorageOptions&, const StorageOptions&) = default;
};

enum class WritePolicy : std::uint8_t {
  write_through,            // a node is copied down when it is first committed
  write_through_selective,  // when it is used a second time
  write_back,               // when it leaves the tier above: the device, then the host
};
// Which unpinned leaf of the tree goes first, on device and host.
enum class EvictionPolicy : std::uint8_t {
  lru,       // the one used longest ago
  lfu,       // the least used; of equal ones, longest ago
  slru,      // used once, before those used more often; longest ago first
  fifo,      // the oldest
  mru,       // the one used last
  filo,      // the youngest
  priority,  // of requests of the lowest priority; longest ago first
};

enum class PrefetchPolicy : std::uint8_t {
  timeout,        // a request waits for storage at most so long (prefetch_timeout_*)
  best_effort,    // not at all: what has come when the request is admitted is used
  wait_complete,  // until all that storage holds has come; a call's own limit bounds each call
};

inline constexpr std::uint32_t kAllTokens = UINT32_MAX;

struct PolicyOptions {
  WritePolicy write_policy = WritePolicy::write_through;
  PrefetchPolicy prefetch_policy = PrefetchPolicy::timeout;
  EvictionPolicy eviction_policy = EvictionPolicy::lru;
  std::uint32_t prefetch_threshold_tokens = 256;  // storage is not asked for less
  double prefetch_timeout_base_s = 1.0;
  double prefetch_timeout_per_ki_token_s = 0.25;
  double prefetch_timeout_max_s = 30.0;
  double prefetch_occupancy_max = 0.5;  // of the host pool, in pages being prefetched
  // While a request waits to be admitted, storage is asked again for what did not come, after this
  // time, then twice and four times as long, and so on. It delays nobody.
  double prefetch_retry_interval_s = 0.25;
  std::uint32_t prefetch_retries_max = 4;
  std::uint32_t load_back_threshold_tokens = 10;
  // Of cached prefixes that no request uses so many tokens may stay on the device. What is beyond
  // leaves it once the host has it: for engines in which idle tokens slow down all others.
  std::uint32_t device_idle_tokens = kAllTokens;
  std::uint32_t storage_batch_pages = 32;  // pages per storage read or write
  // A span is loaded only where that is predicted to be faster than computing it again, from what
  // has been measured of the tiers and of prefill. Without effect with wait_complete.
  bool cost_model = true;
};

struct CacheOptions {
  bool enabled = true;  // false: every prompt is computed, nothing is kept
  HostOptions host = {};
  StorageOptions storage = {};
  PolicyOptions policy = {};
  std::uint32_t explanations_kept = 1024;
  double prefill_tokens_per_s = 0.0;  // first guess until it has been measured; 0: none
};

// invalid_argument that names the option, its value and the limit.
Status validate(const CacheOptions& options);

}  // namespace hitide
