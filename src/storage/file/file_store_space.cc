// Room for records: the store's own limit, the space that the disk keeps free, and a full disk.
#include "storage/file/file_store.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "storage/file/inspect.h"

namespace hitide {
namespace {

constexpr Duration kLogInterval = std::chrono::seconds(10);
constexpr Duration kStuckPause = std::chrono::seconds(30);
// Short: writing goes on soon after space has come back.
constexpr Duration kWritePause = std::chrono::seconds(1);
constexpr Duration kWritePauseLogPause = std::chrono::seconds(60);
// After evictions that did not help. Long, and longer each time: each try costs a segment.
constexpr Duration kFutilePauseFirst = std::chrono::minutes(1);
constexpr Duration kFutilePauseMost = std::chrono::hours(1);

}  // namespace

std::string_view FileStore::describe(Bound bound) {
  switch (bound) {
    case Bound::none:
      return "none";
    case Bound::store_limit:
      return "the store's own limit";
    case Bound::free_reserve:
      return "the space that the disk keeps free";
    case Bound::disk_full:
      return "the disk is full";
    case Bound::file_size:
      return "the largest size of a file";
  }
  return "unknown";
}

std::string_view FileStore::help(Bound bound) {
  if (bound == Bound::file_size) return "raise it (ulimit -f), or use smaller pages";
  return "free space on that disk, or put the store on another one";
}

FileStore::Refusal FileStore::refusal_for(int error, std::string_view action,
                                          const std::string& path) {
  const Status status = errno_status(error, action, path);
  const bool disk_full = error == ENOSPC || error == EDQUOT;
  if (disk_full || error == EFBIG) {
    return {.status = Status(StatusCode::resource_exhausted, std::string(status.message())),
            .bound = disk_full ? Bound::disk_full : Bound::file_size};
  }
  // Descriptors or memory may lack too; nothing that is stored has to go for that.
  return {.status = Status(StatusCode::unavailable, std::string(status.message()))};
}

// ---- reserving ----------------------------------------------------------------------------------

bool FileStore::disk_has_room(std::uint64_t bytes) const {
  const std::int64_t free = files_.free_bytes(directory_.fd());
  // A disk that does not say is believed to have room; the write itself will tell.
  return free < 0 || static_cast<std::uint64_t>(free) >= bytes + options_.disk_free_bytes_min;
}

std::optional<FileStore::Reservation> FileStore::try_reserve(std::uint64_t bytes) {
  if (!disk_has_room(bytes)) return std::nullopt;
  const MutexLock lock(mutex_);
  if (active_ == 0) return std::nullopt;
  Segment& segment = segments_.at(active_);
  const bool fits = segment.end + bytes <= segment_bytes_ || segment.end == kBlockBytes;
  if (!fits || bytes_used_ + bytes > bytes_max_) return std::nullopt;
  Reservation place{.segment = active_,
                    .slot = segment.slot,
                    .offset = segment.end,
                    .bytes = bytes,
                    .sequence = next_sequence_++,
                    .file = segment.file};
  segment.end += bytes;
  bytes_used_ += bytes;
  ++segment.writers;
  return place;
}

// New segments begin in the caller's thread, which takes a moment; deleting old ones can take long,
// and is the keeper's work.
FileStore::Refusal FileStore::reserve(std::uint64_t bytes, TimePoint deadline, Reservation& place) {
  const auto reserved = [&] {
    auto got = try_reserve(bytes);
    if (!got) return false;
    place = *std::move(got);
    return true;
  };
  if (reserved()) return {};
  while (true) {
    {
      const MutexLock rolling(roll_mutex_);
      if (reserved()) return {};
      if (!store_is_full(bytes) && disk_has_room(bytes + kBlockBytes)) {
        if (Refusal refusal = begin_segment(); !refusal.status.ok()) return refusal;
        if (reserved()) return {};
        continue;
      }
    }
    Refusal refusal = run_errand([this, bytes] { return make_room(bytes); }, deadline);
    if (!refusal.status.ok()) return refusal;
  }
}

bool FileStore::store_is_full(std::uint64_t bytes) const {
  const MutexLock lock(mutex_);
  return bytes_used_ + bytes + kBlockBytes > bytes_max_ || segments_.size() >= kSegmentsMax;
}

// One step towards room for a record: a segment less, where there is too little room. Fails when
// that is not possible, so that the caller's loop ends.
FileStore::Refusal FileStore::make_room(std::uint64_t bytes) {
  if (store_is_full(bytes)) {
    const auto evicted = evict_oldest(Victim::any);
    if (evicted.ok()) return {};
    const bool no_victim = evicted.status().code() == StatusCode::resource_exhausted;
    return {.status = evicted.status(), .bound = no_victim ? Bound::store_limit : Bound::none};
  }
  const std::uint64_t needed = bytes + kBlockBytes;
  return disk_has_room(needed) ? Refusal{} : make_disk_room(needed);
}

// The disk has less than it should keep free. One old segment goes where that can help: where all
// of them would not do, or where the last ones did not (others take the space at once), what is
// stored is worth more.
FileStore::Refusal FileStore::make_disk_room(std::uint64_t needed) {
  const std::uint64_t free = free_bytes();
  Refusal refusal{.status = Status(StatusCode::resource_exhausted,
                                   fmt::format("the disk has {} bytes free and shall keep {}", free,
                                               options_.disk_free_bytes_min)),
                  .bound = Bound::free_reserve};
  if (!eviction_allowed() || free + evictable_bytes() < needed + options_.disk_free_bytes_min) {
    return refusal;
  }
  const auto evicted = evict_oldest(Victim::sealed);
  if (!evicted.ok()) return refusal;
  const bool helped = free_bytes() >= free + *evicted / 2;
  note_eviction(helped);
  return helped ? Refusal{} : refusal;
}

// For a record that did not fit on the disk, whatever the disk had said before. True: old segments
// of at least its size have gone, and it may fit now.
bool FileStore::make_way(std::uint64_t bytes) {
  if (!eviction_allowed() || evictable_bytes() < bytes) return false;
  std::uint64_t freed = 0;
  while (freed < bytes) {
    const auto evicted = evict_oldest(Victim::sealed);
    if (!evicted.ok()) break;
    freed += *evicted;
  }
  return freed > 0;
}

std::uint64_t FileStore::free_bytes() const {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, files_.free_bytes(directory_.fd())));
}

