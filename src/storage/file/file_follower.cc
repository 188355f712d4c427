#include "storage/file/file_follower.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr std::uint32_t kKeyBytesMax = 255;
constexpr Duration kLogInterval = std::chrono::seconds(10);
constexpr std::size_t kSlotsMax = 60'000;
// Records may yet appear in so many of the newest segments: writers that began in one may end after
// the next has begun.
constexpr std::size_t kGrowing = 2;

}  // namespace

FileFollower::FileFollower(const FileFollowerOptions& options)
    : options_(options), files_(options.files != nullptr ? *options.files : FileSystem::real()) {}

Result<std::unique_ptr<FileFollower>> FileFollower::open(const FileFollowerOptions& options) {
  if (options.path.empty()) {
    return Status(StatusCode::invalid_argument, "file store: no directory was given to follow");
  }
  std::unique_ptr<FileFollower> follower(new FileFollower(options));
  HITIDE_RETURN_IF_ERROR(follower->refresh());
  if (options.refresh_interval_ms == 0) return follower;
  try {
    follower->thread_ = std::thread([raw = follower.get()] { raw->refresh_loop(); });
  } catch (const std::system_error& error) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("file store in {}: no thread could be started to follow it: {}",
                              options.path, error.what()));
  }
  return follower;
}

FileFollower::~FileFollower() { close(kNoDeadline).ignore(); }

Status FileFollower::close(TimePoint deadline) {
  const MutexLock closing(close_mutex_);
  if (closed_) return {};
  if (!gate_.close(deadline)) {
    return Status(StatusCode::deadline_exceeded,
                  fmt::format("file store in {}: calls are still in flight", options_.path));
  }
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
    const auto done = [this]() HITIDE_REQUIRES(mutex_) { return stopped_ || !thread_.joinable(); };
    if (deadline == kNoDeadline) {
      stopped_cv_.wait(lock, done);
    } else if (!stopped_cv_.wait_until(lock, deadline, done)) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("file store in {}: it is still being looked at", options_.path));
    }
  }
  if (thread_.joinable()) thread_.join();
  const MutexLock refreshing(refresh_mutex_);
  forget_all();
  closed_ = true;
  return {};
}

// ---- following ----------------------------------------------------------------------------------

void FileFollower::refresh_loop() {
  MutexLock lock(mutex_);
  const auto interval = std::chrono::milliseconds(options_.refresh_interval_ms);
  while (!wake_.wait_for(lock, interval, [this]() HITIDE_REQUIRES(mutex_) { return stopping_; })) {
    lock.unlock();
    Status status;
    try {
      status = refresh();
    } catch (const std::exception& error) {
      status = Status(StatusCode::internal, error.what());
    }
    if (!status.ok()) {
      log_limited(LogLevel::warning, "file_store_follow_failed", kLogInterval,
                  {{"path", options_.path}, {"error", status.to_string()}});
    }
    lock.lock();
    if (!status.ok()) ++stats_.failures;
  }
  stopped_ = true;
  stopped_cv_.notify_all();
}

Status FileFollower::refresh() {
  const MutexLock refreshing(refresh_mutex_);
  const auto directory = StoreDirectory::open_to_read(options_.path);
  if (directory.status().code() == StatusCode::not_found) {
    forget_all();
    return {};
  }
  if (!directory.ok()) return directory.status();
  return follow(*directory);
}

Status FileFollower::follow(const StoreDirectory& directory) {
  struct stat info {};
  if (::fstat(directory.segments_fd(), &info) != 0) {
    return errno_status(errno, "stat", options_.path);
  }
  if (std::exchange(directory_id_, info.st_ino) != info.st_ino) forget_all();
  directory_id_ = info.st_ino;
  const std::vector<SegmentPath> found = directory.list();
  Status first;
  // In their order: a later record of a key takes the place of an earlier one.
  for (std::size_t i = 0; i < found.size(); ++i) {
    Status status = look_at(directory, found[i], i + kGrowing >= found.size());
    if (first.ok()) first = std::move(status);
  }
  // Last: what a compaction has moved is known by now.
  std::vector<std::uint64_t> gone;
  for (const auto& [number, segment] : segments_) {
    const bool there = std::binary_search(
        found.begin(), found.end(), SegmentPath{.number = number, .path = {}},
        [](const SegmentPath& a, const SegmentPath& b) { return a.number < b.number; });
    if (!there) gone.push_back(number);
  }
  for (const std::uint64_t number : gone) drop(number);
  return first;
}

