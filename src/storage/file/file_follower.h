// FileFollower: reads the store of another process, which goes on writing, evicting and compacting.
//
// Promises:
// - Never a wrong or a torn byte: a record's header is written after its payload, repeats the key,
//   and each record's checksum is compared when it is read first.
// - Nothing is changed in the directory: no lock, no file.
// - A thread follows the directory, every refresh interval; no call looks at it. So a call may know
//   less than the owner: an object is found an interval later than it was put, and `exists` may
//   name what was removed or evicted within the last one. A get of that answers not_found.
// - What is being read stays readable: a file that the owner deletes is held until the next
// refresh.
// - A store that is taken away, or is not there yet, is an empty store. Another one in its place is
//   followed as soon as it is seen.
//
// put and remove answer unimplemented. Locks: refresh_mutex_ before mutex_, which is never held
// during I/O.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hitide/object_store.h>
#include <hitide/result.h>

#include "base/mutex.h"
#include "storage/call_gate.h"
#include "storage/file/page_index.h"
#include "storage/file/recovery.h"

namespace hitide {

struct FileFollowerOptions {
  std::string path;
  std::uint32_t refresh_interval_ms = 500;  // 0: by refresh() alone
  FileSystem* files = nullptr;              // null: the real one; outlives the follower
};

class FileFollower final : public ObjectStore {
 public:
  // invalid_argument: no path; failed_precondition: a newer version, or no store of ours;
  // resource_exhausted: no thread. A directory that is not there is no failure.
  static Result<std::unique_ptr<FileFollower>> open(const FileFollowerOptions& options);
  ~FileFollower() override;  // close() without a deadline

  // Looks at the directory now. Errors: why it cannot be read; what was known stays known.
  Status refresh();

  StoreCapabilities capabilities() const override;
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  Status register_memory(const MemoryRegion& region) override;
  Status unregister_memory(std::span<std::byte> bytes) override;
  StoreStats stats() const override;
  Status close(TimePoint deadline) override;

 private:
  struct Segment {
    std::shared_ptr<SegmentFile> file;
    std::uint16_t slot = 0;
    std::uint64_t bytes = 0;   // of the file, when it was looked at last
    std::uint64_t resume = 0;  // records may yet appear from here on
  };
  struct Located {
    IndexEntry entry;
    std::shared_ptr<SegmentFile> file;
  };

  explicit FileFollower(const FileFollowerOptions& options);
  ItemResult get_one(const GetItem& item);
  std::optional<Located> locate(const KeyHash& key) const;
  Status follow(const StoreDirectory& directory) HITIDE_REQUIRES(refresh_mutex_);
  void forget_all() HITIDE_REQUIRES(refresh_mutex_);
  void drop(std::uint64_t number) HITIDE_REQUIRES(refresh_mutex_);
  Status look_at(const StoreDirectory& directory, const SegmentPath& found, bool may_grow)
      HITIDE_REQUIRES(refresh_mutex_);
  void take(std::uint16_t slot, const std::vector<IndexEntry>& entries);
  std::uint16_t give_slot(std::shared_ptr<SegmentFile> file);
  void refresh_loop();

  const FileFollowerOptions options_;
  FileSystem& files_;
  CallGate gate_;
  std::thread thread_;
  PageIndex index_;

  Mutex close_mutex_;  // one closer at a time
  bool closed_ HITIDE_GUARDED_BY(close_mutex_) = false;

  Mutex refresh_mutex_;
  std::map<std::uint64_t, Segment> segments_ HITIDE_GUARDED_BY(refresh_mutex_);
  std::uint64_t directory_id_ HITIDE_GUARDED_BY(refresh_mutex_) =
      0;  // of segments/, so that another one in its place is seen

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<SegmentFile>> slots_
      HITIDE_GUARDED_BY(mutex_);  // null: free, or going
  std::vector<bool> slots_taken_ HITIDE_GUARDED_BY(mutex_);
  CondVar wake_;
  CondVar stopped_cv_;
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;
  bool stopped_ HITIDE_GUARDED_BY(mutex_) = false;
  StoreStats stats_ HITIDE_GUARDED_BY(mutex_);
};

}  // namespace hitide