std::uint64_t FileStore::evictable_bytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [number, segment] : segments_) {
    if (evictable(number, segment, Victim::sealed)) bytes += segment.end;
  }
  return bytes;
}

bool FileStore::eviction_allowed() const {
  const MutexLock lock(mutex_);
  return clock_.now() >= futile_until_;
}

void FileStore::note_eviction(bool helped) {
  const MutexLock lock(mutex_);
  if (helped) {
    futile_pause_ = {};
    return;
  }
  futile_pause_ = std::clamp(futile_pause_ * 2, kFutilePauseFirst, kFutilePauseMost);
  futile_until_ = clock_.now() + futile_pause_;
}

// ---- writing and pausing ------------------------------------------------------------------------

FileStore::Refusal FileStore::write_object(const NewObject& object) {
  const std::uint64_t bytes = record_bytes(object.payload_bytes);
  Refusal refusal = write_once(object);
  if (refusal.again) refusal = write_once(object);
  const auto way_is_made = [&] {
    const auto work = [this, bytes] {
      return make_way(bytes) ? Refusal{} : Refusal{.status = Status(StatusCode::internal, "no")};
    };
    return run_errand(work, object.deadline).status.ok();
  };
  if (refusal.bound == Bound::disk_full && way_is_made()) {
    refusal = write_once(object);
    note_eviction(refusal.bound != Bound::disk_full);
  }
  if (pauses_writes(refusal.bound)) pause_writes(refusal);
  if (refusal.status.ok()) resume_writes();
  return refusal;
}

