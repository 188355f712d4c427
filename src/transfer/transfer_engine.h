// TransferEngine: carries storage operations out, on threads of its own.
//
//   submit -+-> lane query -----> 1 thread ----------------+-> PageStore -> on_completion
//           +-> lane read ---+                             |
//           +-> lane write --+--> options.threads threads -+
//
// Queries have a thread of their own, so that no data call delays one. Data threads take reads
// before writes, and of reads those first that a request waits for; after kReadsInARow reads a
// waiting write gets its turn. Where there are several data threads, one of them is always left for
// reads; where there is one, a write makes way for reads between two calls.
//
// Back-pressure: reads and queries are bounded by who submits them, and are always taken. Writes
// are taken up to write_queue_max operations and write_pages_max pages; further ones are refused,
// and are for the submitter to offer again. Two writes that share a key never run at the same time,
// so that the second finds the object there. With second_touch a page is written when it is offered
// a second time.
//
// Pages of side pools travel with those of the anchor, part by part of the operation. A write with
// a logical anchor moves all of its side pages first and then commits: one existence call and one
// put of markers, however many pages it has.
//
// Every submitted operation is answered by exactly one completion, with one code per page or key:
// whatever the store does, when there is no room for a write (resource_exhausted, at once), when
// the deadline has passed before it starts (deadline_exceeded, no I/O; also while calls of the
// store hang), when it is taken back (cancelled), and when the engine is stopped (cancelled).
//
// on_completion is called from lane threads, and inside submit() and cancel() for operations that
// never started. It must not block, must not call back into the engine, and runs under no lock.
//
// Threading: all methods from any thread. No method waits for I/O but drain() and stop().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <variant>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "pool/host_pool.h"
#include "spec/plan.h"
#include "storage/page_store.h"
#include "transfer/second_touch.h"

namespace hitide {

// What has been counted, lane by lane. It may outlive an engine, so that the next one goes on with
// it: a counter never falls.
struct TransferCells {
  struct Lane {
    Counter operations, pages, pages_ok, bytes, rejected, expired, cancelled, exceptions;
    Counter unknown_pools, not_admitted, gave_way;
    Histogram seconds{kSecondsBounds};
  };
  std::array<Lane, 3> lanes;  // by TransferLane
};

struct TransferOptions {
  std::uint32_t threads = 2;             // data threads, >= 1
  std::uint32_t write_queue_max = 1024;  // writes that wait, >= 1
  std::uint64_t write_pages_max = 0;     // pages of the writes that wait; 0: any number
  bool second_touch = false;             // write a page when it is offered a second time
  std::uint32_t batch_pages = 32;        // pages per call to the store, >= 1; between two calls the
                                         // deadline, cancel() and stop() are looked at
  Duration call_time_max = std::chrono::seconds(30);  // of one call to the store
  std::shared_ptr<TransferCells> cells = nullptr;     // counted on; null: from 0
};

enum class TransferLane : std::uint8_t { query, read, write };
inline constexpr int kTransferLaneCount = 3;
const char* to_string(TransferLane lane);

// Counters of one lane. Pages are keys for queries, and pages of all pools otherwise.
struct LaneStats {
  std::uint64_t operations = 0;  // answered
  std::uint64_t pages = 0;       // answered
  std::uint64_t pages_ok = 0;
  std::uint64_t bytes = 0;          // of the objects that were moved, or found present on a write
  std::uint64_t rejected = 0;       // operations: no room for another write
  std::uint64_t expired = 0;        // operations: some page was not tried, the deadline had passed
  std::uint64_t cancelled = 0;      // operations: taken back, or left over at stop()
  std::uint64_t exceptions = 0;     // operations: something was thrown, and became internal
  std::uint64_t unknown_pools = 0;  // transfers that named a pool which is not registered here
  std::uint64_t not_admitted = 0;   // pages that were offered for the first time
  std::uint64_t gave_way = 0;       // times that a write made way for reads
  std::uint32_t waiting = 0;        // operations in the lane now
  std::uint32_t running = 0;
};

class TransferEngine {
 public:
  static constexpr int kReadsInARow = 8;

