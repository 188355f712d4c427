#include "storage/file/file_store.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <span>
#include <system_error>
#include <utility>

#include <sys/random.h>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr std::size_t kSlotsMax = 60'000;
constexpr Duration kLogInterval = std::chrono::seconds(10);

std::uint64_t segment_bytes_for(std::uint64_t wanted, std::uint64_t bytes_max) {
  // Few enough to keep all of them open, enough for eviction to take small bites.
  return round_up_to_block(std::clamp(wanted, bytes_max / 256, bytes_max / 8));
}

Status check_limit(const std::string& path, std::uint64_t bytes) {
  if (bytes >= kFileStoreBytesLeast) return {};
  return Status(StatusCode::invalid_argument,
                fmt::format("file store in {}: a limit of {} bytes is too small, the least is {}",
                            path, bytes, kFileStoreBytesLeast));
}

std::uint64_t seed_for(const FileStoreOptions& options) {
  std::uint64_t seed = options.seed;
  if (seed == 0 && ::getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) {
    seed = static_cast<std::uint64_t>(SystemClock::instance().now().time_since_epoch().count());
  }
  return seed;
}

std::uint32_t system_unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

TimePoint now() { return SystemClock::instance().now(); }

// Says once what the segments should have held and do not. Sequence numbers that are missing
// between one segment and the next were objects at the end of the first; what the last segment has
// lost behind its last header is not known.
void report_dropped(const std::string& path, std::span<const SegmentPath> found,
                    std::span<const SegmentScan* const> scans) {
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;
  std::string first;
  for (std::size_t i = 0; i < scans.size(); ++i) {
    std::uint64_t missing = scans[i]->cut_objects;
    const bool next = i + 1 < scans.size() && found[i + 1].number == found[i].number + 1;
    if (next && scans[i]->sequence_max != 0 &&
        scans[i + 1]->sequence_min > scans[i]->sequence_max) {
      missing += scans[i + 1]->sequence_min - scans[i]->sequence_max - 1;
    }
    if (missing == 0 && scans[i]->damaged_bytes == 0) continue;
    if (segments++ == 0) first = found[i].path;
    bytes += scans[i]->damaged_bytes;
    objects += missing;
  }
  if (segments == 0) return;
  log_warning("file_store_records_dropped",
              {{"path", path},
               {"segments", segments},
               {"first", first},
               {"objects_at_least", objects},
               {"bytes_left_of_them", bytes},
               {"why", "segments are cut or damaged, or a writer was killed in the middle"}});
}

}  // namespace

// ---- open and close -----------------------------------------------------------------------------

FileStore::FileStore(const FileStoreOptions& options, StoreDirectory directory)
    : options_(options),
      files_(options.files != nullptr ? *options.files : FileSystem::real()),
      clock_(options.clock != nullptr ? *options.clock : SystemClock::instance()),
      unix_seconds_(options.unix_seconds != nullptr ? options.unix_seconds : system_unix_seconds),
      directory_(std::move(directory)),
      bytes_max_(options.bytes_max),
      segment_bytes_(segment_bytes_for(options.segment_bytes, options.bytes_max)),
      random_(seed_for(options)) {
  intern("");
}

Result<std::unique_ptr<FileStore>> FileStore::open(const FileStoreOptions& options) {
  if (options.path.empty()) {
    return Status(StatusCode::invalid_argument,
                  "file store: no directory was given (the key path of the storage configuration, "
                  "or --directory of doctor)");
  }
  HITIDE_RETURN_IF_ERROR(check_limit(options.path, options.bytes_max));
  HITIDE_ASSIGN_OR_RETURN(StoreDirectory directory, StoreDirectory::open(options.path));
  std::unique_ptr<FileStore> store(new FileStore(options, std::move(directory)));
  store->recover();
  HITIDE_RETURN_IF_ERROR(store->start_threads());
  return store;
}

