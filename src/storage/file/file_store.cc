#include "storage/file/file_store.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr std::uint64_t kObjectBytesMost = 1u << 30;
constexpr std::uint32_t kKeyBytesMax = 255;
constexpr Duration kLogInterval = std::chrono::seconds(10);

// What a caller sees of a failed file operation: only codes that say what it should do.
StatusCode code_for_caller(const Status& status) {
  switch (status.code()) {
    case StatusCode::resource_exhausted:
    case StatusCode::data_loss:
    case StatusCode::not_found:
    case StatusCode::deadline_exceeded:
      return status.code();
    default:
      return StatusCode::unavailable;
  }
}

}  // namespace

StoreCapabilities FileStore::capabilities() const {
  StoreCapabilities capabilities;
  capabilities.name = "file";
  capabilities.key_bytes_max = kKeyBytesMax;
  // Two objects of the largest size fit; a large one gets a segment of its own.
  capabilities.object_bytes_max = std::min(
      kObjectBytesMost, options_.bytes_max / 2 / kBlockBytes * kBlockBytes - 3 * kBlockBytes);
  capabilities.buffer_alignment = kBlockBytes;
  capabilities.persistent = true;
  return capabilities;
}

Status FileStore::register_memory(const MemoryRegion&) { return {}; }
Status FileStore::unregister_memory(std::span<std::byte>) { return {}; }

StoreStats FileStore::stats() const {
  const std::lock_guard lock(mutex_);
  StoreStats stats = stats_;
  stats.objects = index_.size();
  stats.bytes_used = bytes_used_;
  return stats;
}

// ---- the index ----------------------------------------------------------------------------------

class FileStore::KeyTurn {
 public:
  KeyTurn(FileStore& store, const KeyHash& key, TimePoint deadline) : store_(store), key_(key) {
    std::unique_lock lock(store_.mutex_);
    const auto free = [&] { return !store_.busy_keys_.contains(key_); };
    if (deadline == kNoDeadline) {
      store_.turn_.wait(lock, free);
    } else if (!store_.turn_.wait_until(lock, deadline, free)) {
      return;
    }
    store_.busy_keys_.insert(key_);
    got_ = true;
  }
  ~KeyTurn() {
    if (!got_) return;
    const std::lock_guard lock(store_.mutex_);
    store_.busy_keys_.erase(key_);
    store_.turn_.notify_all();
  }
  KeyTurn(const KeyTurn&) = delete;
  KeyTurn& operator=(const KeyTurn&) = delete;
  // False: the deadline came first.
  explicit operator bool() const { return got_; }

 private:
  FileStore& store_;
  const KeyHash key_;
  bool got_ = false;
};

std::optional<FileStore::Located> FileStore::locate(const KeyHash& key) const {
  const std::lock_guard lock(mutex_);
  const auto entry = index_.find(key);
  if (entry == index_.end()) return std::nullopt;
  return Located{.entry = entry->second, .file = segments_.at(entry->second.segment).file};
}

bool FileStore::still(const KeyHash& key, const Entry& entry) const {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  return found != index_.end() && found->second == entry;
}

void FileStore::forget(const KeyHash& key, const Entry& entry) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found != index_.end() && found->second == entry) index_.erase(found);
}

ItemResult FileStore::fail(StatusCode code, const Status& why) {
  log_limited(LogLevel::warning, "file_store_failure", kLogInterval,
              {{"path", options_.path}, {"error", why.to_string()}});
  return count_failure(code);
}

ItemResult FileStore::count_failure(StatusCode code) {
  const std::lock_guard lock(mutex_);
  ++stats_.failures;
  return {.code = code};
}

Status FileStore::health() const {
  const std::lock_guard lock(mutex_);
  if (!detached_) return {};
  return Status(StatusCode::failed_precondition,
                options_.path + " was taken away: nothing is stored any more; restart");
}

Status FileStore::attached() {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    if (detached_) status = Status(StatusCode::failed_precondition, "the directory was taken away");
  }
  if (!status.ok()) return status;
  status = directory_.verify();
  if (status.code() != StatusCode::failed_precondition) return status;
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    news = !std::exchange(detached_, true);
  }
  if (news) {
    log_warning("file_store_detached",
                {{"path", options_.path},
                 {"error", status.to_string()},
                 {"effect", "nothing is stored or deleted any more, what is open is still read"},
                 {"help", "restart to use the directory that is there now"}});
  }
  return status;
}

// ---- calls --------------------------------------------------------------------------------------

CallOutcome FileStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                              const CallOptions& options) {
  return for_each_item(gate_, "exists", out, options, [&](std::size_t i) {
    if (!usable_key(keys[i], kKeyBytesMax)) {
      return ItemResult{.code = StatusCode::invalid_argument};
    }
    const bool found = locate(hash_key(keys[i])).has_value();
    return ItemResult{.code = found ? StatusCode::ok : StatusCode::not_found};
  });
}

CallOutcome FileStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                           const CallOptions& options) {
  return for_each_item(gate_, "get", out, options,
                       [&](std::size_t i) { return get_one(items[i]); });
}

