#include "storage/file/file_store.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr std::uint64_t kObjectBytesMost = 1u << 30;
constexpr std::uint32_t kKeyBytesMax = 255;
constexpr std::size_t kNamesMax = 65'000;
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
  const MutexLock lock(mutex_);
  capabilities.object_bytes_max =
      std::min(kObjectBytesMost, bytes_max_ / 2 / kBlockBytes * kBlockBytes - 3 * kBlockBytes);
  capabilities.buffer_alignment = kBlockBytes;
  capabilities.persistent = true;
  return capabilities;
}

Status FileStore::register_memory(const MemoryRegion&) { return {}; }
Status FileStore::unregister_memory(std::span<std::byte>) { return {}; }

StoreStats FileStore::stats() const {
  const MutexLock lock(mutex_);
  StoreStats stats = stats_;
  stats.objects = index_.size();
  stats.index_bytes = index_.memory_bytes();
  stats.bytes_used = bytes_used_;
  stats.bytes_limit = bytes_max_;
  stats.segments = segments_.size();
  for (const auto& [number, segment] : segments_) stats.live_bytes += segment.live_bytes;
  return stats;
}

std::vector<FileStoreNamespace> FileStore::namespaces() const {
  std::vector<FileStoreNamespace> spaces;
  {
    const MutexLock lock(mutex_);
    for (const std::string& name : names_) spaces.push_back({.name = name});
  }
  index_.for_each([&](const IndexEntry& entry) {
    if (entry.space >= spaces.size()) return;  // younger than the list
    FileStoreNamespace& space = spaces[entry.space];
    ++space.objects;
    space.bytes += entry.payload_bytes;
    if (entry.written_s == 0) return;
    if (space.oldest_s == 0 || entry.written_s < space.oldest_s) space.oldest_s = entry.written_s;
    space.newest_s = std::max<std::uint64_t>(space.newest_s, entry.written_s);
  });
  std::erase_if(spaces, [](const FileStoreNamespace& space) { return space.objects == 0; });
  std::sort(spaces.begin(), spaces.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return spaces;
}

// ---- the index ----------------------------------------------------------------------------------

FileStore::KeyTurn::KeyTurn(FileStore& store, const KeyHash& key, TimePoint deadline)
    : store_(store), key_(key) {
  MutexLock lock(store_.mutex_);
  const auto free = [&]() HITIDE_REQUIRES(store_.mutex_) {
    return !store_.busy_keys_.contains(key_);
  };
  if (deadline == kNoDeadline) {
    store_.turn_.wait(lock, free);
  } else if (!free() && (deadline == kNow || !store_.turn_.wait_until(lock, deadline, free))) {
    return;
  }
  store_.busy_keys_.insert(key_);
  got_ = true;
}

FileStore::KeyTurn::~KeyTurn() {
  if (!got_) return;
  const MutexLock lock(store_.mutex_);
  store_.busy_keys_.erase(key_);
  store_.turn_.notify_all();
}

std::optional<FileStore::Located> FileStore::locate(const KeyHash& key) const {
  const auto entry = index_.find(key);
  if (!entry) return std::nullopt;
  const MutexLock lock(mutex_);
  const Slot& slot = slots_[entry->segment];
  if (slot.file == nullptr) return std::nullopt;
  return Located{.entry = *entry, .file = slot.file, .suspect = slot.suspect};
}

FileStore::Segment* FileStore::segment_in(std::uint16_t slot) {
  const auto found = segments_.find(slots_[slot].number);
  return found != segments_.end() ? &found->second : nullptr;
}

// The index has got to know the record, or has forgotten it.
void FileStore::account(const IndexEntry& entry, bool alive) {
  const MutexLock lock(mutex_);
  Segment* segment = segment_in(entry.segment);
  if (segment == nullptr) return;
  const std::uint64_t bytes = record_bytes(entry.payload_bytes);
  segment->live_bytes = alive ? segment->live_bytes + bytes : segment->live_bytes - bytes;
}

void FileStore::forget(const IndexEntry& entry) {
  if (index_.erase(entry)) account(entry, false);
}

// Namespaces beyond all bounds share the one without a name.
std::uint16_t FileStore::intern(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = numbers_of_names_.find(name);
  if (found != numbers_of_names_.end()) return found->second;
  if (names_.size() > kNamesMax) return 0;
  const auto number = static_cast<std::uint16_t>(names_.size());
  names_.emplace_back(name);
  numbers_of_names_.emplace(name, number);
  return number;
}

ItemResult FileStore::fail(StatusCode code, const Status& why) {
  log_limited(LogLevel::warning, "file_store_failure", kLogInterval,
              {{"path", options_.path}, {"error", why.to_string()}});
  return count_failure(code);
}

ItemResult FileStore::count_failure(StatusCode code) {
  const MutexLock lock(mutex_);
  ++stats_.failures;
  return {.code = code};
}

Status FileStore::health() const {
  const MutexLock lock(mutex_);
  if (!detached_) return {};
  return Status(StatusCode::failed_precondition,
                options_.path + " was taken away: nothing is stored any more; restart");
}

Status FileStore::attached() {
  Status status;
  {
    const MutexLock lock(mutex_);
    if (detached_) status = Status(StatusCode::failed_precondition, "the directory was taken away");
  }
  if (!status.ok()) return status;
  status = directory_.verify();
  if (status.code() != StatusCode::failed_precondition) return status;
  bool news = false;
  {
    const MutexLock lock(mutex_);
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
    const MutexLock lock(mutex_);
    ++stats_.gets;
    if (!found) ++stats_.get_misses;
  }
  if (!found) return {.code = StatusCode::not_found};
  const IndexEntry& entry = found->entry;
  const std::uint64_t size = entry.payload_bytes;
  if (total_bytes(item.buffers) != size) {
    return fail(
        StatusCode::data_loss,
        Status(StatusCode::data_loss, fmt::format("an object has {} bytes, {} were asked for", size,
                                                  total_bytes(item.buffers))));
  }
  const bool trusted = entry.verified != 0 && !found->suspect;
  const Status status = found->file->read(
      {.offset = entry.offset(), .payload_bytes = size}, item.key, item.buffers,
      trusted ? SegmentFile::Verify::header : SegmentFile::Verify::header_and_payload);
  if (status.ok()) {
    if (entry.verified == 0) index_.mark_verified(entry);
    const MutexLock lock(mutex_);
    stats_.get_bytes += size;
    return {.code = StatusCode::ok, .bytes = size};
  }
  const StatusCode code = code_for_caller(status);
  const auto now = locate(key);
  if (code == StatusCode::not_found || !now || !now->entry.same_place(entry)) {
    // Removed, evicted or moved while it was being read. Where a checkpoint still told of a record
    // that had been erased, it is not asked again.
    if (code == StatusCode::not_found) forget(entry);
    const MutexLock lock(mutex_);
    ++stats_.get_misses;
    return {.code = StatusCode::not_found};
  }
  // A disk that cannot be read just now may have the bytes later.
  if (code == StatusCode::data_loss) forget(entry);
  return fail(code, status);
}

CallOutcome FileStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                           const CallOptions& options) {
  const CallGate::Pass pass(gate_);
  CallOutcome outcome = for_each_item(gate_, "put", out, options,
                                      [&](std::size_t i) { return put_one(items[i], options); });
  if (pass && options_.sync_puts) settle(out, options.deadline);
  return outcome;
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
    const MutexLock lock(mutex_);
    ++stats_.puts;
  }
  if (locate(key)) {
    const MutexLock lock(mutex_);
    ++stats_.puts_existing;
    return {.code = StatusCode::already_exists};
  }
  if (Status status = attached(); !status.ok()) {
    if (status.code() == StatusCode::failed_precondition) {
      return count_failure(StatusCode::unavailable);
    }
    return fail(StatusCode::unavailable, status);
  }
  if (writes_paused()) return count_failure(StatusCode::resource_exhausted);
  const Refusal refusal = write_object({.key = item.key,
                                        .hash = key,
                                        .buffers = item.buffers,
                                        .payload_bytes = size,
                                        .deadline = options.deadline});
  if (!refusal.status.ok()) {
    // What pauses the writes says so itself.
    if (pauses_writes(refusal.bound)) return count_failure(StatusCode::resource_exhausted);
    const StatusCode code = code_for_caller(refusal.status);
    // not_found: the directory is gone. That is not an answer to a put.
    return fail(code == StatusCode::not_found ? StatusCode::unavailable : code, refusal.status);
  }
  const MutexLock lock(mutex_);
  stats_.put_bytes += size;
  return {.code = StatusCode::ok, .bytes = size};
}

