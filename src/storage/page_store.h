// PageStore: pages of one model in an ObjectStore.
//
//   page key + pool --key_schema--> object key
//   page slot = [ header slot | payload ] --envelope--> object bytes, verified on every read
//
// What it adds to the store below: the keys, the envelope, put-if-absent (one existence call,
// unless a query has just answered it; then only what is missing is written), splitting by the
// store's limits, statistics, and distrust: a backend that answers with wrong lengths, wrong bytes
// or no answer at all, or that throws, costs a miss.
//
// The commit order (docs/design/commit_order.md): side pools are written first; the anchor's page
// (for a logical anchor a marker, docs/formats/marker.md) is written once an existence call has
// shown that the required side objects are there. It is never taken for proof that they still are:
// see exists_prefix().
//
// Calls to the store: pages with bytes are moved in batches of at most batch_items_max. Existence
// queries and markers, which hold no pages, are one call however many pages there are; a backend
// splits it where its own limits make it.
//
// An object that does not verify is removed from the store, so that it can be stored anew; the
// number of removals per second is limited, and one key is not removed twice within a minute.
//
// Threading: all methods may be called at once from any thread. The slots of a call are the
// caller's until it returns and until the outcome's buffers_busy_until. No call throws.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/types.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "spec/layout.h"
#include "storage/absent_keys.h"
#include "storage/envelope.h"
#include "storage/failed_keys.h"
#include "storage/key_schema.h"

namespace hitide {

// One page of one pool in host memory. slot: at least page_layout(pool).object_bytes() long,
// header slot first; whatever lies behind the object in the slot is not touched.
struct PageSlot {
  PageKey key;
  std::span<std::byte> slot;
  // Index into ModelSpec::pools. The slot of an anchor without bytes is not looked at: its pages
  // are markers, or, with side_pools_only, nothing, and then every call for them succeeds without
  // I/O.
  std::uint32_t pool = 0;
};

// The pages of one pool in a call over several pools.
struct PoolPages {
  std::string_view pool;          // by name
  std::span<const PageKey> keys;  // [n]
  std::span<const std::span<std::byte>>
      slots;                  // [n], as PageSlot::slot; empty for an anchor without bytes
  std::span<StatusCode> out;  // [n]
};

// Where a prefix may end so that all required pools can be restored.
struct PrefixStops {
  // [n]; codes[i]: ok = the first i + 1 pages can be restored; else what an object that is in the
  // way answered: not_found, or why it is not known.
  std::vector<StatusCode> codes;
  std::uint32_t anchor_pages = 0;  // leading run of the anchor's pages
  std::uint32_t longest() const;   // in pages; 0: none
};

inline constexpr std::size_t kStatusCodeCount = static_cast<std::size_t>(StatusCode::internal) + 1;

struct PageStoreStats {
  std::uint64_t queries = 0;     // pages asked for
  std::uint64_t query_hits = 0;  // of which so many can be restored
  std::uint64_t loads = 0;       // pages loaded and verified
  std::uint64_t load_misses = 0;
  std::uint64_t load_bytes = 0;      // payload and header of what was loaded
  std::uint64_t stores = 0;          // pages written
  std::uint64_t stores_present = 0;  // pages that were there already
  std::uint64_t store_bytes = 0;
  std::array<std::uint64_t, kEnvelopeFaultCount> verification_failures{};  // by EnvelopeFault
  std::uint64_t markers = 0;                                               // markers written
  std::uint64_t markers_present = 0;      // markers that were there already
  std::uint64_t anchors_unconfirmed = 0;  // pages not committed: a side object was not there
  std::uint64_t unknown_pools = 0;  // transfers that named a pool which the model does not have
  std::uint64_t removals = 0;       // objects removed because they did not verify
  // Pages and objects that ended in any other failure, in any call, by its code.
  std::array<std::uint64_t, kStatusCodeCount> failures_by_code{};