  // `pools`: the host pools that are registered, by their index in the store's model; null or
  // missing: the pool has no bytes, or is off in storage. An operation that names such a pool gets
  // invalid_argument for that pool's pages, loudly; the others go on. `store`, the pools and
  // `clock` must outlive the engine. invalid_argument: a zero in the options, no host pool for an
  // anchor with bytes, or more pools than the model has. resource_exhausted: no thread could be
  // started.
  static Result<std::unique_ptr<TransferEngine>> start(
      PageStore& store, const std::vector<const HostPool*>& pools, const TransferOptions& options,
      std::function<void(Completion)> on_completion, const Clock& clock = SystemClock::instance());
  // A model of one pool.
  static Result<std::unique_ptr<TransferEngine>> start(
      PageStore& store, const HostPool& pool, const TransferOptions& options,
      std::function<void(Completion)> on_completion, const Clock& clock = SystemClock::instance()) {
    return start(store, std::vector<const HostPool*>{&pool}, options, std::move(on_completion),
                 clock);
  }
  ~TransferEngine();  // stop(now)
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  void submit(StorageQueryOp op);
  void submit(StorageReadOp op);
  void submit(StorageWriteOp op);

  // An operation that waits is answered as cancelled before this returns; one that runs is cut
  // short at its next call to the store. Unknown and answered ids are ignored.
  void cancel(OpId id);

  // A pool that comes later (a draft attached after the start), or null: off from now on. The
  // caller waits for operations that name the pool before its memory goes. invalid_argument: the
  // model has no such side pool.
  Status set_pool(std::uint32_t pool, const HostPool* host);

  // Waits until no write waits or runs. deadline_exceeded: some still do; nothing has changed.
  Status drain(TimePoint deadline);
  // The same for all lanes. Requires that nobody submits, or it may take for ever.
  Status drain_all(TimePoint deadline);

  // Takes no more operations, answers those that wait as cancelled, lets the running calls end
  // (each is bounded by call_time_max and the store's slack) and joins all threads.
  // deadline_exceeded: that took longer; it is done all the same. Idempotent.
  Status stop(TimePoint deadline);

  LaneStats stats(TransferLane lane) const;
  // Seconds from the start of an operation to its answer.
  const Histogram& seconds(TransferLane lane) const;
  void write_metrics(MetricsText& text) const;

 private:
  struct Job {
    std::variant<StorageQueryOp, StorageReadOp, StorageWriteOp> op;
    Completion answer;     // one code per page from the start, so that answering needs no memory
    std::size_t done = 0;  // leading pages whose call has returned
    // Of a write: pages that are not to be moved any more, as they have their answer. Empty: none.
    std::vector<bool> answered = {};
    bool admitted = false;  // that has been looked at
  };
  struct Running {  // on the stack of the thread that carries the operation out
    OpId id = 0;
    TransferLane lane = TransferLane::query;
    bool cancelled = false;          // with the engine's mutex_ held only
    std::vector<PageKey> keys = {};  // of a write
  };
  struct Part;  // consecutive pages of an operation, of all its pools
  using Cells = TransferCells::Lane;

