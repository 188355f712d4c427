#include "transfer/transfer_engine.h"

#include <algorithm>
#include <span>
#include <system_error>

#include <pthread.h>

#include "base/log.h"
#include "transfer/transfer_internal.h"

namespace hitide {
namespace {

constexpr TransferLane kLanes[] = {TransferLane::query, TransferLane::read, TransferLane::write};

Completion blank_answer(OpId id, std::size_t pages, std::span<const SidePages> sides = {}) {
  Completion answer;
  answer.id = id;
  answer.pages.assign(pages, StatusCode::internal);
  for (const SidePages& side : sides) {
    answer.sides.emplace_back(side.host_pages.size(), StatusCode::internal);
  }
  return answer;
}

// Every page has a key.
template <typename Op>
bool fits(const Op& op) {
  return op.keys.size() == op.host_pages.size() &&
         std::all_of(op.sides.begin(), op.sides.end(), [&](const SidePages& side) {
           return side.first <= op.keys.size() &&
                  side.host_pages.size() <= op.keys.size() - side.first;
         });
}

}  // namespace

const char* to_string(TransferLane lane) {
  switch (lane) {
    case TransferLane::query:
      return "query";
    case TransferLane::read:
      return "read";
    case TransferLane::write:
      return "write";
  }
  return "unknown";
}

TransferEngine::TransferEngine(PageStore& store, const std::vector<const HostPool*>& pools,
                               const TransferOptions& options,
                               std::function<void(Completion)> on_completion, const Clock& clock)
    : store_(store),
      options_(options),
      on_completion_(std::move(on_completion)),
      clock_(clock),
      pools_(store.pools().size()),
      cells_(options.cells ? options.cells : std::make_shared<TransferCells>()) {
  for (std::size_t pool = 0; pool < pools.size(); ++pool) pools_[pool] = pools[pool];
  running_.reserve(std::size_t{options_.threads} + 1);
  threads_.reserve(std::size_t{options_.threads} + 1);
}

TransferEngine::~TransferEngine() { stop(clock_.now()).ignore(); }

Result<std::unique_ptr<TransferEngine>> TransferEngine::start(
    PageStore& store, const std::vector<const HostPool*>& pools, const TransferOptions& options,
    std::function<void(Completion)> on_completion, const Clock& clock) {
  if (options.threads == 0 || options.write_queue_max == 0 || options.batch_pages == 0 ||
      options.call_time_max <= Duration::zero()) {
    return Status(
        StatusCode::invalid_argument,
        "transfer: threads, write_queue_max, batch_pages and call_time_max must not be 0");
  }
  const bool has_anchor = !pools.empty() && pools.front() != nullptr;
  if (pools.size() > store.pools().size() || has_anchor != store.anchor_has_bytes()) {
    return Status(StatusCode::invalid_argument,
                  "transfer: " + std::to_string(pools.size()) + " host pools for a model of " +
                      std::to_string(store.pools().size()) +
                      "; the first is the anchor's, and missing exactly where it has no bytes");
  }
  std::unique_ptr<TransferEngine> engine(
      new TransferEngine(store, pools, options, std::move(on_completion), clock));
  HITIDE_RETURN_IF_ERROR(engine->start_threads());
  return engine;
}

Status TransferEngine::start_threads() {
  const MutexLock lock(stop_mutex_);
  try {
    threads_.emplace_back([this] { run_thread(true); });
    for (std::uint32_t i = 0; i < options_.threads; ++i) {
      threads_.emplace_back([this] { run_thread(false); });
    }
  } catch (const std::system_error& error) {
    return Status(StatusCode::resource_exhausted,
                  std::string("transfer: no thread could be started: ") + error.what());
  }
  // Names are for people; a refusal changes nothing.
  static_cast<void>(pthread_setname_np(threads_[0].native_handle(), "hitide-query"));
  for (std::size_t i = 1; i < threads_.size(); ++i) {
    const std::string name = ("hitide-data-" + std::to_string(i - 1)).substr(0, 15);
    static_cast<void>(pthread_setname_np(threads_[i].native_handle(), name.c_str()));
  }
  return ok_status();
}

void TransferEngine::submit(StorageQueryOp op) {
  Completion blank = blank_answer(op.id, op.keys.size());
  enqueue(TransferLane::query, Job{std::move(op), std::move(blank)});
}

void TransferEngine::submit(StorageReadOp op) {
  Completion blank = blank_answer(op.id, op.keys.size(), op.sides);
  if (!fits(op)) {
    refuse(TransferLane::read, std::move(blank), StatusCode::invalid_argument);
    return;
  }
  enqueue(TransferLane::read, Job{std::move(op), std::move(blank)});
}

void TransferEngine::submit(StorageWriteOp op) {
  Completion blank = blank_answer(op.id, op.keys.size(), op.sides);
  if (!fits(op)) {
    refuse(TransferLane::write, std::move(blank), StatusCode::invalid_argument);
    return;
  }
  enqueue(TransferLane::write, Job{std::move(op), std::move(blank)});
}

void TransferEngine::enqueue(TransferLane lane, Job job) {
  const StatusCode refusal = take_in(lane, job);
  if (refusal == StatusCode::ok) {
    work_.notify_all();  // the two kinds of threads wait on one condition
    return;
  }
  if (refusal == StatusCode::cancelled) cells(lane).cancelled.add();
  if (refusal == StatusCode::resource_exhausted) cells(lane).rejected.add();
  refuse(lane, std::move(job.answer), refusal);
}

StatusCode TransferEngine::take_in(TransferLane lane, Job& job) {
  const MutexLock lock(mutex_);
  if (stopping_) return StatusCode::cancelled;
  if (!has_room(lane, job)) return StatusCode::resource_exhausted;
  push(lane, std::move(job));
  return StatusCode::ok;
}

bool TransferEngine::has_room(TransferLane lane, const Job& job) const {
  if (lane != TransferLane::write) return true;
  const std::uint64_t pages = waiting_write_pages_ + job.answer.pages.size();
  // One alone has room, however large it is.
  const bool pages_fit =
      options_.write_pages_max == 0 || queue(lane).empty() || pages <= options_.write_pages_max;
  return queue(lane).size() < options_.write_queue_max && pages_fit;
}

void TransferEngine::push(TransferLane lane, Job job) {
  std::deque<Job>& jobs = queue(lane);
  if (lane == TransferLane::write) waiting_write_pages_ += job.answer.pages.size();
  auto place = jobs.end();
  if (lane == TransferLane::read && std::get<StorageReadOp>(job.op).waited) {
    while (place != jobs.begin() && !std::get<StorageReadOp>(std::prev(place)->op).waited) --place;
  }
  jobs.insert(place, std::move(job));
}

void TransferEngine::cancel(OpId id) {
  std::optional<Job> found;
  TransferLane lane = TransferLane::query;
  {
    const MutexLock lock(mutex_);
    for (const TransferLane candidate : kLanes) {
      std::deque<Job>& jobs = queue(candidate);
      const auto job = std::find_if(jobs.begin(), jobs.end(),
                                    [id](const Job& other) { return other.answer.id == id; });
      if (job == jobs.end()) continue;
      found = std::move(*job);
      lane = candidate;
      jobs.erase(job);
      if (lane == TransferLane::write) waiting_write_pages_ -= found->answer.pages.size();
      break;
    }
    for (Running* running : running_) {
      if (running->id == id) running->cancelled = true;
    }
  }
  if (!found) return;
  cells(lane).cancelled.add();
  refuse(lane, std::move(found->answer), StatusCode::cancelled);
  idle_.notify_all();
}

Status TransferEngine::set_pool(std::uint32_t pool, const HostPool* host) {
  if (pool == 0 || pool >= pools_.size()) {
    return Status(StatusCode::invalid_argument, "transfer: pool " + std::to_string(pool) +
                                                    " is no side pool of a model of " +
                                                    std::to_string(pools_.size()) + " pools");
  }
  pools_[pool] = host;
  return ok_status();
}

Status TransferEngine::drain(TimePoint deadline) {
  constexpr std::array kWrites = {TransferLane::write};
  return wait_for_end(kWrites, deadline);
}

Status TransferEngine::drain_all(TimePoint deadline) { return wait_for_end(kLanes, deadline); }

Status TransferEngine::wait_for_end(std::span<const TransferLane> lanes, TimePoint deadline) {
  MutexLock lock(mutex_);
  const auto ended = [&]() HITIDE_REQUIRES(mutex_) {
    return std::all_of(lanes.begin(), lanes.end(),
                       [this](TransferLane lane) HITIDE_REQUIRES(mutex_) {
                         return queue(lane).empty() && running_count(lane) == 0;
                       });
  };
  if (deadline == kNoDeadline) {
    idle_.wait(lock, ended);
    return ok_status();
  }
  if (idle_.wait_until(lock, deadline, ended)) return ok_status();
  std::string left;
  for (const TransferLane lane : lanes) {
    left += (left.empty() ? "" : "; ") + (to_string(lane) + std::string(" lane: ")) +
            std::to_string(queue(lane).size()) + " wait and " +
            std::to_string(running_count(lane)) + " run";
  }
  return Status(StatusCode::deadline_exceeded, std::move(left));
}

Status TransferEngine::stop(TimePoint deadline) {
  std::array<std::deque<Job>, kTransferLaneCount> left;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    left.swap(queues_);
    waiting_write_pages_ = 0;
  }
  work_.notify_all();
  for (const TransferLane lane : kLanes) {
    for (Job& job : left[static_cast<std::size_t>(lane)]) {
      cells(lane).cancelled.add();
      refuse(lane, std::move(job.answer), StatusCode::cancelled);
    }
  }
  idle_.notify_all();
  const MutexLock lock(stop_mutex_);
  if (threads_.empty()) return ok_status();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  if (clock_.now() <= deadline) return ok_status();
  return Status(StatusCode::deadline_exceeded,
                "transfer: a call to the store ended after the deadline of stop()");
}

