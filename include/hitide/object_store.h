// ObjectStore: what a storage backend (L3) implements. Small on purpose: page keys, envelopes,
// markers, hit policies and retries live above it (PageStore).
//
// Contract, checked for every backend by tests/conformance/object_store_suite.h:
// - Batch first. One result per item, in order; `out` has the size of the input. An empty batch is
//   answered without I/O. Duplicate keys in one batch are allowed.
// - A get fills the buffers in order with exactly the object's bytes. The buffers' total size is
//   the expected length: a longer or shorter object answers data_loss and the buffers hold
//   undefined bytes. An absent key answers not_found.
// - A put of a key that exists answers ok or already_exists and leaves the stored bytes as they
//   are. After ok, a get by this process returns the bytes until they are evicted or removed.
// - An empty key, a key longer than key_bytes_max and an empty object answer invalid_argument for
//   their item alone.
// - Eviction may take any object at any time, also between exists and get: always not_found.
// - No call throws. Every call returns by its deadline plus the backend's documented slack; what
//   had not been done by then answers deadline_exceeded.
// - Buffers are the caller's and must stay until the call returns, and longer where the outcome's
//   buffers_busy_until says so.
// - Cost: a call may block for I/O; it is made from threads of the lanes alone, never from a
//   request's. capabilities() and health() must not block.
// - Threading: all methods may be called at once from any thread; close() waits for calls in
//   flight, is idempotent, and every later call answers failed_precondition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/result.h>
#include <hitide/status.h>
#include <hitide/types.h>

namespace hitide {

// Who talks to the store, and so which memory it can take: <hitide/registration.h>.
enum class ClientKind : std::uint8_t {
  local,       // files or memory of this machine: any memory will do
  embedded,    // a real client, in a process of its own: memory that it can map
  standalone,  // a thin client of a daemon: whole segments that it handed out or adopted
};

struct StoreCapabilities {
  std::string name = {};               // "file", "memory", ...
  std::uint64_t object_bytes_max = 0;  // a larger put answers invalid_argument
  std::uint32_t key_bytes_max = 255;
  std::uint32_t batch_items_max = 128;  // callers split; a larger batch is legal but not better
  std::uint32_t buffer_alignment = 1;   // preferred alignment of buffers and sizes
  bool needs_registration = false;      // get and put only take registered memory
  bool persistent = false;              // survives a restart of this process
  ClientKind client = ClientKind::local;
};

struct GetItem {
  std::string_view key = {};
  std::span<const std::span<std::byte>> buffers = {};  // scatter list, filled in order
};

struct PutItem {
  std::string_view key = {};
  std::span<const std::span<const std::byte>> buffers = {};  // gather list
  std::string_view group =
      {};  // objects of one page share a group: evicted together where possible
};

struct ItemResult {
  StatusCode code = StatusCode::internal;
  std::uint64_t bytes = 0;  // moved for this item
};

struct CallOptions {
  TimePoint deadline = kNoDeadline;
  // put: the caller has just been told that the keys are absent, so that a backend which would have
  // to ask need not. A key that exists all the same may answer ok; its bytes stay as they are.
  bool keys_absent = false;
};

struct CallOutcome {
  // First failure of the call as a whole, with its message; ok when every item was looked at.
  Status status;
  // Nobody may reuse the call's buffers before this (a remote side may still touch them).
  TimePoint buffers_busy_until = TimePoint::min();
};

// Memory that calls will use. `fd` names what the bytes are a shared mapping of, so that a helper
// process can map them too: the region is [fd_offset, fd_offset + bytes.size()) of it. It must stay
// open until the region is unregistered; below 0: private memory.
struct MemoryRegion {
  std::span<std::byte> bytes = {};
  int fd = -1;
  std::uint64_t fd_offset = 0;
};

struct StoreStats {
  std::uint64_t objects = 0;
  std::uint64_t bytes_used = 0;
  std::uint64_t bytes_limit = 0;
  std::uint64_t gets = 0, get_misses = 0, get_bytes = 0;
  std::uint64_t puts = 0, puts_existing = 0, put_bytes = 0;
  std::uint64_t evicted_objects = 0;
  std::uint64_t failures = 0;
  std::uint64_t outages = 0;  // times that so many calls failed that further ones were refused
  std::uint64_t refused = 0;  // calls that were refused so
  // File stores alone.
  std::uint64_t live_bytes = 0;  // of bytes_used: records of objects that are there
  std::uint64_t segments = 0;
  std::uint64_t evicted_segments = 0;
  std::uint64_t compactions = 0;      // segments that were written anew without what was dead
  std::uint64_t compacted_bytes = 0;  // that were copied for them
  std::uint64_t checkpoints = 0;      // written
  std::uint64_t syncs = 0;            // one may serve many calls
  std::uint64_t index_bytes = 0;      // memory
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  virtual StoreCapabilities capabilities() const = 0;

  // out[i]: ok = present, not_found = absent, else why it is not known.
  virtual CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                             const CallOptions& options) = 0;
  virtual CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                          const CallOptions& options) = 0;
  virtual CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                          const CallOptions& options) = 0;
  // ok also for keys that are absent.
  virtual CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                             const CallOptions& options) = 0;

  // Removes every object whose key begins with `prefix`, and nothing else; answers how many there
  // were. What is put meanwhile may stay. invalid_argument: an empty prefix. deadline_exceeded:
  // some are left, and the call may be made again. unimplemented: this backend does not know its
  // keys.
  virtual Result<std::uint64_t> remove_prefix(std::string_view prefix, const CallOptions& options) {
    static_cast<void>(prefix);
    static_cast<void>(options);
    return Status(StatusCode::unimplemented,
                  capabilities().name + ": this store cannot remove objects by a prefix");
  }

  // ok: calls can be made now. Else, at the deadline, why the store cannot be reached.
  virtual Status wait_until_ready(TimePoint deadline) {
    static_cast<void>(deadline);
    return {};
  }

  // ok, or why calls fail now, as far as it is known without asking anybody.
  virtual Status health() const { return {}; }

  // Memory that get and put will use. Backends without needs_registration answer ok. The same
  // region may be registered again; each registration wants its own unregister.
  // Unregistering names the region by its bytes. After a failure the region is as unknown as
  // before: calls that use it still work where the backend can copy, at the cost of the copy.
  // data_loss: it was to be adopted and the self-test failed. resource_exhausted: no room to adopt.
  virtual Status register_memory(const MemoryRegion& region) = 0;
  virtual Status unregister_memory(std::span<std::byte> bytes) = 0;

  // Memory that the store's own client hands out: zero, shared, aligned to 4096, with its
  // descriptor, which stays the store's. Valid until it is released or the store is closed.
  // unimplemented: this backend has none. resource_exhausted, unavailable: refused.
  virtual Result<MemoryRegion> allocate_memory(const std::string& name, std::uint64_t bytes) {
    static_cast<void>(bytes);
    return Status(StatusCode::unimplemented, name + ": this store hands out no memory");
  }
  virtual void release_memory(std::span<std::byte> bytes) { static_cast<void>(bytes); }

  virtual StoreStats stats() const = 0;

  // Changes bytes_limit while calls go on; what is too much is evicted soon. invalid_argument: too
  // small. unimplemented: the limit is not this backend's to change.
  virtual Status set_bytes_limit(std::uint64_t bytes) {
    static_cast<void>(bytes);
    return Status(StatusCode::unimplemented, "this store's limit cannot be changed");
  }

  // Makes everything acknowledged durable as far as the backend knows durability, then releases
  // threads, files and locks.
  virtual Status close(TimePoint deadline) = 0;
};

}  // namespace hitide