ItemResult FileStore::get_one(const GetItem& item) {
  if (!usable_key(item.key, kKeyBytesMax)) return {.code = StatusCode::invalid_argument};
  const KeyHash key = hash_key(item.key);
  const auto found = locate(key);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.gets;
    if (!found) ++stats_.get_misses;
  }
  if (!found) return {.code = StatusCode::not_found};
  const Entry& entry = found->entry;
  if (total_bytes(item.buffers) != entry.payload_bytes) {
    return fail(
        StatusCode::data_loss,
        Status(StatusCode::data_loss, fmt::format("an object has {} bytes, {} were asked for",
                                                  entry.payload_bytes, total_bytes(item.buffers))));
  }
  const Status status = found->file->read(
      {.offset = entry.offset, .payload_bytes = entry.payload_bytes}, item.key, item.buffers,
      entry.verified ? SegmentFile::Verify::header : SegmentFile::Verify::header_and_payload);
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    stats_.get_bytes += entry.payload_bytes;
    const auto indexed = index_.find(key);
    if (indexed != index_.end() && indexed->second == entry) indexed->second.verified = true;
    return {.code = StatusCode::ok, .bytes = entry.payload_bytes};
  }
  const StatusCode code = code_for_caller(status);
  if (code == StatusCode::not_found || !still(key, entry)) {
    // Removed or evicted while it was being read.
    const std::lock_guard lock(mutex_);
    ++stats_.get_misses;
    return {.code = StatusCode::not_found};
  }
  // A disk that cannot be read just now may have the bytes later.
  if (code == StatusCode::data_loss) forget(key, entry);
  return fail(code, status);
}

CallOutcome FileStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                           const CallOptions& options) {
  return for_each_item(gate_, "put", out, options,
                       [&](std::size_t i) { return put_one(items[i], options); });
}

ItemResult FileStore::put_one(const PutItem& item, const CallOptions& options) {
  const std::uint64_t size = total_bytes(item.buffers);
  if (!usable_key(item.key, kKeyBytesMax) || size == 0 || size > capabilities().object_bytes_max) {
    return {.code = StatusCode::invalid_argument};
  }
  const KeyHash key = hash_key(item.key);
  const KeyTurn turn(*this, key, options.deadline);
  if (!turn) return {.code = StatusCode::deadline_exceeded};
  {
    const std::lock_guard lock(mutex_);
    ++stats_.puts;
    if (index_.contains(key)) {
      ++stats_.puts_existing;
      return {.code = StatusCode::already_exists};
    }
  }
  if (Status status = attached(); !status.ok()) {
    if (status.code() == StatusCode::failed_precondition) {
      return count_failure(StatusCode::unavailable);
    }
    return fail(StatusCode::unavailable, status);
  }
  if (writes_paused()) return count_failure(StatusCode::resource_exhausted);
  const Refusal refusal = write_object(item, key, size);
  if (!refusal.status.ok()) {
    // What pauses the writes says so itself.
    if (pauses_writes(refusal.bound)) return count_failure(StatusCode::resource_exhausted);
    const StatusCode code = code_for_caller(refusal.status);
    // not_found: the directory is gone. That is not an answer to a put.
    return fail(code == StatusCode::not_found ? StatusCode::unavailable : code, refusal.status);
  }
  return {.code = StatusCode::ok, .bytes = size};
}

CallOutcome FileStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                              const CallOptions& options) {
  return for_each_item(gate_, "remove", out, options,
                       [&](std::size_t i) { return remove_one(keys[i], options); });
}

ItemResult FileStore::remove_one(std::string_view name, const CallOptions& options) {
  if (!usable_key(name, kKeyBytesMax)) return {.code = StatusCode::invalid_argument};
  const KeyHash key = hash_key(name);
  const KeyTurn turn(*this, key, options.deadline);
  if (!turn) return {.code = StatusCode::deadline_exceeded};
  const auto found = locate(key);
  if (!found) return {.code = StatusCode::ok};
  const Entry& entry = found->entry;
  forget(key, entry);
  Status status = attached();
  if (status.code() == StatusCode::failed_precondition) {
    return count_failure(StatusCode::unavailable);
  }
  if (status.ok())
    status =
        found->file->erase({.offset = entry.offset, .payload_bytes = entry.payload_bytes}, name);
  if (!status.ok()) return fail(code_for_caller(status), status);
  const std::lock_guard lock(mutex_);
  const auto segment = segments_.find(entry.segment);
  if (segment != segments_.end()) segment->second.dirty = true;
  return {.code = StatusCode::ok};
}

// ---- segments
// ------------------------------------------------------------------------------------

void FileStore::drop(std::map<std::uint64_t, Segment>::iterator segment) {
  for (const KeyHash& key : segment->second.keys) {
    const auto entry = index_.find(key);
    if (entry == index_.end() || entry->second.segment != segment->first) continue;
    index_.erase(entry);
    ++stats_.evicted_objects;
  }
  bytes_used_ -= segment->second.end;
  segments_.erase(segment);
}

void FileStore::publish(const Reservation& place, const KeyHash& key, std::uint64_t payload_bytes) {
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_.at(place.segment);
  --segment.writers;
  segment.dirty = true;
  segment.keys.push_back(key);
  index_[key] = {.segment = place.segment,
                 .offset = place.offset,
                 .payload_bytes = payload_bytes,
                 .verified = true};
  stats_.put_bytes += payload_bytes;
}

// The record was not written, or not wholly. Its space is used again where nothing stands behind
// it, else it is lost until the segment goes. A file that may not grow any more is sealed.
void FileStore::abandon(const Reservation& place, Bound bound) {
  std::uint64_t final_end = 0;
  {
    const std::lock_guard lock(mutex_);
    Segment& segment = segments_.at(place.segment);
    --segment.writers;
    if (segment.end == place.offset + place.bytes) {
      segment.end = place.offset;
      bytes_used_ -= place.bytes;
      // A number that no record has looks like a lost one when the store is opened again.
      if (next_sequence_ == place.sequence + 1) next_sequence_ = place.sequence;
    }
    if (bound != Bound::file_size || segment.end == kBlockBytes) return;
    if (active_ == place.segment) active_ = 0;
    if (segment.writers == 0) final_end = segment.end;
  }
  if (final_end != 0) place.file->trim(final_end);
}

}  // namespace hitide
