// FileStore: objects in log-structured segment files of one directory. Format:
// docs/formats/file_store.md.
//
//   put   --> the active segment, appended; full: sealed, a new one begins
//   get   --> one read from whatever segment holds the object
//   evict --> the oldest segment's file is deleted, with everything in it
//
// Promises:
// - One process at a time has the directory open.
// - After kill -9 at any point everything acknowledged is there and nothing else is: a record's
//   header is written after its payload. After a power loss that holds for what the last sync
//   covered (every sync_interval, and at close); what was written later is verified when it is read
//   first, and is lost where it does not verify.
// - What this process did not write itself is verified by checksum when it is read first. Beyond
//   that a get checks the record's header, key and length; damage that happens to the file later is
//   for the envelope to find.
// - The limit covers all segment files, those of earlier runs included, and the disk keeps
//   disk_free_bytes_min, but for 4 MiB at most that the newest segment asks for ahead of its
//   writes: otherwise old segments go, and where none can go a put answers
//   resource_exhausted. A file that may not grow (RLIMIT_FSIZE) is sealed as it is, and a new one
//   begins; the program has to ignore SIGXFSZ. No failure of the disk ends the store or its thread.
// - Where others have filled the disk, what is stored stays: segments go only where that can give
//   enough space, and no more of them for a while once it did not. Puts answer resource_exhausted,
//   almost without I/O and with one warning, until there is space.
//
// - Nothing is written or deleted by path. When the directory is deleted or replaced, or its lock
//   is, while the store is open, it is somebody else's: from then on puts and removes answer
//   unavailable, nothing is deleted, and gets go on with what is open. That lasts until the store
//   is opened again.
//
// Calls do their I/O in the caller's thread; one more thread syncs. Slack past a deadline: the I/O
// of one item, and for a put the deletion of old segments. Locks, in the order of taking:
// maintenance_mutex_ (held while files are made and deleted), mutex_ (never held during I/O).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <hitide/object_store.h>
#include <hitide/result.h>

#include "base/clock.h"
#include "base/random.h"
#include "storage/call_gate.h"
#include "storage/file/directory.h"
#include "storage/file/segment.h"

namespace hitide {

struct FileStoreOptions {
  std::string path;
  std::uint64_t bytes_max = 0;               // >= 1 MiB
  std::uint64_t segment_bytes = 256u << 20;  // kept between 1/256 and 1/8 of bytes_max
  std::uint64_t disk_free_bytes_min = 256u << 20;
  std::uint32_t sync_interval_ms = 1000;  // 0: only at close
  std::uint32_t scan_threads = 4;         // at start
  std::uint64_t seed = 0;                 // of segment ids; 0: from the system
  FileSystem* files = nullptr;            // null: the real one; outlives the store
  const Clock* clock = nullptr;           // of pauses. Null: the system's; outlives the store
  // When records are written, in Unix time. Null: the system's.
  std::uint32_t (*unix_seconds)() = nullptr;
};

class FileStore final : public ObjectStore {
 public:
  // Takes the directory and finds what is in it. Files that cannot be read are reported and count
  // as used space. Errors: StoreDirectory::open(); invalid_argument: no path, or a limit that is
  // too small.
  static Result<std::unique_ptr<FileStore>> open(const FileStoreOptions& options);
  ~FileStore() override;  // close() without a deadline

  StoreCapabilities capabilities() const override;
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  // Reads one block for each object that the store holds.
  Result<std::uint64_t> remove_prefix(std::string_view prefix, const CallOptions& options) override;
  Status register_memory(const MemoryRegion& region) override;
  Status unregister_memory(std::span<std::byte> bytes) override;
  StoreStats stats() const override;
  Status health() const override;
  // deadline_exceeded: calls or the last sync took too long; may be called again. Otherwise the
  // outcome of the last sync, the first time.
  Status close(TimePoint deadline) override;

 private:
  struct HashOfHash {
    std::size_t operator()(const KeyHash& key) const noexcept { return key.first; }
  };
  struct Entry {
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;
    std::uint64_t payload_bytes = 0;
    bool verified = false;
    friend bool operator==(const Entry& a, const Entry& b) {
      return a.segment == b.segment && a.offset == b.offset;
    }
  };
  struct Segment {
    std::shared_ptr<SegmentFile> file;  // null where it cannot be read
    std::uint64_t end = 0;              // bytes used; the next record's offset
    std::vector<KeyHash> keys;          // of all objects written to it; may have been removed
    std::uint32_t writers = 0;          // reserved and not yet published
    bool dirty = false;                 // written since the last sync
    TimePoint stuck_until{};            // could not be deleted; not tried again before
  };
  struct Located {
    Entry entry;
    std::shared_ptr<SegmentFile> file;
  };
  struct Reservation {
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t sequence = 0;
    std::shared_ptr<SegmentFile> file;
  };
  // One thread at a time changes a key.
  class KeyTurn;

