// The keeper: the thread that makes room ahead of the puts, compacts, and writes checkpoints.
//
// One step at a time, each bounded by one record, one file or one checkpoint; errands of puts that
// found no room come between any two steps.
#include "storage/file/file_store.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include <fcntl.h>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr Duration kPause = std::chrono::seconds(1);
constexpr Duration kRetryPause = std::chrono::seconds(30);
constexpr Duration kLogInterval = std::chrono::seconds(10);
// The newest segment is told of again when it has grown by so much: what a start has to look at.
constexpr std::uint64_t kCheckpointBytes = 32u << 20;
// Larger records are not moved: they have a segment of their own, or nearly.
constexpr std::uint64_t kMoveBytesMost = 256u << 20;
constexpr std::uint32_t kPostponedMost = 100;

}  // namespace

// ---- the thread ---------------------------------------------------------------------------------

void FileStore::keep() {
  TimePoint rest_until = TimePoint::min();
  while (true) {
    std::shared_ptr<Errand> errand;
    {
      MutexLock lock(mutex_);
      const auto called = [this]() HITIDE_REQUIRES(mutex_) {
        return stopping_ || !errands_.empty() || keeper_called_;
      };
      while (!called() && SystemClock::instance().now() < rest_until) {
        keeper_wake_.wait_until(lock, rest_until);
      }
      if (!errands_.empty()) {
        errand = std::move(errands_.front());
        errands_.pop_front();
      } else if (stopping_) {
        break;
      }
      if (errand == nullptr) keeper_called_ = false;
    }
    if (errand == nullptr) {
      rest_until = SystemClock::instance().now() + keeper_step();
      continue;
    }
    Refusal result;
    try {
      result = errand->work();
    } catch (const std::exception& error) {
      result.status = Status(StatusCode::unavailable, error.what());
    }
    const MutexLock lock(mutex_);
    errand->result = std::move(result);
    errand->done = true;
    errand_done_.notify_all();
  }
  const MutexLock lock(mutex_);
  keeping_ = false;
  synced_.notify_all();
}

// Without a keeper the caller does it itself.
FileStore::Refusal FileStore::run_errand(std::function<Refusal()> work, TimePoint deadline) {
  const auto errand = std::make_shared<Errand>();
  errand->work = std::move(work);
  {
    MutexLock lock(mutex_);
    if (keeping_) {
      errands_.push_back(errand);
      keeper_wake_.notify_all();
      const auto done = [&] { return errand->done; };
      if (deadline == kNoDeadline) {
        errand_done_.wait(lock, done);
      } else if (!errand_done_.wait_until(lock, deadline, done)) {
        return {.status = Status(
                    StatusCode::deadline_exceeded,
                    fmt::format("file store in {}: no room was made in time", options_.path))};
      }
      return std::move(errand->result);
    }
  }
  return errand->work();
}

// Answers how long the next one can wait.
Duration FileStore::keeper_step() {
  try {
    bury();
    if (make_headroom()) return {};
    if (const auto pause = compact_step()) return *pause;
    return checkpoint_step(false) ? Duration() : kPause;
  } catch (const std::exception& error) {
    log_limited(LogLevel::warning, "file_store_failure", kLogInterval,
                {{"path", options_.path}, {"error", error.what()}});
    return kPause;
  }
}

// A segment's worth of room, so that puts need not wait for a deletion. True: something has gone.
bool FileStore::make_headroom() {
  {
    const MutexLock lock(mutex_);
    const std::uint64_t headroom = std::min(segment_bytes_, bytes_max_ / 8);
    const bool crowded = segments_.size() + 1 >= kSegmentsMax;
    if (bytes_used_ + headroom <= bytes_max_ && !crowded) return false;
  }
  return evict_oldest(Victim::sealed).ok();
}

// Closes files that have been deleted, once no reader is at them.
void FileStore::bury() {
  std::vector<std::shared_ptr<SegmentFile>> closing;
  const MutexLock lock(mutex_);
  const auto last = std::partition(graveyard_.begin(), graveyard_.end(),
                                   [](const auto& file) { return file.use_count() > 1; });
  closing.assign(std::make_move_iterator(last), std::make_move_iterator(graveyard_.end()));
  graveyard_.erase(last, graveyard_.end());
}

