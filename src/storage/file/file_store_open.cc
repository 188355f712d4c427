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

constexpr std::uint64_t kBytesMaxLeast = 1u << 20;
constexpr Duration kLogInterval = std::chrono::seconds(10);

std::uint64_t segment_bytes_for(const FileStoreOptions& options) {
  // Few enough to keep all of them open, enough for eviction to take small bites.
  const std::uint64_t least = options.bytes_max / 256;
  const std::uint64_t most = options.bytes_max / 8;
  return round_up_to_block(std::clamp(options.segment_bytes, least, most));
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
                    std::span<const SegmentScan> scans) {
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;
  std::string first;
  for (std::size_t i = 0; i < scans.size(); ++i) {
    std::uint64_t missing = scans[i].cut_objects;
    const bool next = i + 1 < scans.size() && found[i + 1].number == found[i].number + 1;
    if (next && scans[i].sequence_max != 0 && scans[i + 1].sequence_min > scans[i].sequence_max) {
      missing += scans[i + 1].sequence_min - scans[i].sequence_max - 1;
    }
    if (missing == 0 && scans[i].damaged_bytes == 0) continue;
    if (segments++ == 0) first = found[i].path;
    bytes += scans[i].damaged_bytes;
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
      segment_bytes_(segment_bytes_for(options)),
      files_(options.files != nullptr ? *options.files : FileSystem::real()),
      clock_(options.clock != nullptr ? *options.clock : SystemClock::instance()),
      unix_seconds_(options.unix_seconds != nullptr ? options.unix_seconds : system_unix_seconds),
      directory_(std::move(directory)),
      random_(seed_for(options)) {
  stats_.bytes_limit = options.bytes_max;
}

Result<std::unique_ptr<FileStore>> FileStore::open(const FileStoreOptions& options) {
  if (options.path.empty()) {
    return Status(StatusCode::invalid_argument,
                  "file store: no directory was given (the key path of the storage configuration, "
                  "or --directory of doctor)");
  }
  if (options.bytes_max < kBytesMaxLeast) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("file store in {}: a limit of {} bytes is too small, the least is {}",
                              options.path, options.bytes_max, kBytesMaxLeast));
  }
  HITIDE_ASSIGN_OR_RETURN(StoreDirectory directory, StoreDirectory::open(options.path));
  std::unique_ptr<FileStore> store(new FileStore(options, std::move(directory)));
  store->recover();
  HITIDE_RETURN_IF_ERROR(store->start_sync_thread());
  return store;
}

Status FileStore::start_sync_thread() {
  try {
    sync_thread_ = std::thread([this] { sync_loop(); });
  } catch (const std::system_error& error) {
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
  std::vector<std::shared_ptr<SegmentFile>> files(found.size());
  std::vector<SegmentScan> scans(found.size());
  std::vector<std::vector<FoundRecord>> records(found.size());
  std::atomic<std::size_t> next = 0;
  const auto scan_some = [&] {
    for (std::size_t i = next++; i < found.size(); i = next++) {
      auto file = SegmentFile::open(files_, directory_.segment(found[i].number), found[i].number,
                                    SegmentFile::Access::read_and_write);
      const auto note = [&](const RecordHeader& header) {
        if (header.kind != RecordKind::object) return;
        records[i].push_back({.key = hash_key(header.key),
                              .offset = header.offset,
                              .payload_bytes = header.payload_bytes});
      };
      Result<SegmentScan> scan =
          file.ok() ? (*file)->scan(note) : Result<SegmentScan>(file.status());
      if (!scan.ok()) {
        log_limited(LogLevel::warning, "file_store_segment_skipped", kLogInterval,
                    {{"path", found[i].path}, {"error", scan.status().to_string()}});
        records[i].clear();
        continue;
      }
      files[i] = std::move(*file);
      scans[i] = std::move(*scan);
    }
  };
  std::vector<std::thread> threads;
  const std::size_t helpers = std::min<std::size_t>(options_.scan_threads, found.size());
  try {
    for (std::size_t i = 1; i < helpers; ++i) threads.emplace_back(scan_some);
  } catch (const std::system_error&) {
    // Then fewer threads do it, at least this one.
  }
  scan_some();
  for (std::thread& thread : threads) thread.join();

  report_dropped(options_.path, found, scans);
  std::uint64_t damaged_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < found.size(); ++i) {
      damaged_bytes += scans[i].damaged_bytes;
      adopt(found[i], std::move(files[i]), scans[i], records[i]);
    }
    // Appending goes on in the newest segment, so that many short runs do not make many files.
    if (!segments_.empty()) {
      const auto& [number, segment] = *segments_.rbegin();
      if (segment.file != nullptr && segment.end < segment_bytes_) active_ = number;
    }
  }
  const std::lock_guard maintenance(maintenance_mutex_);
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