FileStore::Refusal FileStore::write_once(const NewObject& object) {
  const std::uint16_t space = intern(namespace_of(object.key));
  Reservation place;
  Refusal refusal = reserve(record_bytes(object.payload_bytes), object.deadline, place);
  if (!refusal.status.ok()) return refusal;
  place.file->allocate_ahead(place.offset, place.offset + place.bytes, segment_bytes());
  const std::uint32_t written_s = unix_seconds_();
  const int error = place.file->write({.offset = place.offset,
                                       .sequence = place.sequence,
                                       .written_s = written_s,
                                       .key = object.key},
                                      object.buffers);
  if (error == 0) {
    publish(place, entry_for(place, object.hash, object.payload_bytes, written_s, space));
    return {};
  }
  refusal = refusal_for(error, "write", place.file->path());
  refusal.again = refusal.bound == Bound::file_size && place.offset > kBlockBytes;
  abandon(place, refusal.bound);
  return refusal;
}

// What the store has written itself needs no verifying.
IndexEntry FileStore::entry_for(const Reservation& place, const KeyHash& key,
                                std::uint64_t payload_bytes, std::uint32_t written_s,
                                std::uint16_t space) {
  IndexEntry entry;
  entry.key = key;
  entry.block = static_cast<std::uint32_t>(place.offset / kBlockBytes);
  entry.payload_bytes = static_cast<std::uint32_t>(payload_bytes) & 0x7fffffffu;
  entry.verified = 1;
  entry.written_s = written_s;
  entry.segment = place.slot;
  entry.space = space;
  return entry;
}

std::uint64_t FileStore::segment_bytes() const {
  const MutexLock lock(mutex_);
  return segment_bytes_;
}

// Bounds that the store cannot move by itself.
bool FileStore::pauses_writes(Bound bound) {
  return bound == Bound::free_reserve || bound == Bound::disk_full || bound == Bound::file_size;
}

bool FileStore::writes_paused() const {
  const MutexLock lock(mutex_);
  return clock_.now() < paused_until_;
}

void FileStore::pause_writes(const Refusal& refusal) {
  std::uint64_t used = 0;
  std::uint64_t limit = 0;
  {
    const MutexLock lock(mutex_);
    const TimePoint time = clock_.now();
    paused_until_ = time + kWritePause;
    if (pause_said_ || time < pause_said_until_) return;
    pause_said_ = true;
    pause_said_until_ = time + kWritePauseLogPause;
    used = bytes_used_;
    limit = bytes_max_;
  }
  log_warning("file_store_writes_paused",
              {{"path", options_.path},
               {"bound", describe(refusal.bound)},
               {"error", refusal.status.message()},
               {"disk_free_bytes", free_bytes()},
               {"disk_free_bytes_min", options_.disk_free_bytes_min},
               {"bytes", used},
               {"bytes_max", limit},
               {"effect", "what is stored is still read; writing goes on when there is space"},
               {"help", help(refusal.bound)}});
}

void FileStore::resume_writes() {
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(pause_said_, false)) return;
  }
  log_info("file_store_writes_resumed", {{"path", options_.path}});
}

// ---- segments that begin and go -----------------------------------------------------------------

FileStore::Refusal FileStore::begin_segment() {
  if (Status status = attached(); !status.ok()) return {.status = std::move(status)};
  SegmentHeader header;
  {
    const MutexLock lock(mutex_);
    active_ = 0;  // sealed
    while (segments_.contains(next_segment_)) ++next_segment_;
    if (next_segment_ > kSegmentNumberMax) {
      return {.status = Status(StatusCode::unavailable,
                               fmt::format("file store in {}: segment number {} is the last one: "
                                           "give it an empty directory",
                                           options_.path, kSegmentNumberMax))};
    }
    header.number = next_segment_++;
    header.id = random_.next();
  }
  const FileAt at = directory_.segment(header.number);
  int error = 0;
  auto file = SegmentFile::create(files_, at, header, error);
  if (file == nullptr) return refusal_for(error, "create", at.path);
  const MutexLock lock(mutex_);
  const std::uint16_t slot = free_slot();
  slots_[slot] = {.number = header.number, .file = file};
  Segment& segment = segments_[header.number];
  segment.file = std::move(file);
  segment.slot = slot;
  segment.end = kBlockBytes;
  segment.dirty = true;
  bytes_used_ += kBlockBytes;
  directory_dirty_ = true;
  active_ = header.number;
  keeper_called_ = true;  // the one before can have its checkpoint
  keeper_wake_.notify_all();
  return {};
}