Status FileFollower::look_at(const StoreDirectory& directory, const SegmentPath& found,
                             bool may_grow) {
  auto known = segments_.find(found.number);
  if (known != segments_.end() && known->second.file->unlinked()) {
    // Another file has its name: somebody has made the store anew.
    drop(found.number);
    known = segments_.end();
  }
  if (known == segments_.end()) {
    auto recovered = recover_segment(files_, directory, found, SegmentFile::Access::read);
    const StatusCode code = recovered.status().code();
    // Deleted meanwhile, or its first block is not written yet.
    if (code == StatusCode::not_found || code == StatusCode::data_loss) return {};
    if (!recovered.ok()) return recovered.status();
    if (segments_.size() >= kSlotsMax) return {};
    Segment segment{.file = recovered->file,
                    .slot = give_slot(recovered->file),
                    .bytes = found.bytes,
                    .resume = recovered->scan.first_gap};
    take(segment.slot, recovered->known.entries);
    segments_.emplace(found.number, std::move(segment));
    return {};
  }
  Segment& segment = known->second;
  // A segment that was just left behind is looked at once more.
  if (!may_grow && segment.bytes == found.bytes) return {};
  segment.bytes = found.bytes;
  Checkpoint fresh;
  HITIDE_ASSIGN_OR_RETURN(const SegmentScan scan,
                          collect_records(*segment.file, segment.resume, fresh));
  segment.resume = scan.first_gap;
  take(segment.slot, fresh.entries);
  return {};
}

// What is known already stays as it is: it may have been verified.
void FileFollower::take(std::uint16_t slot, const std::vector<IndexEntry>& entries) {
  for (IndexEntry entry : entries) {
    entry.segment = slot;
    entry.space = 0;
    const auto known = index_.find(entry.key);
    if (!known || !known->same_place(entry)) index_.put(entry);
  }
}

std::uint16_t FileFollower::give_slot(std::shared_ptr<SegmentFile> file) {
  const MutexLock lock(mutex_);
  const auto free = std::find(slots_taken_.begin(), slots_taken_.end(), false);
  const auto slot = static_cast<std::uint16_t>(free - slots_taken_.begin());
  if (free == slots_taken_.end()) {
    slots_taken_.push_back(false);
    slots_.emplace_back();
  }
  slots_taken_[slot] = true;
  slots_[slot] = std::move(file);
  return slot;
}

void FileFollower::drop(std::uint64_t number) {
  const auto segment = segments_.find(number);
  const std::uint16_t slot = segment->second.slot;
  {
    const MutexLock lock(mutex_);
    slots_[slot].reset();
  }
  index_.erase_if([slot](const IndexEntry& entry) { return entry.segment == slot; });
  segments_.erase(segment);
  const MutexLock lock(mutex_);
  slots_taken_[slot] = false;
}

void FileFollower::forget_all() {
  while (!segments_.empty()) drop(segments_.begin()->first);
  directory_id_ = 0;
}

// ---- calls --------------------------------------------------------------------------------------

StoreCapabilities FileFollower::capabilities() const {
  StoreCapabilities capabilities;
  capabilities.name = "file";
  capabilities.key_bytes_max = kKeyBytesMax;
  capabilities.object_bytes_max = 1u << 30;
  capabilities.buffer_alignment = kBlockBytes;
  capabilities.persistent = true;
  return capabilities;
}

Status FileFollower::register_memory(const MemoryRegion&) { return {}; }
Status FileFollower::unregister_memory(std::span<std::byte>) { return {}; }

