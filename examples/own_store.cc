// A store of one's own, and the conformance suite of ObjectStore over it. This one is a map under
// a lock: the smallest that the contract allows.
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <hitide/conformance/object_store_suite.h>
#include <hitide/object_store.h>

namespace hitide {
namespace {

class MapStore final : public ObjectStore {
 public:
  StoreCapabilities capabilities() const override {
    StoreCapabilities capabilities;
    capabilities.name = "map";
    capabilities.object_bytes_max = 64u << 20;
    return capabilities;
  }

  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return each(out, options, [&](std::size_t i) -> ItemResult {
      if (!usable(keys[i])) return {StatusCode::invalid_argument};
      return {objects_.count(keys[i]) != 0 ? StatusCode::ok : StatusCode::not_found};
    });
  }
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    return each(out, options, [&](std::size_t i) { return get_one(items[i]); });
  }
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    return each(out, options, [&](std::size_t i) { return put_one(items[i]); });
  }
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return each(out, options, [&](std::size_t i) -> ItemResult {
      if (!usable(keys[i])) return {StatusCode::invalid_argument};
      const auto found = objects_.find(keys[i]);
      if (found != objects_.end()) objects_.erase(found);
      return {StatusCode::ok};
    });
  }
  Result<std::uint64_t> remove_prefix(std::string_view prefix, const CallOptions&) override {
    const std::lock_guard lock(mutex_);
    if (closed_) return Status(StatusCode::failed_precondition, "the store is closed");
    if (prefix.empty()) return Status(StatusCode::invalid_argument, "a prefix is needed");
    return std::erase_if(objects_, [&](const auto& object) {
      return std::string_view(object.first).starts_with(prefix);
    });
  }
  // Any memory will do.
  Status register_memory(const MemoryRegion&) override { return {}; }
  Status unregister_memory(std::span<std::byte>) override { return {}; }

  StoreStats stats() const override {
    const std::lock_guard lock(mutex_);
    StoreStats stats = stats_;
    stats.objects = objects_.size();
    for (const auto& [key, bytes] : objects_) stats.bytes_used += key.size() + bytes.size();
    return stats;
  }
  Status close(TimePoint) override {
    const std::lock_guard lock(mutex_);  // so no call is in flight
    closed_ = true;
    return {};
  }

 private:
  using Bytes = std::vector<std::byte>;

  bool usable(std::string_view key) const {
    return !key.empty() && key.size() <= capabilities().key_bytes_max;
  }

  // One answer for each item, until the deadline.
  template <typename One>
  CallOutcome each(std::span<ItemResult> out, const CallOptions& options, const One& one) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool late = options.deadline <= std::chrono::steady_clock::now();
      if (!closed_ && !late) {
        out[i] = one(i);
        continue;
      }
      const StatusCode code =
          closed_ ? StatusCode::failed_precondition : StatusCode::deadline_exceeded;
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(i), out.end(), ItemResult{code});
      return {Status(code, closed_ ? "the store is closed" : "the deadline has passed")};
    }
    return {};
  }

  ItemResult get_one(const GetItem& item) {
    if (!usable(item.key)) return {StatusCode::invalid_argument};
    ++stats_.gets;
    const auto found = objects_.find(item.key);
    if (found == objects_.end()) {
      ++stats_.get_misses;
      return {StatusCode::not_found};
    }
    std::size_t wanted = 0;
    for (const auto buffer : item.buffers) wanted += buffer.size();
    if (wanted != found->second.size()) return {StatusCode::data_loss};
    auto from = found->second.begin();
    for (const auto buffer : item.buffers) {
      std::copy_n(from, buffer.size(), buffer.begin());
      from += static_cast<std::ptrdiff_t>(buffer.size());
    }
    stats_.get_bytes += wanted;
    return {StatusCode::ok, wanted};
  }

  ItemResult put_one(const PutItem& item) {
    Bytes bytes;
    for (const auto buffer : item.buffers) {
      bytes.insert(bytes.end(), buffer.begin(), buffer.end());
    }
    if (!usable(item.key) || bytes.empty()) return {StatusCode::invalid_argument};
    ++stats_.puts;
    const std::size_t size = bytes.size();
    if (!objects_.emplace(item.key, std::move(bytes)).second) {
      ++stats_.puts_existing;
      return {StatusCode::already_exists};
    }
    stats_.put_bytes += size;
    return {StatusCode::ok, size};
  }

  mutable std::mutex mutex_;
  std::map<std::string, Bytes, std::less<>> objects_;  // guarded by mutex_, as all below
  StoreStats stats_;
  bool closed_ = false;
};

const StoreKind kMap{.name = "map", .open = [] {
                       return StoreUnderTest{nullptr, std::make_unique<MapStore>()};
                     }};

INSTANTIATE_TEST_SUITE_P(Own, ObjectStoreSuite, testing::Values(kMap));

}  // namespace
}  // namespace hitide