// ---- lane threads -----------------------------------------------------------------------------

void TransferEngine::run_thread(bool queries) {
  Job job;
  Running running;
  while (take(queries, job, running)) {
    if (!carry_out(job, running) && !put_back(job, running)) {
      cells(running.lane).cancelled.add();
      give_up(job, job.done, StatusCode::cancelled);
      answer(running.lane, std::move(job.answer));
    }
    leave(running);
  }
}

bool TransferEngine::put_back(Job& job, const Running& running) {
  const MutexLock lock(mutex_);
  if (stopping_ || running.cancelled) return false;
  waiting_write_pages_ += job.answer.pages.size();
  queue(running.lane).push_front(std::move(job));
  return true;
}

bool TransferEngine::take(bool queries, Job& job, Running& running) {
  MutexLock lock(mutex_);
  if (queries) {
    while (!stopping_ && !next_lane(queries).has_value()) expire_or_wait(lock);
  } else {
    work_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) {
      return stopping_ || next_lane(false).has_value();
    });
  }
  if (stopping_) return false;
  const TransferLane lane = *next_lane(queries);
  job = std::move(queue(lane).front());
  queue(lane).pop_front();
  if (lane == TransferLane::read && !queue(TransferLane::write).empty()) {
    ++reads_in_a_row_;
  } else if (lane != TransferLane::query) {
    reads_in_a_row_ = 0;
  }
  running = Running{job.answer.id, lane, false};
  running_.push_back(&running);
  if (lane == TransferLane::write) {
    waiting_write_pages_ -= job.answer.pages.size();
    const auto& keys = std::get<StorageWriteOp>(job.op).keys;
    running.keys.assign(keys.begin(), keys.end());
    written_.insert(keys.begin(), keys.end());
  }
  return true;
}

