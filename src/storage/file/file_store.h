// FileStore: objects in log-structured segment files of one directory. Format:
// docs/formats/file_store.md.
//
//   put      --> the active segment, appended; full: sealed, a new one begins
//   get      --> one read from whatever segment holds the object
//   keeper   --> a thread that makes room ahead of the puts: the oldest segment's file is deleted,
//                with everything in it; segments that are mostly dead are written anew, without
//                what is dead; what sealed segments hold is written down (checkpoint.h)
//
// Promises:
// - One process at a time has the directory open for writing.
// - After kill -9 at any point everything acknowledged is there and nothing else is: a record's
//   header is written after its payload. After a power loss that holds for what the last sync
//   covered (every sync_interval, and at close; with sync_puts each put and remove waits for one,
//   which all that wait share); what was written later is verified when it is read first, and is
//   lost where it does not verify. A segment whose sync failed takes no more records, and each read
//   of what it holds is verified.
// - What this process did not write itself is verified by checksum when it is read first. Beyond
//   that a get checks the record's header, key and length; damage that happens to the file later is
//   for the envelope to find.
// - The limit covers all segment files, those of earlier runs included, and the disk keeps
//   disk_free_bytes_min, but for 4 MiB at most that the newest segment asks for ahead of its
//   writes: otherwise old segments go, and where none can go a put answers
//   resource_exhausted. A file that may not grow (RLIMIT_FSIZE) is sealed as it is, and a new one
//   begins; the program has to ignore SIGXFSZ. No failure of the disk ends the store or its
//   threads.
// - Where others have filled the disk, what is stored stays: segments go only where that can give
//   enough space, and no more of them for a while once it did not. Puts answer resource_exhausted,
//   almost without I/O and with one warning, until there is space.
//
// - Nothing is written or deleted by path. When the directory is deleted or replaced, or its lock
//   is, while the store is open, it is somebody else's: from then on puts and removes answer
//   unavailable, nothing is deleted, and gets go on with what is open. That lasts until the store
//   is opened again.
//
// Calls do their I/O in the caller's thread. No get waits for a deletion, a compaction, a
// checkpoint or a sync; a put does so only where the keeper has not made room in time, and then
// until its deadline. Slack past a deadline: the I/O of one item. Memory: the index, at most 64
// bytes an object (page_index.h).
//
// Locks, in the order of taking: evict_mutex_ (while a file is deleted), roll_mutex_ (while one is
// made), checkpoint_mutex_ (while a checkpoint appears or goes), mutex_ (never held during I/O).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <hitide/file_store.h>
#include <hitide/object_store.h>
#include <hitide/result.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "storage/call_gate.h"
#include "storage/file/checkpoint.h"
#include "storage/file/directory.h"
#include "storage/file/page_index.h"
#include "storage/file/recovery.h"
#include "storage/file/segment.h"

namespace hitide {

inline constexpr std::uint64_t kFileStoreBytesLeast = 1u << 20;  // of bytes_max

struct FileStoreOptions {
  std::string path;
  std::uint64_t bytes_max = 0;               // >= 1 MiB
  std::uint64_t segment_bytes = 256u << 20;  // kept between 1/256 and 1/8 of bytes_max
  std::uint64_t disk_free_bytes_min = 256u << 20;
  std::uint32_t sync_interval_ms = 1000;  // 0: only at close, and for sync_puts
  bool sync_puts = false;                 // puts and removes answer once they are on the disk
  // False: no keeper. Puts make room themselves, checkpoints are written at close, and nothing is
  // compacted.
  bool background = true;
  std::uint64_t compaction_bytes_per_s = 64u << 20;  // 0: nothing is compacted
  std::uint32_t scan_threads = 4;                    // at start
  std::uint64_t seed = 0;                            // of segment ids; 0: from the system
  FileSystem* files = nullptr;                       // null: the real one; outlives the store
  const Clock* clock = nullptr;  // of pauses. Null: the system's; outlives the store
  // When records are written, in Unix time. Null: the system's.
  std::uint32_t (*unix_seconds)() = nullptr;
};

// All segments are open; small ones, where files may not grow, must not use up the descriptors.
inline constexpr std::size_t kSegmentsMax = 512;

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

