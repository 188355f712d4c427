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
constexpr Duration kStuckPause = std::chrono::seconds(30);
constexpr Duration kLogInterval = std::chrono::seconds(10);

TimePoint now() { return SystemClock::instance().now(); }

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
  Status status = attached();
  if (status.code() == StatusCode::failed_precondition) {
    return count_failure(StatusCode::unavailable);
  }
  if (status.ok()) status = write_object(item, key, size);
  if (status.code() == StatusCode::resource_exhausted && give_up_oldest().ok()) {
    // The disk is full, whatever it had said before.
    status = write_object(item, key, size);
  }
  if (!status.ok()) {
    const StatusCode code = code_for_caller(status);
    // not_found: the directory is gone. That is not an answer to a put.
    return fail(code == StatusCode::not_found ? StatusCode::unavailable : code, status);
  }
  return {.code = StatusCode::ok, .bytes = size};
}

Status FileStore::write_object(const PutItem& item, const KeyHash& key,
                               std::uint64_t payload_bytes) {
  HITIDE_ASSIGN_OR_RETURN(const Reservation place, reserve(record_bytes(payload_bytes)));
  if (Status status = place.file->write(place.offset, place.sequence, item.key, item.buffers);
      !status.ok()) {
    abandon(place);
    return status;
  }
  publish(place, key, payload_bytes);
  return {};
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

// ---- space --------------------------------------------------------------------------------------

bool FileStore::disk_has_room(std::uint64_t bytes) const {
  const std::int64_t free = files_.free_bytes(directory_.fd());
  // A disk that does not say is believed to have room; the write itself will tell.
  return free < 0 || static_cast<std::uint64_t>(free) >= bytes + options_.disk_free_bytes_min;
}

std::optional<FileStore::Reservation> FileStore::try_reserve(std::uint64_t bytes) {
  if (!disk_has_room(bytes)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (active_ == 0) return std::nullopt;
  Segment& segment = segments_.at(active_);
  const bool fits = segment.end + bytes <= segment_bytes_ || segment.end == kBlockBytes;
  if (!fits || bytes_used_ + bytes > options_.bytes_max) return std::nullopt;
  Reservation place{.segment = active_,
                    .offset = segment.end,
                    .bytes = bytes,
                    .sequence = next_sequence_++,
                    .file = segment.file};
  segment.end += bytes;
  bytes_used_ += bytes;
  ++segment.writers;
  return place;
}

Result<FileStore::Reservation> FileStore::reserve(std::uint64_t bytes) {
  if (auto place = try_reserve(bytes)) return *std::move(place);
  const std::lock_guard maintenance(maintenance_mutex_);
  while (true) {
    if (auto place = try_reserve(bytes)) return *std::move(place);
    HITIDE_RETURN_IF_ERROR(make_room(bytes));
  }
}

// One step towards room for a record: a segment less, or a new one. Fails when neither is possible,
// so that the caller's loop ends.
Status FileStore::make_room(std::uint64_t bytes) {
  const bool disk = disk_has_room(bytes + kBlockBytes);
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    full = bytes_used_ + bytes + kBlockBytes > options_.bytes_max;
  }
  if (full) return evict_oldest(Victim::any);
  return disk ? begin_segment() : evict_oldest(Victim::sealed);
}

Status FileStore::begin_segment() {
  HITIDE_RETURN_IF_ERROR(attached());
  SegmentHeader header;
  {
    const std::lock_guard lock(mutex_);
    active_ = 0;  // sealed
    header.number = next_segment_++;
    header.id = random_.next();
  }
  HITIDE_ASSIGN_OR_RETURN(auto file,
                          SegmentFile::create(files_, directory_.segment(header.number), header));
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[header.number];
  segment.file = std::move(file);
  segment.end = kBlockBytes;
  segment.dirty = true;
  bytes_used_ += kBlockBytes;
  directory_dirty_ = true;
  active_ = header.number;
  return {};
}

Status FileStore::give_up_oldest() {
  const std::lock_guard maintenance(maintenance_mutex_);
  return evict_oldest(Victim::sealed);
}

// Deletes the oldest segment that nobody writes to and that lets itself be deleted.
Status FileStore::evict_oldest(Victim victim) {
  HITIDE_RETURN_IF_ERROR(attached());
  while (true) {
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [candidate, segment] : segments_) {
        if (segment.writers > 0 || segment.stuck_until > now()) continue;
        if (candidate == active_ && (victim == Victim::sealed || segment.end == kBlockBytes)) {
          continue;
        }
        number = candidate;
        break;
      }
      if (number == 0) {
        return Status(StatusCode::resource_exhausted,
                      fmt::format("file store in {}: {} of {} bytes are used, and no segment can "
                                  "be deleted now: free disk space or raise the limit",
                                  options_.path, bytes_used_, options_.bytes_max));
      }
      if (number == active_) active_ = 0;
    }
    const FileAt file = directory_.segment(number);
    const int result = files_.unlink(file);
    const std::lock_guard lock(mutex_);
    const auto segment = segments_.find(number);
    if (result == 0 || result == -ENOENT) {
      drop(segment);
      return {};
    }
    segment->second.stuck_until = now() + kStuckPause;
    ++stats_.failures;
    log_limited(LogLevel::warning, "file_store_segment_stuck", kLogInterval,
                {{"error", errno_status(-result, "delete", file.path).to_string()}});
  }
}

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
// it, else it is lost until the segment goes.
void FileStore::abandon(const Reservation& place) {
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_.at(place.segment);
  --segment.writers;
  if (segment.end == place.offset + place.bytes) {
    segment.end = place.offset;
    bytes_used_ -= place.bytes;
  }
}

}  // namespace hitide