std::optional<TransferLane> TransferEngine::next_lane(bool queries) const {
  if (queries) {
    if (queue(TransferLane::query).empty()) return std::nullopt;
    return TransferLane::query;
  }
  const bool reads = !queue(TransferLane::read).empty();
  const bool writes = next_write_may_run();
  if (writes && (!reads || reads_in_a_row_ >= kReadsInARow)) return TransferLane::write;
  if (reads) return TransferLane::read;
  return std::nullopt;
}

bool TransferEngine::next_write_may_run() const {
  const std::uint32_t writes_max = std::max(options_.threads - 1, 1u);
  if (queue(TransferLane::write).empty() || running_count(TransferLane::write) >= writes_max) {
    return false;
  }
  const auto& keys = std::get<StorageWriteOp>(queue(TransferLane::write).front().op).keys;
  return written_.empty() ||
         std::none_of(keys.begin(), keys.end(), [this](const PageKey& key) HITIDE_REQUIRES(mutex_) {
           return written_.contains(key);
         });
}

void TransferEngine::expire_or_wait(MutexLock& lock) {
  std::deque<Job>& reads = queue(TransferLane::read);
  const TimePoint now = clock_.now();
  TimePoint next = kNoDeadline;
  std::vector<Job> expired;
  for (auto job = reads.begin(); job != reads.end();) {
    const TimePoint deadline = deadline_of(*job);
    if (deadline <= now) {
      expired.push_back(std::move(*job));
      job = reads.erase(job);
    } else {
      next = std::min(next, deadline);
      ++job;
    }
  }
  if (expired.empty()) {
    if (next == kNoDeadline) {
      work_.wait(lock);
    } else {
      work_.wait_for(lock, next - now);
    }
    return;
  }
  const MutexUnlock unlocked(mutex_);
  for (Job& job : expired) {
    cells(TransferLane::read).expired.add();
    refuse(TransferLane::read, std::move(job.answer), StatusCode::deadline_exceeded);
  }
  idle_.notify_all();
}

bool TransferEngine::interrupted(const Running& running) const {
  const MutexLock lock(mutex_);
  return stopping_ || running.cancelled;
}

void TransferEngine::leave(const Running& running) {
  {
    const MutexLock lock(mutex_);
    running_.erase(std::find(running_.begin(), running_.end(), &running));
    for (const PageKey& key : running.keys) written_.erase(key);
  }
  idle_.notify_all();
  work_.notify_all();  // a write that waited for its share of the threads may start now
}

