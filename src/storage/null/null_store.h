// NullStore: takes everything and keeps nothing.
//
// As if every object were evicted the moment it was put: a put answers ok, a get not_found. What it
// measures is the cost of everything above a store.
#pragma once

#include <hitide/object_store.h>

#include "base/metrics.h"
#include "storage/call_gate.h"

namespace hitide {

class NullStore final : public ObjectStore {
 public:
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
  CallGate gate_;
  Counter gets_, puts_, put_bytes_;
};

}  // namespace hitide