std::uint16_t FileStore::free_slot() {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.number == 0; });
  const auto slot = static_cast<std::uint16_t>(found - slots_.begin());
  if (found == slots_.end()) slots_.emplace_back();
  return slot;
}

bool FileStore::evictable(std::uint64_t number, const Segment& segment, Victim victim) const {
  if (segment.writers > 0 || segment.going || segment.stuck_until > clock_.now()) return false;
  return number != active_ || (victim == Victim::any && segment.end != kBlockBytes);
}

// Deletes the oldest segment that nobody writes to and that lets itself be deleted; those in which
// everything is dead go first.
Result<std::uint64_t> FileStore::evict_oldest(Victim victim) {
  HITIDE_RETURN_IF_ERROR(attached());
  const MutexLock evicting(evict_mutex_);
  while (true) {
    std::uint64_t number = 0;
    {
      const MutexLock lock(mutex_);
      const auto may_go = [&](const auto& entry) HITIDE_REQUIRES(mutex_) {
        return evictable(entry.first, entry.second, victim);
      };
      // One in which nothing is alive costs nothing.
      auto oldest = std::find_if(
          segments_.begin(), segments_.end(), [&](const auto& entry) HITIDE_REQUIRES(mutex_) {
            return entry.second.file != nullptr && entry.second.live_bytes == 0 && may_go(entry);
          });
      if (oldest == segments_.end()) {
        oldest = std::find_if(segments_.begin(), segments_.end(), may_go);
      }
      if (oldest == segments_.end()) {
        return Status(StatusCode::resource_exhausted,
                      fmt::format("file store in {}: its own limit of {} bytes is reached, {} are "
                                  "used, and no segment can be deleted now: raise the limit",
                                  options_.path, bytes_max_, bytes_used_));
      }
      number = oldest->first;
      if (number == active_) active_ = 0;
    }
    const auto bytes = delete_segment(number);
    if (!bytes.ok()) continue;  // said, and passed over from now on
    bury();
    const MutexLock lock(mutex_);
    ++stats_.evicted_segments;
    return bytes;
  }
}

// The bytes of its file, which is deleted, with its checkpoint; what was in it is forgotten.
Result<std::uint64_t> FileStore::delete_segment(std::uint64_t number) {
  bool told = false;
  {
    const MutexLock lock(mutex_);
    Segment& segment = segments_.at(number);
    segment.going = true;
    told = std::exchange(segment.checkpoint_end, 0) > 0;
  }
  if (told) files_.unlink(directory_.checkpoint(number));
  const FileAt file = directory_.segment(number);
  const int result = files_.unlink(file);
  if (result == 0 || result == -ENOENT) return drop(number);
  const Status status = errno_status(-result, "delete", file.path);
  {
    const MutexLock lock(mutex_);
    Segment& segment = segments_.at(number);
    segment.going = false;
    segment.stuck_until = clock_.now() + kStuckPause;
    ++stats_.failures;
  }
  log_limited(LogLevel::warning, "file_store_segment_stuck", kLogInterval,
              {{"error", status.to_string()}});
  return status;
}

// First nobody finds what is in it any more, then the index is cleaned, shard by shard, then its
// slot and its bytes may be used again. The last to close the file does the work of giving back its
// blocks: that is not to be a reader.
std::uint64_t FileStore::drop(std::uint64_t number) {
  std::shared_ptr<SegmentFile> file;
  std::uint64_t bytes = 0;
  std::uint16_t slot = 0;
  {
    const MutexLock lock(mutex_);
    const auto segment = segments_.find(number);
    file = std::move(segment->second.file);
    bytes = segment->second.end;
    slot = segment->second.slot;
    segments_.erase(segment);
    if (file != nullptr) slots_[slot].file.reset();
    directory_dirty_ = true;
  }
  std::uint64_t objects = 0;
  if (file != nullptr) {
    objects = index_.erase_if([slot](const IndexEntry& entry) { return entry.segment == slot; });
  }
  const MutexLock lock(mutex_);
  if (file != nullptr) {
    slots_[slot] = {};
    graveyard_.push_back(std::move(file));
  }
  stats_.evicted_objects += objects;
  bytes_used_ -= bytes;
  return bytes;
}

}  // namespace hitide