  std::uint64_t verification_failures_total() const;
  std::uint64_t failures() const;
};

class PageStore {
 public:
  // `store` must outlive this object. Requires validate(model).ok(). clock: for the limits on
  // removals and for how long a failure is remembered.
  PageStore(ObjectStore& store, const ModelSpec& model,
            const Clock& clock = SystemClock::instance(), const FailedKeyLimits& failed_keys = {});

  // The leading run of the anchor's pages, then each required side pool by its hit policy: for
  // every prefix of `keys` whether it can be restored. Optional pools have no say and are not asked
  // for. One existence call that touches every required object. What is not known counts as absent.
  // Objects that could not be loaded lately answer so again, unasked (FailedKeys).
  // A model without any required pool with bytes holds nothing here. first_page: where keys[0]
  // stands in the prompt; a trailing window that reaches back behind it is not taken for granted.
  CallOutcome exists_prefix(std::span<const PageKey> keys, PrefixStops& out,
                            const CallOptions& options, std::uint32_t first_page = 0);

  // Reads objects into their slots. ok: header and payload are there and verified. not_found: a
  // miss. data_loss: the store holds something else; the slot's content is undefined then, as after
  // any other failure.
  CallOutcome load(std::span<const PageSlot> pages, std::span<StatusCode> out,
                   const CallOptions& options);

  // Makes sure that the store holds the pages. ok: written now, or there already. The header slots
  // of pages that are written are filled in; payloads are only read. The anchor's pages are
  // committed as below, after the other pages of the call.
  CallOutcome store(std::span<const PageSlot> pages, std::span<StatusCode> out,
                    const CallOptions& options);

  // The same over several pools. Storing: side pools first, whatever their place; then one
  // existence call over the anchor's pages and their required side objects (of trailing pools:
  // those that this call names); then the missing pages of the anchor, markers in one put. An
  // anchor page whose side objects are not all there answers not_found and is not written; nothing
  // else is held up. A pool that the model does not have, or spans of different lengths: all its
  // pages answer invalid_argument, the outcome says so with the known names, and the other pools go
  // on.
  CallOutcome store(std::span<const PoolPages> pools, const CallOptions& options);
  CallOutcome load(std::span<const PoolPages> pools, const CallOptions& options);

  // The last step of store() by itself, for side pages that earlier calls have stored. `anchor`:
  // pages of the anchor. `sides`: what was stored with them; of these only pool and keys count.
  CallOutcome commit(const PoolPages& anchor, std::span<const PoolPages> sides,
                     const CallOptions& options);

  // Removes the objects of this model, of all its ranks, salts and adapters, and no others. As
  // ObjectStore::remove_prefix().
  Result<std::uint64_t> clear(const CallOptions& options);

  // Passed on for the host pool's segments.
  Status register_memory(const MemoryRegion& region) { return store_.register_memory(region); }
  Status unregister_memory(std::span<std::byte> bytes) { return store_.unregister_memory(bytes); }

  PageStoreStats stats() const;
  // Objects that are not asked for now, as they could not be loaded.
  std::size_t failed_keys() { return failed_keys_.size(clock_.now()); }
  const KeySchema& keys() const { return keys_; }
  std::span<const PoolSpec> pools() const { return pools_; }
  bool anchor_has_bytes() const { return has_bytes(pools_.front()); }

 private:
  bool has_markers() const { return pools_.front().kind == PoolKind::logical; }

  struct Cells {
    Counter queries, query_hits, loads, load_misses, load_bytes, stores, stores_present;
    Counter store_bytes, removals;
    Counter markers, markers_present, anchors_unconfirmed, unknown_pools;
    std::array<Counter, kEnvelopeFaultCount> verification_failures;
    std::array<Counter, kStatusCodeCount> failures;
  };
  struct Placed {  // a page of a call, and where its answer goes
    PageSlot page;
    StatusCode* out = nullptr;
  };
  struct Sorted;  // the pages of a call: of side pools, and of the anchor
  struct Batch;   // pages with bytes that go to the store together

