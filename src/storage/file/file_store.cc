#include "storage/file/file_store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <system_error>

#include <fcntl.h>
#include <sys/random.h>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr std::uint64_t kBytesMaxLeast = 1u << 20;
constexpr std::uint64_t kObjectBytesMost = 1u << 30;
constexpr std::uint32_t kKeyBytesMax = 255;
constexpr Duration kStuckPause = std::chrono::seconds(30);
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

TimePoint now() { return SystemClock::instance().now(); }

// What a caller sees of a failed file operation: only codes that say what it should do.
StatusCode code_for_caller(const Status& status) {
  switch (status.code()) {
    case StatusCode::resource_exhausted:
    case StatusCode::data_loss:
    case StatusCode::not_found:
    case StatusCode::deadline_exceeded: return status.code();
    default: return StatusCode::unavailable;
  }
}

}  // namespace

// ---- open and close ------------------------------------------------------------------------------

FileStore::FileStore(const FileStoreOptions& options, UniqueFd lock)
    : options_(options),
      segment_bytes_(segment_bytes_for(options)),
      files_(options.files != nullptr ? *options.files : FileSystem::real()),
      lock_(std::move(lock)),
      random_(seed_for(options)) {
  stats_.bytes_limit = options.bytes_max;
}

Result<std::unique_ptr<FileStore>> FileStore::open(const FileStoreOptions& options) {
  if (options.path.empty()) {
    return Status(StatusCode::invalid_argument, "file store: no directory was given");
  }
  if (options.bytes_max < kBytesMaxLeast) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("file store in {}: a limit of {} bytes is too small, the least is {}",
                              options.path, options.bytes_max, kBytesMaxLeast));
  }
  HITIDE_ASSIGN_OR_RETURN(UniqueFd lock, lock_store_directory(options.path));
  std::unique_ptr<FileStore> store(new FileStore(options, std::move(lock)));
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
  const std::vector<SegmentPath> found = list_segments(options_.path);
  std::vector<std::shared_ptr<SegmentFile>> files(found.size());
  std::vector<SegmentScan> scans(found.size());
  std::atomic<std::size_t> next = 0;
  const auto scan_some = [&] {
    for (std::size_t i = next++; i < found.size(); i = next++) {
      auto file = SegmentFile::open(files_, found[i].path, found[i].number);
      Result<SegmentScan> scan = file.ok() ? (*file)->scan() : Result<SegmentScan>(file.status());
      if (!scan.ok()) {
        log_limited(LogLevel::warning, "file_store_segment_skipped", kLogInterval,
                    {{"path", found[i].path}, {"error", scan.status().to_string()}});
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

  std::uint64_t damaged_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < found.size(); ++i) {
      damaged_bytes += scans[i].damaged_bytes;
      adopt(found[i], std::move(files[i]), std::move(scans[i]));
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
                      SegmentScan scan) {
  Segment& segment = segments_[found.number];
  segment.path = found.path;
  segment.end = file != nullptr ? scan.end : found.bytes;
  segment.file = std::move(file);
  for (const FoundRecord& record : scan.records) {
    segment.keys.push_back(record.key);
    // A later record of a key takes the place of an earlier one, whose write had failed.
    index_[record.key] = {.segment = found.number,
                          .offset = record.offset,
                          .payload_bytes = record.payload_bytes};
  }
  bytes_used_ += segment.end;
  next_segment_ = std::max(next_segment_, found.number + 1);
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
  lock_.reset();
  closed_ = true;
  return status;
}

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

Status FileStore::register_memory(std::span<std::byte>) { return {}; }
Status FileStore::unregister_memory(std::span<std::byte>) { return {}; }

StoreStats FileStore::stats() const {
  const std::lock_guard lock(mutex_);
  StoreStats stats = stats_;
  stats.objects = index_.size();
  stats.bytes_used = bytes_used_;
  return stats;
}

// ---- the index -----------------------------------------------------------------------------------

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
  const std::lock_guard lock(mutex_);
  ++stats_.failures;
  return {.code = code};
}

// ---- calls ---------------------------------------------------------------------------------------

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
    return fail(StatusCode::data_loss,
                Status(StatusCode::data_loss,
                       fmt::format("an object has {} bytes, {} were asked for",
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
  if (!usable_key(item.key, kKeyBytesMax) || size == 0 ||
      size > capabilities().object_bytes_max) {
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
  Status status = write_object(item, key, size);
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
  const Status status =
      found->file->erase({.offset = entry.offset, .payload_bytes = entry.payload_bytes}, name);
  if (!status.ok()) return fail(code_for_caller(status), status);
  const std::lock_guard lock(mutex_);
  const auto segment = segments_.find(entry.segment);
  if (segment != segments_.end()) segment->second.dirty = true;
  return {.code = StatusCode::ok};
}

// ---- space ---------------------------------------------------------------------------------------

bool FileStore::disk_has_room(std::uint64_t bytes) const {
  const std::int64_t free = files_.free_bytes(options_.path);
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
  SegmentHeader header;
  {
    const std::lock_guard lock(mutex_);
    active_ = 0;  // sealed
    header.number = next_segment_++;
    header.id = random_.next();
  }
  const std::string path = segment_path(options_.path, header.number);
  HITIDE_ASSIGN_OR_RETURN(auto file, SegmentFile::create(files_, path, header));
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[header.number];
  segment.file = std::move(file);
  segment.path = path;
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
  while (true) {
    std::uint64_t number = 0;
    std::string path;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [candidate, segment] : segments_) {
        if (segment.writers > 0 || segment.stuck_until > now()) continue;
        if (candidate == active_ && (victim == Victim::sealed || segment.end == kBlockBytes)) {
          continue;
        }
        number = candidate;
        path = segment.path;
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
    const int result = files_.unlink(path);
    const std::lock_guard lock(mutex_);
    const auto segment = segments_.find(number);
    if (result == 0 || result == -ENOENT) {
      drop(segment);
      return {};
    }
    segment->second.stuck_until = now() + kStuckPause;
    ++stats_.failures;
    log_limited(LogLevel::warning, "file_store_segment_stuck", kLogInterval,
                {{"error", errno_status(-result, "delete", path).to_string()}});
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

void FileStore::publish(const Reservation& place, const KeyHash& key,
                        std::uint64_t payload_bytes) {
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

// ---- sync ----------------------------------------------------------------------------------------

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
  Status first;
  for (const auto& file : dirty) {
    if (Status status = file->sync(); first.ok()) first = std::move(status);
  }
  if (directory) {
    const std::string path = segments_directory(options_.path);
    const UniqueFd fd(files_.open(path, O_RDONLY | O_DIRECTORY));
    const int result = fd.valid() ? files_.fdatasync(fd.get()) : fd.get();
    if (result < 0 && first.ok()) first = errno_status(-result, "sync", path);
  }
  if (active != nullptr && active->unlinked()) {
    log_warning("file_store_segment_gone", {{"path", active->path()},
                                            {"effect", "what was written to it will be lost"}});
    const std::lock_guard lock(mutex_);
    const auto segment = segments_.find(active_);
    if (segment != segments_.end() && segment->second.file == active) active_ = 0;
  }
  return first;
}

}  // namespace hitide