// ---- compaction ---------------------------------------------------------------------------------

// The segment that gives back the most, where at least half of it is dead.
bool FileStore::begin_compaction() {
  if (options_.compaction_bytes_per_s == 0) return false;
  Compaction compaction;
  std::uint64_t live_bytes = 0;
  {
    const MutexLock lock(mutex_);
    if (detached_) return false;
    std::uint64_t most = 0;
    for (const auto& [number, segment] : segments_) {
      const std::uint64_t dead = segment.end - std::min(segment.end, segment.live_bytes);
      const bool usable = segment.file != nullptr && number != active_ && segment.writers == 0 &&
                          segment.live_bytes <= kMoveBytesMost &&
                          std::max(segment.stuck_until, segment.compact_after) <= clock_.now();
      if (!usable || dead * 2 < segment.end || dead <= most) continue;
      most = dead;
      compaction.source = number;
      compaction.slot = segment.slot;
      live_bytes = segment.live_bytes;
    }
    if (most == 0 || bytes_used_ + live_bytes + segment_bytes_ > bytes_max_) return false;
  }
  if (!disk_has_room(live_bytes + kBlockBytes)) return false;
  index_.for_each([&](const IndexEntry& entry) {
    if (entry.segment == compaction.slot) compaction.left.push_back(entry);
  });
  // In the order of the file, for the disk's sake.
  std::sort(compaction.left.begin(), compaction.left.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.block < b.block; });
  compaction_ = std::move(compaction);
  return true;
}

// Nothing: there is nothing to compact. Else how long to wait, so that the disk is left to others.
std::optional<Duration> FileStore::compact_step() {
  if (!compaction_ && !begin_compaction()) return std::nullopt;
  {
    const MutexLock lock(mutex_);
    const auto source = segments_.find(compaction_->source);
    const bool there = source != segments_.end() && source->second.slot == compaction_->slot;
    if (!there) moved_.clear();
    if (!there) compaction_.reset();
  }
  if (!compaction_) return Duration();
  if (compaction_->left.empty()) return finish_compaction();
  const IndexEntry entry = compaction_->left.front();
  compaction_->left.pop_front();
  if (!move_record(entry)) {
    compaction_->given_up = true;
    compaction_->left.clear();
  }
  const double seconds = static_cast<double>(record_bytes(entry.payload_bytes)) /
                         static_cast<double>(options_.compaction_bytes_per_s);
  return from_seconds(seconds);
}

// False: not now. A record that does not verify, or has gone, is left behind.
bool FileStore::move_record(const IndexEntry& entry) {
  // Whoever has the key's turn may be waiting for an errand: nobody waits for that here.
  const KeyTurn turn(*this, entry.key, KeyTurn::kNow);
  if (!turn) {
    compaction_->left.push_back(entry);
    return ++compaction_->postponed < kPostponedMost;
  }
  compaction_->postponed = 0;
  const auto found = locate(entry.key);
  if (!found || !found->entry.same_place(entry)) return true;
  const SegmentFile::Place from{.offset = entry.offset(), .payload_bytes = entry.payload_bytes};
  const auto record = found->file->read_record(from, entry.key);
  const StatusCode code = record.status().code();
  if (code == StatusCode::data_loss || code == StatusCode::not_found) forget(found->entry);
  if (code == StatusCode::data_loss || code == StatusCode::not_found) return true;
  if (!record.ok() || !attached().ok()) return false;

  Reservation place;
  if (!reserve_for_move(record_bytes(entry.payload_bytes), place)) return false;
  const std::span<const std::byte> payload(record->payload);
  const int error = place.file->write({.offset = place.offset,
                                       .sequence = place.sequence,
                                       .written_s = record->written_s,
                                       .key = record->key},
                                      std::span(&payload, 1));
  if (error != 0) {
    abandon(place, Bound::none);
    return false;
  }
  {
    const MutexLock lock(mutex_);
    moved_.emplace(entry.key, entry);
    stats_.compacted_bytes += place.bytes;
  }
  compaction_->targets.insert(place.segment);
  publish(place, entry_for(place, entry.key, entry.payload_bytes, record->written_s, entry.space));
  return true;
}

