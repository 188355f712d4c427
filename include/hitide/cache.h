// Cache and PrefixHandle: what an engine uses.
//
//   tokens --open_prefix--> PrefixHandle --admit--> pages and a sequence on the device
//          --commit/finish--> findable by later requests
//
// Life of a request: waiting -> ready -> loading -> running -> closed (PrefixState).
//
// Threading: all methods of Cache and PrefixHandle may be called from any thread; one handle must
// be used by one thread at a time. No call waits for a copy or for storage. `notify` (see open) is
// called from a HiTide thread whenever a handle may have left waiting or loading; it must be short
// and must not call back into the cache.
//
// Cost: one lock for all of them; a call holds it for its own computing alone. open_prefix and
// commit hash and compare their tokens, linear in those that are new to the tree; admit and reserve
// are linear in the pages that they hand out and evict; state and cached_tokens are constant.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/device.h>
#include <hitide/explanation.h>
#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/options.h>
#include <hitide/request.h>
#include <hitide/result.h>
#include <hitide/stats.h>
#include <hitide/types.h>

namespace hitide {

class CacheImpl;

// Pins what it hit until it is finished or destroyed. Move-only. An empty or moved-from handle is
// in state closed, and every call on it answers failed_precondition.
class PrefixHandle {
 public:
  PrefixHandle() = default;
  PrefixHandle(PrefixHandle&&) noexcept;
  PrefixHandle& operator=(PrefixHandle&&) noexcept;
  ~PrefixHandle();  // release()

  PrefixState state() const;
  // Tokens [0, n) whose state is (running) or is expected to be (before) in place when the engine
  // starts; n < prompt tokens; a multiple of the page size.
  std::uint32_t cached_tokens() const;
  // Empty when closed.
  std::string explanation_id() const;

  // Device pages by position, as they are now: loads and commits may exchange a page for an equal
  // one. For page-addressed devices; empty when closed.
  std::vector<PageId> pages() const;

  // Reserves device pages for the whole prompt, and a sequence; starts loads; afterwards the state
  // is loading or running. resource_exhausted: no room now; try again at the next notice (another
  // request has ended, or a backup has let go of pages). invalid_argument: the prompt is larger
  // than the whole device. failed_precondition unless ready.
  Result<Admission> admit();

  // Makes room for a request that has grown to `total_tokens` tokens. Returns the pages that were
  // added (may be none). resource_exhausted: nothing could be evicted; the caller ends or preempts
  // some request.
  Result<std::vector<PageId>> reserve(std::uint32_t total_tokens);

  // `tokens` starts with the prompt (or with a part of it that has been computed); the KV of all of
  // them is in place. Whole pages become findable, and are backed up. Calling it again with more
  // tokens is cheap: only new pages cost.
  Status commit(std::span<const TokenId> tokens);

  // commit(tokens), then releases the handle; what was committed stays cached.
  Status finish(std::span<const TokenId> tokens);

  // Gives everything back. What was committed stays cached. Idempotent.
  void release();

 private:
  friend class CacheImpl;
  PrefixHandle(std::shared_ptr<CacheImpl> cache, std::uint64_t request);
  std::shared_ptr<CacheImpl> cache_;  // shared: a handle may outlive the Cache that made it
  std::uint64_t request_ = 0;
};

class Cache {
 public:
  // Builds all tiers. `device` must outlive the cache. A store that cannot be opened does not fail
  // the call: L3 is off, one warning is logged, stats().storage_detail says why.
  // invalid_argument: options or model do not validate, or do not fit the device;
  // resource_exhausted: no memory for L2.
  static Result<std::unique_ptr<Cache>> open(const CacheOptions& options, const ModelSpec& model,
                                             Device& device, std::function<void()> notify);
  // As above with a store of the caller's (tests, plug-ins); options.storage.backend is ignored.
  static Result<std::unique_ptr<Cache>> open(const CacheOptions& options, const ModelSpec& model,
                                             Device& device, std::unique_ptr<ObjectStore> store,
                                             std::function<void()> notify);
  ~Cache();  // close(now + 5 s)

  // Matches the prompt against all tiers and starts a prefetch where that is worth it.
  // invalid_argument: no tokens, a negative id, or an extra_key or cache_salt that is too long.
  // failed_precondition: closed.
  Result<PrefixHandle> open_prefix(const PrefixRequest& request);

  // Measured by the engine while serving: `tokens` were computed in `time`. Used for deadlines and
  // for load-or-recompute.
  void note_prefill(std::uint32_t tokens, Duration time);

  // Forgets everything on device and host that no request uses. Storage is left alone; with
  // write_back, what it does not have yet is written first, and forgotten after that.
  Status flush();

  // Storage (L3) may come and go while requests are served. These three wait for I/O, one at a
  // time: until the deadline, and then for calls of the store that are under way, which have limits
  // of their own. Requests go on meanwhile, without L3. failed_precondition: the cache is closed.

  // Attaches a store, where none is. What device and host hold is stored by the next commit on its
  // path. `policy` counts from now on, but for its eviction policy. The same store again: the
  // policy alone is taken over. failed_precondition: another is attached; invalid_argument: the
  // options do not validate; unavailable: the store cannot be opened or does not answer, or no pool
  // can be registered with it. Nothing is attached then, and stats().storage_detail says why.
  Status attach_storage(const StorageOptions& storage, const PolicyOptions& policy,
                        TimePoint deadline);
  // As above with a store of the caller's.
  Status attach_storage(std::unique_ptr<ObjectStore> store, const PolicyOptions& policy,
                        TimePoint deadline);
  // Ends what is in flight, and closes the store. What it holds stays in it. Nothing is attached
  // afterwards. failed_precondition: nothing was; deadline_exceeded: some of what was in flight had
  // to be cancelled, which costs hits alone.
  Status detach_storage(TimePoint deadline);
  // Removes everything from the store that belongs to this model, with all of its cache salts and
  // adapters, and answers how many objects that were; what other models store there stays.
  // failed_precondition: no store is attached; deadline_exceeded: some are left;
  // unimplemented: this backend cannot.
  Result<std::uint64_t> clear_storage(TimePoint deadline);

  CacheStats stats() const;
  // Prometheus lines of what stats() does not say: the lanes to storage, and how pools are
  // registered. Empty without a store.
  std::string storage_metrics() const;
  // not_found when it was never there or has left the ring.
  Result<Explanation> explain(std::string_view id) const;

  // Checks every invariant of tree, pools and sequences: internal with the first that is broken.
  Status check() const;

  // Stops taking requests, drains backups until the deadline (with write_back: all that storage
  // does not have yet), closes the store, joins all threads.
  // Idempotent; all later calls answer failed_precondition.
  Status close(TimePoint deadline);

 private:
  explicit Cache(std::shared_ptr<CacheImpl> impl);
  std::shared_ptr<CacheImpl> impl_;
};

}  // namespace hitide