  FileStore(const FileStoreOptions& options, StoreDirectory directory);
  void recover();
  Status start_sync_thread();
  struct FoundRecord {
    KeyHash key;
    std::uint64_t offset = 0;
    std::uint64_t payload_bytes = 0;
  };
  void adopt(const SegmentPath& found, std::shared_ptr<SegmentFile> file, const SegmentScan& scan,
             std::span<const FoundRecord> records);

  ItemResult get_one(const GetItem& item);
  ItemResult put_one(const PutItem& item, const CallOptions& options);
  ItemResult remove_one(std::string_view name, const CallOptions& options);
  ItemResult fail(StatusCode code, const Status& why);
  ItemResult count_failure(StatusCode code);
  // Whether the directory is still ours to change: failed_precondition once it is not, from then
  // on.
  Status attached();
  std::optional<Located> locate(const KeyHash& key) const;
  void forget(const KeyHash& key, const Entry& entry);
  bool still(const KeyHash& key, const Entry& entry) const;

  // What a put ran into.
  enum class Bound : std::uint8_t { none, store_limit, free_reserve, disk_full, file_size };
  static std::string_view describe(Bound bound);
  static std::string_view help(Bound bound);
  static bool pauses_writes(Bound bound);
  struct Refusal {
    Status status;              // ok: none
    Bound bound = Bound::none;  // none: not a question of space
    bool again = false;         // it may fit in a new segment
  };
  static Refusal refusal_for(int error, std::string_view action, const std::string& path);
  Refusal write_object(const PutItem& item, const KeyHash& key, std::uint64_t payload_bytes);
  Refusal write_once(const PutItem& item, const KeyHash& key, std::uint64_t payload_bytes);
  bool writes_paused() const;
  void pause_writes(const Refusal& refusal);
  void resume_writes();
  std::optional<Reservation> try_reserve(std::uint64_t bytes);
  Refusal reserve(std::uint64_t bytes, Reservation& place);
  Refusal make_room(std::uint64_t bytes);
  Refusal make_disk_room(std::uint64_t needed);
  bool make_way(std::uint64_t bytes);
  bool disk_has_room(std::uint64_t bytes) const;
  std::uint64_t free_bytes() const;
  std::uint64_t evictable_bytes() const;
  bool eviction_allowed() const;
  void note_eviction(bool helped);
  Refusal begin_segment();
  // A disk that others have filled may cost all segments but the active one.
  enum class Victim : std::uint8_t { any, sealed };
  bool evictable(std::uint64_t number, const Segment& segment, Victim victim) const;
  Result<std::uint64_t> evict_oldest(Victim victim);              // the bytes of its file
  void drop(std::map<std::uint64_t, Segment>::iterator segment);  // the caller holds mutex_
  void publish(const Reservation& place, const KeyHash& key, std::uint64_t payload_bytes);
  void abandon(const Reservation& place, Bound bound);

  void sync_loop();
  Status sync_dirty();

  const FileStoreOptions options_;
  const std::uint64_t segment_bytes_;
  FileSystem& files_;
  const Clock& clock_;
  std::uint32_t (*const unix_seconds_)();
  CallGate gate_;
  StoreDirectory directory_;  // closed by close()
  std::thread sync_thread_;

  std::mutex close_mutex_;  // one closer at a time
  bool closed_ = false;     // guarded by close_mutex_
  std::mutex maintenance_mutex_;

  mutable std::mutex mutex_;
  // All below guarded by mutex_.
  std::condition_variable turn_;
  std::condition_variable wake_;    // the sync thread
  std::condition_variable synced_;  // close()
  std::unordered_map<KeyHash, Entry, HashOfHash> index_;
  std::unordered_set<KeyHash, HashOfHash> busy_keys_;
  std::map<std::uint64_t, Segment> segments_;
  std::uint64_t active_ = 0;  // number; 0: none
  std::uint64_t next_segment_ = 1;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t bytes_used_ = 0;
  bool directory_dirty_ = false;
  TimePoint paused_until_{};      // no puts before
  bool pause_said_ = false;       // and not yet that it has ended
  TimePoint pause_said_until_{};  // not said again before
  TimePoint futile_until_{};      // nothing is evicted for the disk's sake before
  Duration futile_pause_{};       // the last one
  bool detached_ = false;         // the directory is not ours any more
  bool stopping_ = false;
  bool stopped_ = false;
  Status last_sync_;
  Random random_;
  StoreStats stats_;
};

}  // namespace hitide