// Never at the cost of another segment.
bool FileStore::reserve_for_move(std::uint64_t bytes, Reservation& place) {
  const MutexLock rolling(roll_mutex_);
  auto got = try_reserve(bytes);
  if (!got && !store_is_full(bytes) && disk_has_room(bytes + kBlockBytes)) {
    if (!begin_segment().status.ok()) return false;
    got = try_reserve(bytes);
  }
  if (!got) return false;
  place = *std::move(got);
  return true;
}

// The copies are on the disk before the originals go, and these are gone for good before a removed
// copy is forgotten. Until that has been done nothing else is compacted.
Duration FileStore::finish_compaction() {
  if (!attached().ok() || !sync_targets()) return kRetryPause;
  const bool gone = !compaction_->given_up && delete_source();
  if (!gone) erase_originals();
  const MutexLock lock(mutex_);
  if (gone) ++stats_.compactions;
  const auto source = segments_.find(compaction_->source);
  if (source != segments_.end()) source->second.compact_after = clock_.now() + kRetryPause;
  moved_.clear();
  compaction_.reset();
  return Duration();
}

bool FileStore::sync_targets() {
  for (const std::uint64_t number : compaction_->targets) {
    std::shared_ptr<SegmentFile> file;
    {
      const MutexLock lock(mutex_);
      const auto segment = segments_.find(number);
      if (segment != segments_.end()) file = segment->second.file;
    }
    if (file == nullptr || file->sync().ok()) continue;
    distrust(number);
    return false;
  }
  // Their names too: without them the copies are nowhere.
  return files_.fdatasync(directory_.segments_fd()) >= 0;
}

bool FileStore::delete_source() {
  {
    const MutexLock lock(mutex_);
    const Segment& source = segments_.at(compaction_->source);
    if (source.live_bytes > 0 || source.writers > 0) return false;
  }
  const MutexLock evicting(evict_mutex_);
  if (!delete_segment(compaction_->source).ok()) return false;
  return files_.fdatasync(directory_.segments_fd()) >= 0;
}

// Else a start would find them again once their copies are removed.
void FileStore::erase_originals() {
  std::vector<IndexEntry> originals;
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, original] : moved_) originals.push_back(original);
  }
  for (const IndexEntry& original : originals) {
    if (const Status status = erase_record(original); !status.ok()) {
      log_limited(LogLevel::warning, "file_store_failure", kLogInterval,
                  {{"path", options_.path}, {"error", status.to_string()}});
    }
  }
}

// ---- checkpoints --------------------------------------------------------------------------------

// True: one was written, or could not be and waits. When closing, the newest segment too.
bool FileStore::checkpoint_step(bool closing) {
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    if (detached_) return false;
    const auto wanted = [&](const auto& entry) HITIDE_REQUIRES(mutex_) {
      const Segment& segment = entry.second;
      const bool whole = entry.first != active_ || closing;
      const std::uint64_t least = whole ? 0 : kCheckpointBytes;
      return segment.file != nullptr && segment.writers == 0 && !slots_[segment.slot].suspect &&
             segment.end > segment.checkpoint_end + least && segment.end > kBlockBytes &&
             segment.checkpoint_after <= clock_.now();
    };
    const auto found = std::find_if(segments_.begin(), segments_.end(), wanted);
    if (found == segments_.end()) return false;
    number = found->first;
    // Whatever comes of it.
    found->second.checkpoint_after = clock_.now() + kRetryPause;
  }
  const Status status = write_checkpoint(number);
  if (!status.ok()) {
    log_limited(LogLevel::warning, "file_store_checkpoint_failed", kLogInterval,
                {{"path", directory_.checkpoint(number).path}, {"error", status.to_string()}});
  }
  return true;
}

// Of the store's namespaces, those that the checkpoint's entries are of.
void FileStore::name_spaces(Checkpoint& checkpoint, const std::vector<std::string>& names) {
  std::map<std::uint16_t, std::uint16_t> numbers;
  for (IndexEntry& entry : checkpoint.entries) {
    const auto [number, fresh] =
        numbers.try_emplace(entry.space, static_cast<std::uint16_t>(numbers.size()));
    if (fresh) checkpoint.names.push_back(names[entry.space]);
    entry.space = number->second;
  }
}