std::uint32_t TransferEngine::running_count(TransferLane lane) const {
  return static_cast<std::uint32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [lane](const Running* running) { return running->lane == lane; }));
}

// ---- answers ----------------------------------------------------------------------------------

void TransferEngine::refuse(TransferLane lane, Completion completion, StatusCode code) {
  fill_from(completion.pages, 0, code);
  for (std::vector<StatusCode>& side : completion.sides) fill_from(side, 0, code);
  answer(lane, std::move(completion));
}

void TransferEngine::answer(TransferLane lane, Completion completion) {
  Cells& cell = cells(lane);
  cell.operations.add();
  cell.pages.add(completion.pages.size());
  cell.pages_ok.add(count_ok(completion.pages));
  for (const std::vector<StatusCode>& side : completion.sides) {
    cell.pages.add(side.size());
    cell.pages_ok.add(count_ok(side));
  }
  cell.bytes.add(completion.bytes);
  try {
    on_completion_(std::move(completion));
  } catch (...) {
    cell.exceptions.add();
    log_limited(LogLevel::error, "transfer_completion_refused", kTransferLogInterval,
                {{"lane", to_string(lane)}});
  }
}

LaneStats TransferEngine::stats(TransferLane lane) const {
  const Cells& cell = cells(lane);
  LaneStats stats;
  stats.operations = cell.operations.value();
  stats.pages = cell.pages.value();
  stats.pages_ok = cell.pages_ok.value();
  stats.bytes = cell.bytes.value();
  stats.rejected = cell.rejected.value();
  stats.expired = cell.expired.value();
  stats.cancelled = cell.cancelled.value();
  stats.exceptions = cell.exceptions.value();
  stats.unknown_pools = cell.unknown_pools.value();
  stats.not_admitted = cell.not_admitted.value();
  stats.gave_way = cell.gave_way.value();
  const MutexLock lock(mutex_);
  stats.waiting = static_cast<std::uint32_t>(queue(lane).size());
  stats.running = running_count(lane);
  return stats;
}

const Histogram& TransferEngine::seconds(TransferLane lane) const { return cells(lane).seconds; }

void TransferEngine::write_metrics(MetricsText& text) const {
  struct Row {
    const char* name;
    const char* help;
    std::uint64_t LaneStats::*value;
  };
  static constexpr Row kCounters[] = {
      {"hitide_transfer_operations_total", "Storage operations answered.", &LaneStats::operations},
      {"hitide_transfer_pages_total", "Pages or keys answered.", &LaneStats::pages},
      {"hitide_transfer_pages_ok_total", "Pages or keys answered with ok.", &LaneStats::pages_ok},
      {"hitide_transfer_bytes_total", "Bytes of the pages moved.", &LaneStats::bytes},
      {"hitide_transfer_rejected_total", "Backups dropped, as too many waited.",
       &LaneStats::rejected},
      {"hitide_transfer_expired_total", "Operations cut by their deadline.", &LaneStats::expired},
      {"hitide_transfer_cancelled_total", "Operations taken back.", &LaneStats::cancelled},
      {"hitide_transfer_exceptions_total", "Operations that threw.", &LaneStats::exceptions},
      {"hitide_transfer_unknown_pools_total", "Transfers of pools that are not registered.",
       &LaneStats::unknown_pools},
      {"hitide_transfer_not_admitted_total",
       "Pages offered for storage the first time, not stored.", &LaneStats::not_admitted},
      {"hitide_transfer_gave_way_total", "Times that a backup made way for reads.",
       &LaneStats::gave_way},
  };
  std::array<LaneStats, kTransferLaneCount> stats;
  for (const TransferLane lane : kLanes) {
    stats[static_cast<std::size_t>(lane)] = this->stats(lane);
  }
  const auto label = [](TransferLane lane) { return MetricsText::label("lane", to_string(lane)); };
  for (const Row& row : kCounters) {
    for (const TransferLane lane : kLanes) {
      const LaneStats& lane_stats = stats[static_cast<std::size_t>(lane)];
      text.counter(row.name, row.help, static_cast<double>(lane_stats.*row.value), label(lane));
    }
  }
  for (const TransferLane lane : kLanes) {
    text.gauge("hitide_transfer_waiting", "Operations that wait in a lane.",
               stats[static_cast<std::size_t>(lane)].waiting, label(lane));
  }
  for (const TransferLane lane : kLanes) {
    text.histogram(std::string("hitide_transfer_") + to_string(lane) + "_seconds",
                   "Time from the start of an operation to its answer.", seconds(lane));
  }
}

}  // namespace hitide
