// PageStore: pages of one model in an ObjectStore.
//
//   page key + pool --key_schema--> object key
//   page slot = [ header slot | payload ] --envelope--> object bytes, verified on every read
//
// What it adds to the store below: the keys, the envelope, put-if-absent (one existence call, then
// only what is missing is written), splitting by the store's limits, statistics, and distrust: a
// backend that answers with wrong lengths, wrong bytes or no answer at all costs a miss.
//
// An object that does not verify is removed from the store, so that it can be stored anew; the
// number of removals per second is limited, and one key is not removed twice within a minute.
//
// Threading: all methods may be called at once from any thread. The slots of a call are the
// caller's until it returns and until the outcome's buffers_busy_until. No call throws.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/types.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "spec/layout.h"
#include "storage/envelope.h"
#include "storage/key_schema.h"

namespace hitide {

// One page of one pool in host memory. slot: at least page_layout(pool).object_bytes() long,
// header slot first; whatever lies behind the object in the slot is not touched.
struct PageSlot {
  PageKey key;
  std::span<std::byte> slot;
  std::uint32_t pool = 0;  // index into ModelSpec::pools; a pool without bytes is invalid_argument
};

struct PageStoreStats {
  std::uint64_t queries = 0;  // pages asked for by exists()
  std::uint64_t query_hits = 0;
  std::uint64_t loads = 0;  // pages loaded and verified
  std::uint64_t load_misses = 0;
  std::uint64_t load_bytes = 0;      // payload and header of what was loaded
  std::uint64_t stores = 0;          // pages written
  std::uint64_t stores_present = 0;  // pages that were there already
  std::uint64_t store_bytes = 0;
  std::array<std::uint64_t, kEnvelopeFaultCount> verification_failures{};  // by EnvelopeFault
  std::uint64_t removals = 0;  // objects removed because they did not verify
  std::uint64_t failures = 0;  // pages that ended in any other failure, in any call

  std::uint64_t verification_failures_total() const;
};

class PageStore {
 public:
  // `store` must outlive this object. Requires validate(model).ok(). clock: for the limits on
  // removals.
  PageStore(ObjectStore& store, const ModelSpec& model,
            const Clock& clock = SystemClock::instance());

  // out[i]: ok = every required pool that has bytes holds page i; not_found = some pool does not;
  // else why it is not known. Pools with a trailing hit policy are treated like the others: that
  // may cost hits and is never wrong. A model without any such pool holds nothing here.
  CallOutcome exists(std::span<const PageKey> keys, std::span<StatusCode> out,
                     const CallOptions& options);

  // Reads objects into their slots. ok: header and payload are there and verified. not_found: a
  // miss. data_loss: the store holds something else; the slot's content is undefined then, as after
  // any other failure.
  CallOutcome load(std::span<const PageSlot> pages, std::span<StatusCode> out,
                   const CallOptions& options);

  // Makes sure that the store holds the pages. ok: written now, or there already. The header slots
  // of pages that are written are filled in; payloads are only read.
  CallOutcome store(std::span<const PageSlot> pages, std::span<StatusCode> out,
                    const CallOptions& options);

  // Passed on for the host pool's segments.
  Status register_memory(const MemoryRegion& region) { return store_.register_memory(region); }
  Status unregister_memory(std::span<std::byte> bytes) { return store_.unregister_memory(bytes); }

  PageStoreStats stats() const;
  const KeySchema& keys() const { return keys_; }

 private:
  struct Cells {
    Counter queries, query_hits, loads, load_misses, load_bytes, stores, stores_present;
    Counter store_bytes, removals, failures;
    std::array<Counter, kEnvelopeFaultCount> verification_failures;
  };
  struct Batch;  // the pages of a call that go to the store together

  bool usable(const PageSlot& page) const;
  // Checks the pages, answers the unusable ones, and calls `carry_out` with one batch after the
  // other; merges what the batches say about the call as a whole.
  template <typename CarryOut>
  CallOutcome in_batches(std::span<const PageSlot> pages, std::span<StatusCode> out,
                         const CarryOut& carry_out);
  EnvelopeExpectation expectation(const PageSlot& page) const;
  std::span<std::byte> object_of(const PageSlot& page) const;

  void query_pool(std::size_t pool, std::span<const PageKey> keys, std::span<StatusCode> out,
                  const CallOptions& options, CallOutcome& outcome);
  CallOutcome load_batch(const Batch& batch, const CallOptions& options,
                         std::vector<std::string>& damaged);
  StatusCode judge_load(const PageSlot& page, const ItemResult& result,
                        const std::string& object_key, std::vector<std::string>& damaged);
  CallOutcome store_batch(const Batch& batch, const CallOptions& options);
  CallOutcome put_missing(const Batch& batch, std::span<const std::size_t> missing,
                          const CallOptions& options);
  void remove_damaged(std::span<const std::string> object_keys, const CallOptions& options);
  bool may_remove(const std::string& object_key, TimePoint now);

  ObjectStore& store_;
  const Clock& clock_;
  const Digest identity_;
  const std::vector<PoolSpec> pools_;
  const std::vector<PageLayout> layouts_;  // by pool
  const PartId part_;
  const KeySchema keys_;
  const std::size_t batch_items_max_;
  std::atomic<std::uint64_t> next_backup_id_;
  Cells cells_;

  std::mutex removal_mutex_;
  std::unordered_map<std::string, TimePoint> removed_;  // guarded by removal_mutex_
  TimePoint removal_window_{};                          // guarded by removal_mutex_
  std::uint32_t removals_in_window_ = 0;                // guarded by removal_mutex_
};

}  // namespace hitide