  TransferEngine(PageStore& store, const std::vector<const HostPool*>& pools,
                 const TransferOptions& options, std::function<void(Completion)> on_completion,
                 const Clock& clock);
  Status start_threads();
  void enqueue(TransferLane lane, Job job);
  // ok: the job has been moved into its lane's queue.
  StatusCode take_in(TransferLane lane, Job& job);
  bool has_room(TransferLane lane, const Job& job) const HITIDE_REQUIRES(mutex_);
  void push(TransferLane lane, Job job) HITIDE_REQUIRES(mutex_);
  void run_thread(bool queries);
  // Waits for an operation and enters it into running_. False: stopping.
  bool take(bool queries, Job& job, Running& running);
  std::optional<TransferLane> next_lane(bool queries) const HITIDE_REQUIRES(mutex_);
  bool next_write_may_run() const HITIDE_REQUIRES(mutex_);
  // Answers reads whose time is up while they wait: the data threads may be busy with calls that
  // hang. Then waits until one is, or something has changed.
  void expire_or_wait(MutexLock& lock) HITIDE_REQUIRES(mutex_);
  // False: it gave way, and waits again.
  bool carry_out(Job& job, const Running& running);
  bool gives_way(const Running& running);
  // False: the operation is not wanted any more.
  bool put_back(Job& job, const Running& running);
  void admit_pages(Job& job, TransferLane lane);
  // Moves what is left, one call at least. False: it gives way.
  bool move_pages(Job& job, const Running& running);
  void refuse_unknown_pools(Job& job, TransferLane lane);
  // What stands in the way of another call to the store now, or ok.
  StatusCode in_the_way(const Job& job, const Running& running);
  void give_up(Job& job, std::size_t done, StatusCode code) const;
  // Each is one call. The code that all later pages would get too, or ok.
  StatusCode query(Job& job);
  StatusCode move_part(Job& job, std::size_t first, std::size_t count);
  StatusCode load_markers(Job& job);
  void commit(Job& job);
  void shorten_by_required(Job& job) const;
  // True for a write whose anchor has no bytes: its pages are committed at the end.
  bool commits_at_end(const Job& job) const;
  TimePoint deadline_of(const Job& job) const;
  CallOptions call_options(const Job& job) const;
  static StatusCode note(Job& job, const CallOutcome& outcome, bool anything_ok);
  const HostPool* host_pool(std::uint32_t pool) const {
    return pool < pools_.size() ? pools_[pool].load() : nullptr;
  }
  Status wait_for_end(std::span<const TransferLane> lanes, TimePoint deadline);
  bool interrupted(const Running& running) const;
  void leave(const Running& running);
  void answer(TransferLane lane, Completion completion);
  void refuse(TransferLane lane, Completion completion, StatusCode code);

  Cells& cells(TransferLane lane) const { return cells_->lanes[static_cast<std::size_t>(lane)]; }
  std::deque<Job>& queue(TransferLane lane) HITIDE_REQUIRES(mutex_) {
    return queues_[static_cast<std::size_t>(lane)];
  }
  const std::deque<Job>& queue(TransferLane lane) const HITIDE_REQUIRES(mutex_) {
    return queues_[static_cast<std::size_t>(lane)];
  }
  std::uint32_t running_count(TransferLane lane) const HITIDE_REQUIRES(mutex_);

  // Constant after construction.
  PageStore& store_;
  const TransferOptions options_;
  const std::function<void(Completion)> on_completion_;
  const Clock& clock_;

  // Synchronise themselves.
  std::vector<std::atomic<const HostPool*>> pools_;  // [the model's pools]
  const std::shared_ptr<TransferCells> cells_;

  mutable Mutex mutex_;
  CondVar work_;  // something to take, or stopping
  CondVar idle_;  // an operation has ended
  std::array<std::deque<Job>, kTransferLaneCount> queues_ HITIDE_GUARDED_BY(mutex_);
  std::vector<Running*> running_ HITIDE_GUARDED_BY(mutex_);
  std::unordered_set<PageKey> written_ HITIDE_GUARDED_BY(mutex_);  // of running writes
  std::uint64_t waiting_write_pages_ HITIDE_GUARDED_BY(mutex_) = 0;
  SecondTouch touched_;  // synchronises itself
  int reads_in_a_row_ HITIDE_GUARDED_BY(mutex_) = 0;
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;

  Mutex stop_mutex_;  // held while threads are joined
  std::vector<std::thread> threads_ HITIDE_GUARDED_BY(stop_mutex_);
};

}  // namespace hitide