CallOutcome FileStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                              const CallOptions& options) {
  const CallGate::Pass pass(gate_);
  CallOutcome outcome = for_each_item(gate_, "remove", out, options,
                                      [&](std::size_t i) { return remove_one(keys[i], options); });
  if (pass && options_.sync_puts) settle(out, options.deadline);
  return outcome;
}

ItemResult FileStore::remove_one(std::string_view name, const CallOptions& options) {
  if (!usable_key(name, kKeyBytesMax)) return {.code = StatusCode::invalid_argument};
  const KeyHash key = hash_key(name);
  const KeyTurn turn(*this, key, options.deadline);
  if (!turn) return {.code = StatusCode::deadline_exceeded};
  const auto found = locate(key);
  if (!found) return {.code = StatusCode::ok};
  forget(found->entry);
  Status status = attached();
  if (status.code() == StatusCode::failed_precondition) {
    return count_failure(StatusCode::unavailable);
  }
  // A compaction may have left a copy, which a start would find.
  std::optional<IndexEntry> copy;
  {
    const MutexLock lock(mutex_);
    const auto moved = moved_.find(key);
    if (moved != moved_.end()) copy = moved->second;
  }
  if (status.ok() && copy) status = erase_record(*copy);
  if (status.ok()) status = erase_record(found->entry);
  if (!status.ok()) return fail(code_for_caller(status), status);
  return {.code = StatusCode::ok};
}