  // While serving. Above what is used: at once; below: what is too much goes as soon as the keeper
  // comes to it, the oldest first. invalid_argument: below 1 MiB.
  Status set_bytes_limit(std::uint64_t bytes) override;

  // By name; what `pages` says is not known here. Cost: one pass over the index.
  std::vector<FileStoreNamespace> namespaces() const;

 private:
  struct HashOfHash {
    std::size_t operator()(const KeyHash& key) const noexcept { return key.first; }
  };
  struct Segment {
    std::shared_ptr<SegmentFile> file;  // null where it cannot be read
    std::uint16_t slot = 0;             // how the index names it
    std::uint64_t end = 0;              // bytes used; the next record's offset
    std::uint64_t live_bytes = 0;       // records that the index knows
    std::uint64_t damaged_bytes = 0;
    std::uint64_t sequence_min = 0;  // of its records; 0: none
    std::uint64_t sequence_max = 0;
    std::uint64_t checkpoint_end = 0;  // what a checkpoint tells of; 0: there is none
    std::uint64_t erasures = 0;        // of records that a checkpoint might tell of
    std::uint32_t writers = 0;         // reserved and not yet published
    bool dirty = false;                // written since the last sync
    bool going = false;                // its file is being deleted
    TimePoint stuck_until{};           // could not be deleted; not tried again before
    TimePoint checkpoint_after{};      // a checkpoint failed; not tried again before
    TimePoint compact_after{};         // nor this
  };
  struct Slot {
    std::uint64_t number = 0;           // 0: free
    std::shared_ptr<SegmentFile> file;  // null: going, and what the index says of it is void
    bool suspect = false;               // a sync has failed: what was read may be lost
  };
  struct Located {
    IndexEntry entry;
    std::shared_ptr<SegmentFile> file;
    bool suspect = false;
  };
  struct Reservation {
    std::uint64_t segment = 0;
    std::uint16_t slot = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t sequence = 0;
    std::shared_ptr<SegmentFile> file;
  };
  // What a put ran into.
  enum class Bound : std::uint8_t { none, store_limit, free_reserve, disk_full, file_size };
  struct Refusal {
    Status status;              // ok: none
    Bound bound = Bound::none;  // none: not a question of space
    bool again = false;         // it may fit in a new segment
  };
  // Work that waits for disks, to be done by the keeper.
  struct Errand {
    std::function<Refusal()> work;
    bool done = false;  // with the store's mutex_ held only, like `result`
    Refusal result;
  };
  // A segment that is being written anew.
  struct Compaction {
    std::uint64_t source = 0;
    std::uint16_t slot = 0;
    std::deque<IndexEntry> left;
    std::uint32_t postponed = 0;  // in a row
    bool given_up = false;        // the source stays, without what has been moved
    std::unordered_set<std::uint64_t> targets;
  };
  // One thread at a time changes a key.
  class KeyTurn {
   public:
    static constexpr TimePoint kNow = TimePoint::min();  // do not wait
    KeyTurn(FileStore& store, const KeyHash& key, TimePoint deadline);
    ~KeyTurn();
    KeyTurn(const KeyTurn&) = delete;
    KeyTurn& operator=(const KeyTurn&) = delete;
    // False: the deadline came first.
    explicit operator bool() const { return got_; }

   private:
    FileStore& store_;
    const KeyHash key_;
    bool got_ = false;
  };

  FileStore(const FileStoreOptions& options, StoreDirectory directory);

  // Start: file_store_open.cc.
  void recover();
  void adopt(const SegmentPath& found, RecoveredSegment recovered,
             std::vector<IndexEntry>& superseded);
  void settle_copies(std::span<const IndexEntry> superseded);
  Status settle_copy(const IndexEntry& older);
  Status start_threads();