  bool usable(const PageSlot& page) const;
  void count_failure(StatusCode code) {
    cells_.failures[std::min(static_cast<std::size_t>(code), kStatusCodeCount - 1)].add();
  }
  // The pool of that name, or the number of pools.
  std::size_t find_pool(std::string_view name) const;
  // A page that cannot be moved is answered.
  void sort_page(const PageSlot& page, StatusCode& out, Sorted& sorted);
  void sort_pages(std::span<const PageSlot> pages, std::span<StatusCode> out, Sorted& sorted);
  CallOutcome sort_pools(std::span<const PoolPages> pools, Sorted& sorted);
  CallOutcome refuse_pool(const PoolPages& pages, std::string what);
  CallOutcome refuse_unknown_pool(const PoolPages& pages);
  // Calls `carry_out` with one batch after the other; merges what they say about the call.
  template <typename CarryOut>
  CallOutcome in_batches(std::span<const Placed> pages, const CarryOut& carry_out);
  EnvelopeExpectation expectation(const PageSlot& page) const;
  std::span<std::byte> object_of(const PageSlot& page) const;
  std::string object_key(const PageSlot& page) const;

  CallOutcome load_sorted(const Sorted& sorted, const CallOptions& options);
  CallOutcome load_batch(const Batch& batch, const CallOptions& options,
                         std::vector<std::string>& damaged);
  CallOutcome load_markers(std::span<const Placed> markers, std::vector<std::string>& damaged,
                           const CallOptions& options);
  StatusCode judge_load(const PageSlot& page, const ItemResult& result,
                        const std::string& object_key, std::vector<std::string>& damaged);
  StatusCode judge_marker(const PageKey& key, std::span<const std::byte> record,
                          const ItemResult& result, const std::string& object_key,
                          std::vector<std::string>& damaged);
  StatusCode judge_fault(EnvelopeFault fault, const std::string& object_key,
                         std::vector<std::string>& damaged);
  void remove_damaged(std::span<const std::string> object_keys, const CallOptions& options);
  bool may_remove(const std::string& object_key, TimePoint now);

  CallOutcome store_sorted(const Sorted& sorted, const CallOptions& options);
  CallOutcome store_batch(const Batch& batch, const CallOptions& options);
  CallOutcome put_missing(const Batch& batch, std::span<const std::size_t> missing,
                          const CallOptions& options);

  CallOutcome ask_unless_failed(std::span<const std::string> object_keys, std::span<ItemResult> out,
                                const CallOptions& options);

  // page_store_group.cc: the commit.
  CallOutcome commit_sorted(const Sorted& sorted, const CallOptions& options);
  void add_questions(const Placed& anchor, const Sorted& sorted,
                     std::vector<std::string>& object_keys) const;
  bool judge_confirmation(const Placed& anchor, std::span<const ItemResult> results);
  CallOutcome put_anchors(std::span<const Placed> anchors, const CallOptions& options);
  CallOutcome put_markers(std::span<const Placed> anchors, const CallOptions& options);
  void judge_put(std::string_view object_key, const ItemResult& result, StatusCode& out,
                 Counter& written, Counter& present);
  // An existence call, unless there is nothing to ask.
  CallOutcome ask(std::span<const std::string_view> object_keys, std::span<ItemResult> out,
                  const CallOptions& options);

  ObjectStore& store_;
  const Clock& clock_;
  const Digest identity_;
  const std::vector<PoolSpec> pools_;
  const std::vector<PageLayout> layouts_;  // by pool
  const std::vector<std::size_t> asked_;   // pools whose objects a page needs, in order
  const PartId part_;
  const KeySchema keys_;
  const std::size_t batch_items_max_;
  std::atomic<std::uint64_t> next_backup_id_;
  Cells cells_;
  AbsentKeys absent_;
  FailedKeys failed_keys_;

  Mutex removal_mutex_;
  std::unordered_map<std::string, TimePoint> removed_ HITIDE_GUARDED_BY(removal_mutex_);
  TimePoint removal_window_ HITIDE_GUARDED_BY(removal_mutex_){};
  std::uint32_t removals_in_window_ HITIDE_GUARDED_BY(removal_mutex_) = 0;
};

}  // namespace hitide