Status FileStore::write_checkpoint(std::uint64_t number) {
  HITIDE_RETURN_IF_ERROR(attached());
  Checkpoint checkpoint;
  checkpoint.number = number;
  std::vector<std::string> names;
  std::shared_ptr<SegmentFile> file;
  std::uint64_t erasures = 0;
  std::uint16_t slot = 0;
  bool dirty = false;
  {
    const MutexLock lock(mutex_);
    const auto found = segments_.find(number);
    if (found == segments_.end() || found->second.writers > 0) return {};
    const Segment& segment = found->second;
    file = segment.file;
    slot = segment.slot;
    erasures = segment.erasures;
    dirty = segment.dirty;
    checkpoint.id = file->id();
    checkpoint.end = segment.end;
    checkpoint.sequence_min = segment.sequence_min;
    checkpoint.sequence_max = segment.sequence_max;
    checkpoint.damaged_bytes = segment.damaged_bytes;
    names = names_;
  }
  // What it tells of must not be less lasting than itself. It is not synced: torn, it is not
  // believed.
  if (Status status = dirty ? file->sync() : Status(); !status.ok()) {
    distrust(number);
    return status;
  }
  index_.for_each([&](const IndexEntry& entry) {
    if (entry.segment == slot && entry.offset() < checkpoint.end) {
      checkpoint.entries.push_back(entry);
    }
  });
  name_spaces(checkpoint, names);
  HITIDE_RETURN_IF_ERROR(write_checkpoint_file(number, encode_checkpoint(checkpoint)));
  const FileAt fresh = directory_.fresh_checkpoint(number);
  const MutexLock appearing(checkpoint_mutex_);
  {
    const MutexLock lock(mutex_);
    const auto found = segments_.find(number);
    if (found == segments_.end() || found->second.erasures != erasures) {
      files_.unlink(fresh);
      return {};
    }
  }
  const int result = files_.rename(fresh, directory_.checkpoint(number));
  if (result < 0) return errno_status(-result, "rename", fresh.path);
  const MutexLock lock(mutex_);
  Segment& segment = segments_.at(number);
  segment.checkpoint_end = checkpoint.end;
  segment.checkpoint_after = {};
  ++stats_.checkpoints;
  return {};
}

Status FileStore::write_checkpoint_file(std::uint64_t number, std::span<const std::byte> bytes) {
  const FileAt fresh = directory_.fresh_checkpoint(number);
  files_.unlink(fresh);  // of a process that was killed here
  HITIDE_ASSIGN_OR_RETURN(const UniqueFd fd, open_plain(files_, fresh, O_RDWR | O_CREAT | O_EXCL));
  iovec buffer{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  const std::int64_t done = transfer_fully(files_, Transfer::write, fd.get(), {&buffer, 1}, 0);
  int error = done < 0 ? static_cast<int>(-done) : 0;
  if (done >= 0 && done != static_cast<std::int64_t>(bytes.size())) error = ENOSPC;
  if (error == 0) return {};
  files_.unlink(fresh);
  return errno_status(error, "write", fresh.path);
}

// Before a record is marked as erased, so that no start believes otherwise.
Status FileStore::void_checkpoint(const IndexEntry& erased) {
  const MutexLock vanishing(checkpoint_mutex_);
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    Segment* segment = segment_in(erased.segment);
    if (segment == nullptr) return {};
    ++segment->erasures;
    if (segment->checkpoint_end <= erased.offset()) return {};
    number = slots_[erased.segment].number;
  }
  const FileAt file = directory_.checkpoint(number);
  const int result = files_.unlink(file);
  if (result != 0 && result != -ENOENT) return errno_status(-result, "delete", file.path);
  const MutexLock lock(mutex_);
  directory_dirty_ = true;
  if (Segment* segment = segment_in(erased.segment)) {
    segment->checkpoint_end = 0;
    // Where many are removed it is not written again for each of them.
    segment->checkpoint_after = clock_.now() + kPause;
  }
  return {};
}

}  // namespace hitide