Status FileStore::erase_record(const IndexEntry& entry) {
  HITIDE_RETURN_IF_ERROR(void_checkpoint(entry));
  std::shared_ptr<SegmentFile> file;
  {
    const MutexLock lock(mutex_);
    file = slots_[entry.segment].file;
  }
  if (file == nullptr) return {};
  HITIDE_RETURN_IF_ERROR(
      file->erase({.offset = entry.offset(), .payload_bytes = entry.payload_bytes}, entry.key));
  const MutexLock lock(mutex_);
  if (Segment* segment = segment_in(entry.segment)) segment->dirty = true;
  return {};
}

// ---- records that appear ------------------------------------------------------------------------

void FileStore::publish(const Reservation& place, const IndexEntry& entry) {
  // First, so that a checkpoint that finds no writer finds the entry.
  std::optional<IndexEntry> old;
  bool known = true;
  try {
    old = index_.put(entry);
  } catch (const std::bad_alloc&) {
    known = false;  // the record is found at the next start
  }
  if (old) account(*old, false);
  if (known) account(entry, true);
  const MutexLock lock(mutex_);
  Segment& segment = segments_.at(place.segment);
  --segment.writers;
  segment.dirty = true;
  if (segment.sequence_min == 0) segment.sequence_min = place.sequence;
  segment.sequence_min = std::min(segment.sequence_min, place.sequence);
  segment.sequence_max = std::max(segment.sequence_max, place.sequence);
}

// The record was not written, or not wholly. Its space is used again where nothing stands behind
// it, else it is lost until the segment goes. A file that may not grow any more is sealed.
void FileStore::abandon(const Reservation& place, Bound bound) {
  std::uint64_t final_end = 0;
  {
    const MutexLock lock(mutex_);
    Segment& segment = segments_.at(place.segment);
    --segment.writers;
    if (segment.end == place.offset + place.bytes) {
      segment.end = place.offset;
      bytes_used_ -= place.bytes;
      // A number that no record has looks like a lost one when the store is opened again.
      if (next_sequence_ == place.sequence + 1) next_sequence_ = place.sequence;
    } else {
      segment.damaged_bytes += place.bytes;
    }
    if (bound != Bound::file_size || segment.end == kBlockBytes) return;
    if (active_ == place.segment) active_ = 0;
    if (segment.writers == 0) final_end = segment.end;
  }
  if (final_end != 0) place.file->trim(final_end);
}

}  // namespace hitide