void FileStore::adopt(const SegmentPath& found, std::shared_ptr<SegmentFile> file,
                      const SegmentScan& scan, std::span<const FoundRecord> records) {
  Segment& segment = segments_[found.number];
  segment.end = file != nullptr ? scan.end : found.bytes;
  segment.file = std::move(file);
  for (const FoundRecord& record : records) {
    segment.keys.push_back(record.key);
    // A later record of a key takes the place of an earlier one, whose write had failed.
    index_[record.key] = {
        .segment = found.number, .offset = record.offset, .payload_bytes = record.payload_bytes};
  }
  bytes_used_ += segment.end;
  // A name alone does not use up numbers: anybody can have made the file.
  if (segment.file != nullptr) next_segment_ = std::max(next_segment_, found.number + 1);
  next_sequence_ = std::max(next_sequence_, scan.sequence_max + 1);
}

Status FileStore::close(TimePoint deadline) {
  const std::lock_guard closing(close_mutex_);
  if (closed_) return {};
  if (!gate_.close(deadline)) {
    return Status(StatusCode::deadline_exceeded,
                  fmt::format("file store in {}: calls are still in flight", options_.path));
  }
  Status status;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
    const auto done = [this] { return stopped_ || !sync_thread_.joinable(); };
    if (deadline == kNoDeadline) {
      synced_.wait(lock, done);
    } else if (!synced_.wait_until(lock, deadline, done)) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("file store in {}: the last sync is not done", options_.path));
    }
    status = last_sync_;
    segments_.clear();
    index_.clear();
    active_ = 0;
  }
  if (sync_thread_.joinable()) sync_thread_.join();
  directory_.close();
  closed_ = true;
  return status;
}

// ---- sync ---------------------------------------------------------------------------------------

void FileStore::sync_loop() {
  std::unique_lock lock(mutex_);
  const auto stopping = [this] { return stopping_; };
  while (!stopped_) {
    if (options_.sync_interval_ms == 0) {
      wake_.wait(lock, stopping);
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(options_.sync_interval_ms), stopping);
    }
    const bool last = stopping_;
    lock.unlock();
    Status status;
    try {
      status = sync_dirty();
    } catch (const std::exception& error) {
      status = Status(StatusCode::internal, error.what());
    }
    if (!status.ok()) {
      log_limited(LogLevel::warning, "file_store_sync_failed", kLogInterval,
                  {{"path", options_.path}, {"error", status.to_string()}});
    }
    lock.lock();
    if (!status.ok()) ++stats_.failures;
    last_sync_ = std::move(status);
    stopped_ = last;
  }
  synced_.notify_all();
}

// Answers the first failure, after trying everything.
Status FileStore::sync_dirty() {
  std::vector<std::shared_ptr<SegmentFile>> dirty;
  std::shared_ptr<SegmentFile> active;
  bool directory = false;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [number, segment] : segments_) {
      if (segment.dirty) dirty.push_back(segment.file);
      segment.dirty = false;
      if (number == active_) active = segment.file;
    }
    directory = std::exchange(directory_dirty_, false);
  }
  Status first = attached();
  if (first.code() == StatusCode::failed_precondition) return {};  // said, and nobody's loss
  for (const auto& file : dirty) {
    if (Status status = file->sync(); first.ok()) first = std::move(status);
  }
  if (directory) {
    const int result = files_.fdatasync(directory_.segments_fd());
    if (result < 0 && first.ok()) {
      first = errno_status(-result, "sync", segments_directory(options_.path));
    }
  }
  if (active != nullptr && active->unlinked()) {
    log_warning("file_store_segment_gone",
                {{"path", active->path()}, {"effect", "what was written to it will be lost"}});
    const std::lock_guard lock(mutex_);
    const auto segment = segments_.find(active_);
    if (segment != segments_.end() && segment->second.file == active) active_ = 0;
  }
  return first;
}

}  // namespace hitide