Status FileStore::start_threads() {
  try {
    {
      const MutexLock lock(mutex_);
      keeping_ = options_.background;
    }
    if (options_.background) keeper_thread_ = std::thread([this] { keep(); });
    sync_thread_ = std::thread([this] { sync_loop(); });
  } catch (const std::system_error& error) {
    const MutexLock lock(mutex_);
    if (!keeper_thread_.joinable()) keeping_ = false;
    return Status(StatusCode::resource_exhausted,
                  fmt::format("file store in {}: no thread could be started: {}", options_.path,
                              error.what()));
  }
  return {};
}

FileStore::~FileStore() { close(kNoDeadline).ignore(); }

void FileStore::recover() {
  const TimePoint began = now();
  const std::vector<SegmentPath> found = directory_.list();
  std::vector<RecoveredSegment> recovered(found.size());
  std::atomic<std::size_t> next = 0;
  const auto recover_some = [&] {
    for (std::size_t i = next++; i < found.size(); i = next++) {
      auto segment =
          recover_segment(files_, directory_, found[i], SegmentFile::Access::read_and_write);
      if (segment.ok()) {
        recovered[i] = *std::move(segment);
        continue;
      }
      log_limited(LogLevel::warning, "file_store_segment_skipped", kLogInterval,
                  {{"path", found[i].path}, {"error", segment.status().to_string()}});
    }
  };
  std::vector<std::thread> threads;
  const std::size_t helpers = std::min<std::size_t>(options_.scan_threads, found.size());
  try {
    for (std::size_t i = 1; i < helpers; ++i) threads.emplace_back(recover_some);
  } catch (const std::system_error&) {
    // Then fewer threads do it, at least this one.
  }
  recover_some();
  for (std::thread& thread : threads) thread.join();

  std::vector<const SegmentScan*> scans;
  scans.reserve(recovered.size());
  for (const RecoveredSegment& segment : recovered) scans.push_back(&segment.scan);
  report_dropped(options_.path, found, scans);
  std::uint64_t damaged_bytes = 0;
  std::vector<IndexEntry> superseded;
  for (std::size_t i = 0; i < found.size(); ++i) {
    damaged_bytes += recovered[i].scan.damaged_bytes;
    adopt(found[i], std::move(recovered[i]), superseded);
  }
  {
    const MutexLock lock(mutex_);
    // Appending goes on in the newest segment, so that many short runs do not make many files.
    if (!segments_.empty()) {
      const auto& [number, segment] = *segments_.rbegin();
      if (segment.file != nullptr && segment.end < segment_bytes_) active_ = number;
    }
  }
  settle_copies(superseded);
  while (stats().bytes_used > options_.bytes_max && evict_oldest(Victim::any).ok()) {
  }
  const StoreStats opened = stats();
  log_info("file_store_open", {{"path", options_.path},
                               {"objects", opened.objects},
                               {"bytes", opened.bytes_used},
                               {"bytes_max", opened.bytes_limit},
                               {"damaged_bytes", damaged_bytes},
                               {"ms", fmt::format("{:.1f}", to_milliseconds(now() - began))}});
}

// A later record of a key takes the place of an earlier one, of which a compaction that was
// interrupted has left a copy.
void FileStore::adopt(const SegmentPath& found, RecoveredSegment recovered,
                      std::vector<IndexEntry>& superseded) {
  std::vector<std::uint16_t> spaces;
  for (const std::string& name : recovered.known.names) spaces.push_back(intern(name));
  std::uint16_t slot = 0;
  {
    const MutexLock lock(mutex_);
    slot = static_cast<std::uint16_t>(slots_.size());
    // More files than can be open are not ours.
    const bool usable = recovered.file != nullptr && slots_.size() < kSlotsMax;
    Segment& segment = segments_[found.number];
    segment.end = usable ? recovered.scan.end : found.bytes;
    bytes_used_ += segment.end;
    if (!usable) return;
    slots_.push_back({.number = found.number, .file = recovered.file});
    segment.file = std::move(recovered.file);
    segment.slot = slot;
    segment.damaged_bytes = recovered.scan.damaged_bytes;
    segment.sequence_min = recovered.scan.sequence_min;
    segment.sequence_max = recovered.scan.sequence_max;
    segment.checkpoint_end = recovered.checkpoint_end;
    // A name alone does not use up numbers: anybody can have made the file.
    next_segment_ = std::max(next_segment_, found.number + 1);
    next_sequence_ = std::max(next_sequence_, recovered.scan.sequence_max + 1);
  }
  for (IndexEntry entry : recovered.known.entries) {
    entry.segment = slot;
    entry.space = spaces[entry.space];
    if (const auto old = index_.put(entry)) {
      account(*old, false);
      superseded.push_back(*old);
    }
    account(entry, true);
  }
}

