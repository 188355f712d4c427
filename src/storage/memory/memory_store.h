// MemoryStore: objects in this process's memory, bounded, least recently used out first.
//
// For tests, and for several caches of one process. Not persistent. Slack past a deadline: the copy
// of one object.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <hitide/object_store.h>

#include "base/mutex.h"
#include "storage/call_gate.h"

namespace hitide {

class MemoryStore final : public ObjectStore {
 public:
  // bytes_max: sum of keys and values that are kept; also the limit of one object.
  explicit MemoryStore(std::uint64_t bytes_max);

  StoreCapabilities capabilities() const override;
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  Result<std::uint64_t> remove_prefix(std::string_view prefix, const CallOptions& options) override;
  Status register_memory(const MemoryRegion& region) override;
  Status unregister_memory(std::span<std::byte> bytes) override;
  StoreStats stats() const override;
  Status close(TimePoint deadline) override;

 private:
  using Bytes = std::vector<std::byte>;
  struct Object {
    std::shared_ptr<const Bytes> bytes;  // shared with readers that copy it outside the lock
    std::list<std::string>::iterator age;
  };
  using Objects = std::unordered_map<std::string, Object>;

  ItemResult get_one(const GetItem& item);
  ItemResult put_one(const PutItem& item);
  void drop(Objects::iterator object) HITIDE_REQUIRES(mutex_);

  const std::uint64_t bytes_max_;
  CallGate gate_;

  mutable Mutex mutex_;
  Objects objects_ HITIDE_GUARDED_BY(mutex_);
  std::list<std::string> ages_ HITIDE_GUARDED_BY(mutex_);  // keys, least recently used first
  StoreStats stats_ HITIDE_GUARDED_BY(mutex_);
};

}  // namespace hitide
