#include "storage/memory/memory_store.h"

#include <algorithm>

#include "base/mutex.h"

namespace hitide {

MemoryStore::MemoryStore(std::uint64_t bytes_max) : bytes_max_(bytes_max) {
  stats_.bytes_limit = bytes_max;
}

StoreCapabilities MemoryStore::capabilities() const {
  StoreCapabilities capabilities;
  capabilities.name = "memory";
  capabilities.object_bytes_max =
      bytes_max_ - std::min<std::uint64_t>(bytes_max_, capabilities.key_bytes_max);
  return capabilities;
}

CallOutcome MemoryStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                const CallOptions& options) {
  return for_each_item(gate_, "exists", out, options, [&](std::size_t i) {
    if (!usable_key(keys[i], capabilities().key_bytes_max)) {
      return ItemResult{.code = StatusCode::invalid_argument};
    }
    const MutexLock lock(mutex_);
    const bool found = objects_.contains(std::string(keys[i]));
    return ItemResult{.code = found ? StatusCode::ok : StatusCode::not_found};
  });
}

CallOutcome MemoryStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                             const CallOptions& options) {
  return for_each_item(gate_, "get", out, options,
                       [&](std::size_t i) { return get_one(items[i]); });
}

ItemResult MemoryStore::get_one(const GetItem& item) {
  if (!usable_key(item.key, capabilities().key_bytes_max)) {
    return {.code = StatusCode::invalid_argument};
  }
  std::shared_ptr<const Bytes> bytes;
  {
    const MutexLock lock(mutex_);
    ++stats_.gets;
    const auto object = objects_.find(std::string(item.key));
    if (object == objects_.end()) {
      ++stats_.get_misses;
      return {.code = StatusCode::not_found};
    }
    bytes = object->second.bytes;
    if (bytes->size() != total_bytes(item.buffers)) {
      ++stats_.failures;
      return {.code = StatusCode::data_loss};
    }
    ages_.splice(ages_.end(), ages_, object->second.age);
    stats_.get_bytes += bytes->size();
  }
  auto from = bytes->begin();
  for (const std::span<std::byte> buffer : item.buffers) {
    std::copy_n(from, buffer.size(), buffer.begin());
    from += static_cast<std::ptrdiff_t>(buffer.size());
  }
  return {.code = StatusCode::ok, .bytes = bytes->size()};
}

CallOutcome MemoryStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                             const CallOptions& options) {
  return for_each_item(gate_, "put", out, options,
                       [&](std::size_t i) { return put_one(items[i]); });
}

ItemResult MemoryStore::put_one(const PutItem& item) {
  const StoreCapabilities limits = capabilities();
  const std::uint64_t size = total_bytes(item.buffers);
  if (!usable_key(item.key, limits.key_bytes_max) || size == 0 || size > limits.object_bytes_max) {
    return {.code = StatusCode::invalid_argument};
  }
  const std::string key(item.key);
  {
    const MutexLock lock(mutex_);
    ++stats_.puts;
    if (objects_.contains(key)) {
      ++stats_.puts_existing;
      return {.code = StatusCode::already_exists};
    }
  }
  auto bytes = std::make_shared<Bytes>();
  bytes->reserve(size);
  for (const auto buffer : item.buffers) bytes->insert(bytes->end(), buffer.begin(), buffer.end());

  const MutexLock lock(mutex_);
  if (objects_.contains(key)) {  // another thread was quicker
    ++stats_.puts_existing;
    return {.code = StatusCode::already_exists};
  }
  while (stats_.bytes_used + key.size() + size > bytes_max_) {
    drop(objects_.find(ages_.front()));
    ++stats_.evicted_objects;
  }
  ages_.push_back(key);
  objects_.emplace(key, Object{.bytes = std::move(bytes), .age = std::prev(ages_.end())});
  stats_.bytes_used += key.size() + size;
  stats_.put_bytes += size;
  stats_.objects = objects_.size();
  return {.code = StatusCode::ok, .bytes = size};
}

void MemoryStore::drop(Objects::iterator object) {
  stats_.bytes_used -= object->first.size() + object->second.bytes->size();
  ages_.erase(object->second.age);
  objects_.erase(object);
  stats_.objects = objects_.size();
}

CallOutcome MemoryStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                const CallOptions& options) {
  return for_each_item(gate_, "remove", out, options, [&](std::size_t i) {
    if (!usable_key(keys[i], capabilities().key_bytes_max)) {
      return ItemResult{.code = StatusCode::invalid_argument};
    }
    const MutexLock lock(mutex_);
    const auto object = objects_.find(std::string(keys[i]));
    if (object != objects_.end()) drop(object);
    return ItemResult{.code = StatusCode::ok};
  });
}

Result<std::uint64_t> MemoryStore::remove_prefix(std::string_view prefix, const CallOptions&) {
  if (prefix.empty()) {
    return Status(StatusCode::invalid_argument, "remove_prefix: an empty prefix would be all");
  }
  const CallGate::Pass pass(gate_);
  if (!pass) return Status(StatusCode::failed_precondition, "remove_prefix: the store is closed");
  const MutexLock lock(mutex_);
  std::uint64_t removed = 0;
  for (auto object = objects_.begin(); object != objects_.end();) {
    const auto next = std::next(object);
    if (object->first.starts_with(prefix)) {
      drop(object);
      ++removed;
    }
    object = next;
  }
  return removed;
}

Status MemoryStore::register_memory(const MemoryRegion&) { return {}; }
Status MemoryStore::unregister_memory(std::span<std::byte>) { return {}; }

StoreStats MemoryStore::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

Status MemoryStore::close(TimePoint deadline) {
  if (!gate_.close(deadline)) {
    return Status(StatusCode::deadline_exceeded, "memory store: calls are still in flight");
  }
  const MutexLock lock(mutex_);
  objects_.clear();
  ages_.clear();
  stats_.objects = 0;
  stats_.bytes_used = 0;
  return {};
}

}  // namespace hitide
