#include "storage/null/null_store.h"

namespace hitide {
namespace {
constexpr std::uint64_t kObjectBytesMax = 1ull << 40;
}  // namespace

StoreCapabilities NullStore::capabilities() const {
  StoreCapabilities capabilities;
  capabilities.name = "null";
  capabilities.object_bytes_max = kObjectBytesMax;
  return capabilities;
}

CallOutcome NullStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                              const CallOptions& options) {
  const std::size_t key_bytes_max = capabilities().key_bytes_max;
  return for_each_item(gate_, "exists", out, options, [&](std::size_t i) {
    return ItemResult{.code = usable_key(keys[i], key_bytes_max) ? StatusCode::not_found
                                                                 : StatusCode::invalid_argument};
  });
}

CallOutcome NullStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                           const CallOptions& options) {
  const std::size_t key_bytes_max = capabilities().key_bytes_max;
  return for_each_item(gate_, "get", out, options, [&](std::size_t i) {
    if (!usable_key(items[i].key, key_bytes_max)) {
      return ItemResult{.code = StatusCode::invalid_argument};
    }
    gets_.add();
    return ItemResult{.code = StatusCode::not_found};
  });
}

CallOutcome NullStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                           const CallOptions& options) {
  const std::size_t key_bytes_max = capabilities().key_bytes_max;
  return for_each_item(gate_, "put", out, options, [&](std::size_t i) {
    const std::uint64_t size = total_bytes(items[i].buffers);
    if (!usable_key(items[i].key, key_bytes_max) || size == 0 || size > kObjectBytesMax) {
      return ItemResult{.code = StatusCode::invalid_argument};
    }
    puts_.add();
    put_bytes_.add(size);
    return ItemResult{.code = StatusCode::ok, .bytes = size};
  });
}

CallOutcome NullStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                              const CallOptions& options) {
  const std::size_t key_bytes_max = capabilities().key_bytes_max;
  return for_each_item(gate_, "remove", out, options, [&](std::size_t i) {
    return ItemResult{.code = usable_key(keys[i], key_bytes_max) ? StatusCode::ok
                                                                 : StatusCode::invalid_argument};
  });
}

Result<std::uint64_t> NullStore::remove_prefix(std::string_view prefix, const CallOptions&) {
  const CallGate::Pass pass(gate_);
  if (!pass) return Status(StatusCode::failed_precondition, "remove_prefix: the store is closed");
  if (!prefix.empty()) return std::uint64_t{0};
  return Status(StatusCode::invalid_argument, "remove_prefix: an empty prefix would be all");
}

Status NullStore::register_memory(const MemoryRegion&) { return {}; }
Status NullStore::unregister_memory(std::span<std::byte>) { return {}; }

StoreStats NullStore::stats() const {
  StoreStats stats;
  stats.gets = stats.get_misses = gets_.value();
  stats.puts = stats.evicted_objects = puts_.value();
  stats.put_bytes = put_bytes_.value();
  return stats;
}

Status NullStore::close(TimePoint deadline) {
  if (gate_.close(deadline)) return {};
  return Status(StatusCode::deadline_exceeded, "null store: calls are still in flight");
}

}  // namespace hitide