  // Calls: file_store.cc.
  ItemResult get_one(const GetItem& item);
  ItemResult put_one(const PutItem& item, const CallOptions& options);
  ItemResult remove_one(std::string_view name, const CallOptions& options);
  ItemResult fail(StatusCode code, const Status& why);
  ItemResult count_failure(StatusCode code);
  // Whether the directory is still ours to change: failed_precondition once it is not, from then
  // on.
  Status attached();
  std::optional<Located> locate(const KeyHash& key) const;
  void forget(const IndexEntry& entry);
  Status erase_record(const IndexEntry& entry);
  void publish(const Reservation& place, const IndexEntry& entry);
  void abandon(const Reservation& place, Bound bound);
  std::uint16_t intern(std::string_view name);
  std::vector<KeyHash> keys_that_may_begin_with(std::string_view prefix) const;
  Segment* segment_in(std::uint16_t slot) HITIDE_REQUIRES(mutex_);  // null where it has gone
  void account(const IndexEntry& entry, bool alive);

  // Room: file_store_space.cc.
  static std::string_view describe(Bound bound);
  static std::string_view help(Bound bound);
  static bool pauses_writes(Bound bound);
  static Refusal refusal_for(int error, std::string_view action, const std::string& path);
  struct NewObject {
    std::string_view key;
    KeyHash hash;
    std::span<const std::span<const std::byte>> buffers;
    std::uint64_t payload_bytes = 0;
    TimePoint deadline = kNoDeadline;
  };
  Refusal write_object(const NewObject& object);
  Refusal write_once(const NewObject& object);
  bool writes_paused() const;
  void pause_writes(const Refusal& refusal);
  void resume_writes();
  std::optional<Reservation> try_reserve(std::uint64_t bytes);
  Refusal reserve(std::uint64_t bytes, TimePoint deadline, Reservation& place);
  bool store_is_full(std::uint64_t bytes) const;
  Refusal make_room(std::uint64_t bytes);
  Refusal make_disk_room(std::uint64_t needed);
  bool make_way(std::uint64_t bytes);
  bool disk_has_room(std::uint64_t bytes) const;
  std::uint64_t free_bytes() const;
  std::uint64_t evictable_bytes() const;
  bool eviction_allowed() const;
  void note_eviction(bool helped);
  Refusal begin_segment() HITIDE_REQUIRES(roll_mutex_);
  std::uint16_t free_slot() HITIDE_REQUIRES(mutex_);
  std::uint64_t segment_bytes() const;
  static IndexEntry entry_for(const Reservation& place, const KeyHash& key,
                              std::uint64_t payload_bytes, std::uint32_t written_s,
                              std::uint16_t space);
  // A disk that others have filled may cost all segments but the active one.
  enum class Victim : std::uint8_t { any, sealed };
  bool evictable(std::uint64_t number, const Segment& segment, Victim victim) const
      HITIDE_REQUIRES(mutex_);
  Result<std::uint64_t> evict_oldest(Victim victim);  // the bytes of its file
  Result<std::uint64_t> delete_segment(std::uint64_t number) HITIDE_REQUIRES(evict_mutex_);
  std::uint64_t drop(std::uint64_t number) HITIDE_REQUIRES(evict_mutex_);

  // Keeper: file_store_keeper.cc.
  void keep();
  Refusal run_errand(std::function<Refusal()> work, TimePoint deadline);
  Duration keeper_step();
  bool make_headroom();
  void bury();
  bool begin_compaction();
  std::optional<Duration> compact_step();
  bool move_record(const IndexEntry& entry);
  Duration finish_compaction();
  bool sync_targets();
  bool delete_source();
  void erase_originals();
  bool reserve_for_move(std::uint64_t bytes, Reservation& place);
  bool checkpoint_step(bool closing);
  Status write_checkpoint(std::uint64_t number);
  static void name_spaces(Checkpoint& checkpoint, const std::vector<std::string>& names);
  Status write_checkpoint_file(std::uint64_t number, std::span<const std::byte> bytes);
  Status void_checkpoint(const IndexEntry& erased);

  // Sync: file_store_open.cc.
  void sync_loop();
  Status sync_dirty();
  void distrust(std::uint64_t number);
  void leave(const std::shared_ptr<SegmentFile>& gone);
  void settle(std::span<ItemResult> out, TimePoint deadline);