// Of two records of a key one is erased: else it would come back once the other is removed.
void FileStore::settle_copies(std::span<const IndexEntry> superseded) {
  Status first;
  for (const IndexEntry& entry : superseded) {
    Status status = settle_copy(entry);
    if (first.ok()) first = std::move(status);
  }
  if (first.ok()) return;
  log_warning("file_store_failure", {{"path", options_.path}, {"error", first.to_string()}});
}

// The later one stays, once it is known to be good and to last; else the older one does.
Status FileStore::settle_copy(const IndexEntry& older) {
  const auto later = locate(older.key);
  if (!later) return {};
  const IndexEntry& entry = later->entry;
  const auto record = later->file->read_record(
      {.offset = entry.offset(), .payload_bytes = entry.payload_bytes}, entry.key);
  if (record.ok()) {
    HITIDE_RETURN_IF_ERROR(later->file->sync());
    return erase_record(older);
  }
  if (record.status().code() != StatusCode::data_loss) return record.status();
  if (!index_.replace(entry, older)) return {};
  account(entry, false);
  account(older, true);
  return erase_record(entry);
}

Status FileStore::set_bytes_limit(std::uint64_t bytes) {
  const CallGate::Pass pass(gate_);
  if (!pass) return Status(StatusCode::failed_precondition, "the store is closed");
  HITIDE_RETURN_IF_ERROR(check_limit(options_.path, bytes));
  bool by_keeper = false;
  {
    const MutexLock lock(mutex_);
    bytes_max_ = bytes;
    segment_bytes_ = segment_bytes_for(options_.segment_bytes, bytes);
    by_keeper = keeping_;
    keeper_called_ = true;
    keeper_wake_.notify_all();
  }
  log_info("file_store_limit", {{"path", options_.path}, {"bytes_max", bytes}});
  while (!by_keeper && stats().bytes_used > bytes && evict_oldest(Victim::any).ok()) {
  }
  return {};
}

Status FileStore::close(TimePoint deadline) {
  const MutexLock closing(close_mutex_);
  if (closed_) return {};
  if (!gate_.close(deadline)) {
    return Status(StatusCode::deadline_exceeded,
                  fmt::format("file store in {}: calls are still in flight", options_.path));
  }
  Status status;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
    keeper_wake_.notify_all();
    const auto done = [this]() HITIDE_REQUIRES(mutex_) {
      return (stopped_ || !sync_thread_.joinable()) && (!keeping_ || !keeper_thread_.joinable());
    };
    if (deadline == kNoDeadline) {
      synced_.wait(lock, done);
    } else if (!synced_.wait_until(lock, deadline, done)) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("file store in {}: the last sync is not done", options_.path));
    }
    status = last_sync_;
  }
  if (keeper_thread_.joinable()) keeper_thread_.join();
  if (sync_thread_.joinable()) sync_thread_.join();
  {
    const MutexLock lock(mutex_);
    segments_.clear();
    slots_.clear();
    graveyard_.clear();
    active_ = 0;
  }
  index_.clear();
  directory_.close();
  closed_ = true;
  return status;
}

// ---- sync ---------------------------------------------------------------------------------------