StoreStats FileFollower::stats() const {
  const MutexLock lock(mutex_);
  StoreStats stats = stats_;
  stats.objects = index_.size();
  stats.index_bytes = index_.memory_bytes();
  stats.segments =
      static_cast<std::uint64_t>(std::count(slots_taken_.begin(), slots_taken_.end(), true));
  return stats;
}

std::optional<FileFollower::Located> FileFollower::locate(const KeyHash& key) const {
  const auto entry = index_.find(key);
  if (!entry) return std::nullopt;
  const MutexLock lock(mutex_);
  if (slots_[entry->segment] == nullptr) return std::nullopt;
  return Located{.entry = *entry, .file = slots_[entry->segment]};
}

CallOutcome FileFollower::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                 const CallOptions& options) {
  return for_each_item(gate_, "exists", out, options, [&](std::size_t i) {
    if (!usable_key(keys[i], kKeyBytesMax)) {
      return ItemResult{.code = StatusCode::invalid_argument};
    }
    const bool found = locate(hash_key(keys[i])).has_value();
    return ItemResult{.code = found ? StatusCode::ok : StatusCode::not_found};
  });
}

CallOutcome FileFollower::get(std::span<const GetItem> items, std::span<ItemResult> out,
                              const CallOptions& options) {
  return for_each_item(gate_, "get", out, options,
                       [&](std::size_t i) { return get_one(items[i]); });
}

ItemResult FileFollower::get_one(const GetItem& item) {
  if (!usable_key(item.key, kKeyBytesMax)) return {.code = StatusCode::invalid_argument};
  const auto found = locate(hash_key(item.key));
  StatusCode code = StatusCode::not_found;
  Status status;
  if (found) {
    const IndexEntry& entry = found->entry;
    const std::uint64_t size = entry.payload_bytes;
    if (total_bytes(item.buffers) != size) {
      status =
          Status(StatusCode::data_loss, fmt::format("an object has {} bytes, {} were asked for",
                                                    size, total_bytes(item.buffers)));
    } else {
      status = found->file->read({.offset = entry.offset(), .payload_bytes = size}, item.key,
                                 item.buffers,
                                 entry.verified != 0 ? SegmentFile::Verify::header
                                                     : SegmentFile::Verify::header_and_payload);
      if (status.ok()) index_.mark_verified(entry);
      // Removed by the owner, or damaged: not asked again.
      if (status.code() == StatusCode::data_loss || status.code() == StatusCode::not_found) {
        index_.erase(entry);
      }
    }
    code = status.code();
    const bool known =
        code == StatusCode::ok || code == StatusCode::not_found || code == StatusCode::data_loss;
    if (!known) code = StatusCode::unavailable;
  }
  const bool failed = code != StatusCode::ok && code != StatusCode::not_found;
  if (failed) {
    log_limited(LogLevel::warning, "file_store_failure", kLogInterval,
                {{"path", options_.path}, {"error", status.to_string()}});
  }
  const std::uint64_t bytes = code == StatusCode::ok ? found->entry.payload_bytes : 0;
  const MutexLock lock(mutex_);
  ++stats_.gets;
  stats_.get_bytes += bytes;
  if (code == StatusCode::not_found) ++stats_.get_misses;
  if (failed) ++stats_.failures;
  return {.code = code, .bytes = bytes};
}

CallOutcome FileFollower::put(std::span<const PutItem>, std::span<ItemResult> out,
                              const CallOptions& options) {
  return for_each_item(gate_, "put", out, options,
                       [](std::size_t) { return ItemResult{.code = StatusCode::unimplemented}; });
}

CallOutcome FileFollower::remove(std::span<const std::string_view>, std::span<ItemResult> out,
                                 const CallOptions& options) {
  return for_each_item(gate_, "remove", out, options,
                       [](std::size_t) { return ItemResult{.code = StatusCode::unimplemented}; });
}

}  // namespace hitide