  const FileStoreOptions options_;
  FileSystem& files_;
  const Clock& clock_;
  std::uint32_t (*const unix_seconds_)();
  CallGate gate_;
  StoreDirectory directory_;  // closed by close()
  std::thread sync_thread_;
  std::thread keeper_thread_;
  PageIndex index_;

  Mutex close_mutex_;  // one closer at a time
  bool closed_ HITIDE_GUARDED_BY(close_mutex_) = false;
  Mutex evict_mutex_;       // held while a segment goes
  Mutex roll_mutex_;        // held while a segment begins
  Mutex checkpoint_mutex_;  // held while a checkpoint appears or vanishes

  mutable Mutex mutex_;
  CondVar turn_;
  CondVar wake_;         // the sync thread
  CondVar synced_;       // close(), and calls that wait for a sync
  CondVar keeper_wake_;  // the keeper
  CondVar errand_done_;
  std::uint64_t bytes_max_ HITIDE_GUARDED_BY(mutex_) = 0;
  std::uint64_t segment_bytes_ HITIDE_GUARDED_BY(mutex_) = 0;
  std::unordered_set<KeyHash, HashOfHash> busy_keys_ HITIDE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Segment> segments_ HITIDE_GUARDED_BY(mutex_);
  std::vector<Slot> slots_ HITIDE_GUARDED_BY(mutex_);
  std::vector<std::string> names_ HITIDE_GUARDED_BY(mutex_);  // namespaces
  std::map<std::string, std::uint16_t, std::less<>> numbers_of_names_ HITIDE_GUARDED_BY(mutex_);
  std::uint64_t active_ HITIDE_GUARDED_BY(mutex_) = 0;  // number; 0: none
  std::uint64_t next_segment_ HITIDE_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_sequence_ HITIDE_GUARDED_BY(mutex_) = 1;
  std::uint64_t bytes_used_ HITIDE_GUARDED_BY(mutex_) = 0;
  bool directory_dirty_ HITIDE_GUARDED_BY(mutex_) = false;
  TimePoint paused_until_ HITIDE_GUARDED_BY(mutex_){};      // no puts before
  bool pause_said_ HITIDE_GUARDED_BY(mutex_) = false;       // and not yet that it has ended
  TimePoint pause_said_until_ HITIDE_GUARDED_BY(mutex_){};  // not said again before
  TimePoint futile_until_
      HITIDE_GUARDED_BY(mutex_){};  // nothing is evicted for the disk's sake before
  Duration futile_pause_ HITIDE_GUARDED_BY(mutex_){};  // the last one
  bool detached_ HITIDE_GUARDED_BY(mutex_) = false;    // the directory is not ours any more
  std::deque<std::shared_ptr<Errand>> errands_ HITIDE_GUARDED_BY(mutex_);
  bool keeper_called_ HITIDE_GUARDED_BY(mutex_) = false;  // there may be work
  bool keeping_ HITIDE_GUARDED_BY(mutex_) = false;        // the keeper runs
  std::vector<std::shared_ptr<SegmentFile>> graveyard_
      HITIDE_GUARDED_BY(mutex_);  // deleted; readers may be at them
  // Where copies of objects lie that a compaction has moved, until their file is gone for good.
  std::unordered_map<KeyHash, IndexEntry, HashOfHash> moved_ HITIDE_GUARDED_BY(mutex_);
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;
  bool stopped_ HITIDE_GUARDED_BY(mutex_) = false;
  std::uint64_t syncs_wanted_ HITIDE_GUARDED_BY(mutex_) =
      0;                                                    // tickets of calls that wait for a sync
  std::uint64_t syncs_done_ HITIDE_GUARDED_BY(mutex_) = 0;  // all up to this one have been served
  std::uint64_t syncs_failed_ HITIDE_GUARDED_BY(mutex_) =
      0;  // the last one that was served by a sync that failed
  Status last_sync_ HITIDE_GUARDED_BY(mutex_);
  Random random_ HITIDE_GUARDED_BY(mutex_);
  StoreStats stats_ HITIDE_GUARDED_BY(mutex_);

  std::optional<Compaction> compaction_;  // the keeper's own
};

}  // namespace hitide