void FileStore::sync_loop() {
  MutexLock lock(mutex_);
  const auto wanted = [this]() HITIDE_REQUIRES(mutex_) {
    return stopping_ || syncs_wanted_ > syncs_done_;
  };
  while (!stopped_) {
    if (options_.sync_interval_ms == 0) {
      wake_.wait(lock, wanted);
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(options_.sync_interval_ms), wanted);
    }
    const bool last = stopping_;
    // What the keeper writes is synced too.
    if (last) synced_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) { return !keeping_; });
    const std::uint64_t serves = syncs_wanted_;
    lock.unlock();
    Status status;
    try {
      status = sync_dirty();
      while (last && status.ok() && checkpoint_step(true)) {
      }
    } catch (const std::exception& error) {
      status = Status(StatusCode::internal, error.what());
    }
    if (!status.ok()) {
      log_limited(LogLevel::warning, "file_store_sync_failed", kLogInterval,
                  {{"path", options_.path}, {"error", status.to_string()}});
    }
    lock.lock();
    ++stats_.syncs;
    if (!status.ok()) {
      ++stats_.failures;
      syncs_failed_ = serves;
    }
    last_sync_ = std::move(status);
    syncs_done_ = serves;
    stopped_ = last;
    synced_.notify_all();
  }
}

// For calls whose records must be on the disk before they answer. One sync serves all that wait
// when it begins; it covers what they have written, as that was done before they asked.
void FileStore::settle(std::span<ItemResult> out, TimePoint deadline) {
  const auto written = [](const ItemResult& result) { return result.code == StatusCode::ok; };
  if (std::none_of(out.begin(), out.end(), written)) return;
  StatusCode code = StatusCode::ok;
  {
    MutexLock lock(mutex_);
    const std::uint64_t ticket = ++syncs_wanted_;
    wake_.notify_all();
    const auto served = [&]() HITIDE_REQUIRES(mutex_) { return syncs_done_ >= ticket; };
    if (deadline == kNoDeadline) {
      synced_.wait(lock, served);
    } else if (!synced_.wait_until(lock, deadline, served)) {
      code = StatusCode::deadline_exceeded;
    }
    if (code == StatusCode::ok && ticket <= syncs_failed_) code = StatusCode::unavailable;
  }
  if (code == StatusCode::ok) return;
  for (ItemResult& result : out) {
    if (written(result)) result = {.code = code};
  }
}

// Answers the first failure, after trying everything.
Status FileStore::sync_dirty() {
  std::vector<std::pair<std::uint64_t, std::shared_ptr<SegmentFile>>> dirty;
  std::shared_ptr<SegmentFile> active;
  bool directory = false;
  {
    const MutexLock lock(mutex_);
    for (auto& [number, segment] : segments_) {
      if (segment.dirty) dirty.emplace_back(number, segment.file);
      segment.dirty = false;
      if (number == active_) active = segment.file;
    }
    directory = std::exchange(directory_dirty_, false);
  }
  Status first = attached();
  if (first.code() == StatusCode::failed_precondition) return {};  // said, and nobody's loss
  for (const auto& [number, file] : dirty) {
    Status status = file->sync();
    if (!status.ok()) distrust(number);
    if (first.ok()) first = std::move(status);
  }
  if (directory) {
    const int result = files_.fdatasync(directory_.segments_fd());
    if (result < 0) {
      const MutexLock lock(mutex_);
      directory_dirty_ = true;
    }
    if (result < 0 && first.ok()) {
      first = errno_status(-result, "sync", segments_directory(options_.path));
    }
  }
  if (active != nullptr && active->unlinked()) leave(active);
  return first;
}

// Somebody else has deleted the file, unless the store has.
void FileStore::leave(const std::shared_ptr<SegmentFile>& gone) {
  {
    const MutexLock lock(mutex_);
    const auto segment = segments_.find(active_);
    if (segment == segments_.end() || segment->second.file != gone || segment->second.going) return;
    active_ = 0;
  }
  log_warning("file_store_segment_gone",
              {{"path", gone->path()}, {"effect", "what was written to it will be lost"}});
}

// The kernel may have dropped what it could not write, and says so once: it is not written again.
void FileStore::distrust(std::uint64_t number) {
  const MutexLock lock(mutex_);
  const auto segment = segments_.find(number);
  if (segment == segments_.end()) return;
  slots_[segment->second.slot].suspect = true;
  if (active_ == number && segment->second.end > kBlockBytes) active_ = 0;
}

}  // namespace hitide
