// TransferEngine: how one operation is carried out, call by call.
#include <algorithm>
#include <span>

#include "base/log.h"
#include "transfer/transfer_engine.h"
#include "transfer/transfer_internal.h"

namespace hitide {

// The pages with bytes of keys [first, first + count), as the page store wants them.
struct TransferEngine::Part {
  Part(const TransferEngine& engine, Job& job, std::size_t first, std::size_t count);

  bool anything_ok() const {
    return std::any_of(pools.begin(), pools.end(),
                       [](const PoolPages& one) { return count_ok(one.out) > 0; });
  }
  void count_bytes(std::uint64_t& bytes) const {
    for (std::size_t i = 0; i < pools.size(); ++i)
      bytes += count_ok(pools[i].out) * object_bytes[i];
  }

  std::vector<PoolPages> pools;
  std::vector<std::uint64_t> object_bytes;               // [pools]
  std::vector<std::vector<std::span<std::byte>>> slots;  // [pools]

 private:
  void add(std::string_view name, const HostPool& pool, std::span<const PageKey> keys,
           std::span<const PageId> pages, std::span<StatusCode> out);
};

void TransferEngine::Part::add(std::string_view name, const HostPool& pool,
                               std::span<const PageKey> keys, std::span<const PageId> pages,
                               std::span<StatusCode> out) {
  std::vector<std::span<std::byte>>& memory = slots.emplace_back();
  for (const PageId page : pages) memory.push_back(pool.slot(page));
  object_bytes.push_back(pool.layout().object_bytes());
  pools.push_back({.pool = name, .keys = keys, .slots = memory, .out = out});
}

TransferEngine::Part::Part(const TransferEngine& engine, Job& job, std::size_t first,
                           std::size_t count) {
  const auto* read = std::get_if<StorageReadOp>(&job.op);
  const auto* write = std::get_if<StorageWriteOp>(&job.op);
  const std::span<const PageKey> keys = read ? read->keys : write->keys;
  const std::span<const PageId> pages = read ? read->host_pages : write->host_pages;
  const std::span<const SidePages> sides = sides_of(job.op);
  slots.reserve(sides.size() + 1);
  if (const HostPool* anchor = engine.host_pool(0)) {
    add(engine.store_.pools().front().name, *anchor, keys.subspan(first, count),
        pages.subspan(first, count), std::span(job.answer.pages).subspan(first, count));
  }
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const SidePages& side = sides[i];
    const HostPool* pool = engine.host_pool(side.pool);
    const std::size_t begin = std::max<std::size_t>(first, side.first);
    const std::size_t end = std::min(first + count, side.first + side.host_pages.size());
    if (pool == nullptr || begin >= end) continue;
    add(engine.store_.pools()[side.pool].name, *pool, keys.subspan(begin, end - begin),
        std::span(side.host_pages).subspan(begin - side.first, end - begin),
        std::span(job.answer.sides[i]).subspan(begin - side.first, end - begin));
  }
}

bool TransferEngine::carry_out(Job& job, const Running& running) {
  const TimePoint started = clock_.now();
  try {
    refuse_unknown_pools(job, running.lane);
    admit_pages(job, running.lane);
    if (!move_pages(job, running)) {
      cells(running.lane).gave_way.add();
      cells(running.lane).seconds.observe(to_seconds(clock_.now() - started));
      return false;
    }
  } catch (...) {  // whatever the call that threw has said of its pages is worth nothing
    give_up(job, job.done, StatusCode::internal);
    cells(running.lane).exceptions.add();
    log_limited(LogLevel::error, "transfer_exception", kTransferLogInterval,
                {{"lane", to_string(running.lane)}, {"op", running.id}});
  }
  if (running.lane == TransferLane::read || !store_.anchor_has_bytes()) shorten_by_required(job);
  cells(running.lane).seconds.observe(to_seconds(clock_.now() - started));
  answer(running.lane, std::move(job.answer));
  return true;
}

// Where one thread does everything: a backup of many pages lets those through that wait for a read.
bool TransferEngine::gives_way(const Running& running) {
  if (options_.threads > 1 || running.lane != TransferLane::write) return false;
  const MutexLock lock(mutex_);
  return !stopping_ && !running.cancelled && !queue(TransferLane::read).empty();
}

void TransferEngine::admit_pages(Job& job, TransferLane lane) {
  if (!options_.second_touch || lane != TransferLane::write || job.admitted) return;
  job.admitted = true;
  const StorageWriteOp& write = std::get<StorageWriteOp>(job.op);
  job.answered.assign(write.keys.size(), false);
  for (std::size_t page = 0; page < write.keys.size(); ++page) {
    if (touched_.again(write.keys[page])) continue;
    job.answered[page] = true;
    job.answer.pages[page] = StatusCode::cancelled;
    for (std::size_t i = 0; i < write.sides.size(); ++i) {
      const std::size_t first = write.sides[i].first;
      if (page >= first && page - first < job.answer.sides[i].size()) {
        job.answer.sides[i][page - first] = StatusCode::cancelled;
      }
    }
    cells(lane).not_admitted.add();
  }
}

// A transfer for a pool that is not registered is never skipped and never true.
void TransferEngine::refuse_unknown_pools(Job& job, TransferLane lane) {
  const std::span<const SidePages> sides = sides_of(job.op);
  const std::span<const PoolSpec> pools = store_.pools();
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].pool != 0 && host_pool(sides[i].pool) != nullptr) continue;
    fill_from(job.answer.sides[i], 0, StatusCode::invalid_argument);
    cells(lane).unknown_pools.add();
    std::string known;
    for (std::size_t pool = 1; pool < pools_.size(); ++pool) {
      if (host_pool(static_cast<std::uint32_t>(pool)) != nullptr)
        known += (known.empty() ? "" : ", ") + pools[pool].name;
    }
    const std::string name = sides[i].pool < pools.size() ? pools[sides[i].pool].name : "?";
    log_limited(LogLevel::error, "transfer_pool_unknown", kTransferLogInterval,
                {{"pool", sides[i].pool}, {"name", name}, {"known_side_pools", known}});
  }
}

bool TransferEngine::move_pages(Job& job, const Running& running) {
  const std::size_t pages = job.answer.pages.size();
  // A query goes in one call: it holds no buffers meanwhile.
  const std::size_t step = running.lane == TransferLane::query ? pages : options_.batch_pages;
  StatusCode rest = StatusCode::ok;
  if (running.lane == TransferLane::read && !store_.anchor_has_bytes() && pages > 0) {
    rest = in_the_way(job, running);
    if (rest == StatusCode::ok) rest = load_markers(job);
  }
  const auto is_answered = [&job](std::size_t page) {
    return !job.answered.empty() && job.answered[page];
  };
  bool called = false;
  while (job.done < pages && rest == StatusCode::ok) {
    if (is_answered(job.done)) {
      ++job.done;
      continue;
    }
    rest = in_the_way(job, running);
    if (rest != StatusCode::ok) break;
    if (called && gives_way(running)) return false;
    std::size_t count = 1;
    const std::size_t most = std::min(step, pages - job.done);
    while (count < most && !is_answered(job.done + count)) ++count;
    rest = running.lane == TransferLane::query ? query(job) : move_part(job, job.done, count);
    job.done += count;
    called = true;
  }
  if (rest == StatusCode::ok && commits_at_end(job) && pages > 0) {
    rest = in_the_way(job, running);
    if (rest == StatusCode::ok) commit(job);
  }
  if (rest != StatusCode::ok) give_up(job, job.done, rest);
  return true;
}

TimePoint TransferEngine::deadline_of(const Job& job) const {
  const auto* query = std::get_if<StorageQueryOp>(&job.op);
  const auto* read = std::get_if<StorageReadOp>(&job.op);
  return query ? query->deadline : read ? read->deadline : kNoDeadline;
}

StatusCode TransferEngine::in_the_way(const Job& job, const Running& running) {
  if (interrupted(running)) {
    cells(running.lane).cancelled.add();
    return StatusCode::cancelled;
  }
  if (deadline_of(job) <= clock_.now()) {
    cells(running.lane).expired.add();
    return StatusCode::deadline_exceeded;
  }
  return StatusCode::ok;
}

void TransferEngine::give_up(Job& job, std::size_t done, StatusCode code) const {
  fill_from(job.answer.pages, commits_at_end(job) ? 0 : done, code);
  fill_sides_from(job.answer, sides_of(job.op), done, code);
}

CallOptions TransferEngine::call_options(const Job& job) const {
  return {.deadline = std::min(deadline_of(job), clock_.now() + options_.call_time_max)};
}

StatusCode TransferEngine::note(Job& job, const CallOutcome& outcome, bool anything_ok) {
  job.answer.buffers_busy_until =
      std::max(job.answer.buffers_busy_until, outcome.buffers_busy_until);
  // A store that is away would take the same time to say so for every later part.
  const StatusCode code = outcome.status.code();
  const bool away = code == StatusCode::unavailable || code == StatusCode::deadline_exceeded ||
                    code == StatusCode::failed_precondition;
  return away && !anything_ok ? code : StatusCode::ok;
}

StatusCode TransferEngine::query(Job& job) {
  PrefixStops stops;
  const auto& query = std::get<StorageQueryOp>(job.op);
  const CallOutcome outcome =
      store_.exists_prefix(query.keys, stops, call_options(job), query.first_page);
  job.answer.pages = std::move(stops.codes);
  return note(job, outcome, true);
}

StatusCode TransferEngine::move_part(Job& job, std::size_t first, std::size_t count) {
  const Part part(*this, job, first, count);
  if (part.pools.empty()) return StatusCode::ok;
  const CallOutcome outcome = std::holds_alternative<StorageReadOp>(job.op)
                                  ? store_.load(part.pools, call_options(job))
                                  : store_.store(part.pools, call_options(job));
  part.count_bytes(job.answer.bytes);
  return note(job, outcome, part.anything_ok());
}

StatusCode TransferEngine::load_markers(Job& job) {
  const PoolPages anchor{.pool = store_.pools().front().name,
                         .keys = std::get<StorageReadOp>(job.op).keys,
                         .slots = {},
                         .out = job.answer.pages};
  const CallOutcome outcome = store_.load({&anchor, 1}, call_options(job));
  return note(job, outcome, count_ok(anchor.out) > 0);
}

bool TransferEngine::commits_at_end(const Job& job) const {
  return !store_.anchor_has_bytes() && std::holds_alternative<StorageWriteOp>(job.op);
}

void TransferEngine::commit(Job& job) {
  const StorageWriteOp& write = std::get<StorageWriteOp>(job.op);
  const Part stored(*this, job, 0, write.keys.size());
  const PoolPages anchor{.pool = store_.pools().front().name,
                         .keys = write.keys,
                         .slots = {},
                         .out = job.answer.pages};
  const CallOutcome outcome = store_.commit(anchor, stored.pools, call_options(job));
  note(job, outcome, true);
}

// A page is of use only as far as every pool that it needs.
void TransferEngine::shorten_by_required(Job& job) const {
  const std::span<const SidePages> sides = sides_of(job.op);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].pool >= store_.pools().size()) continue;
    const PoolSpec& pool = store_.pools()[sides[i].pool];
    if (!pool.required || pool.hit_policy.kind != HitPolicy::Kind::all_pages) continue;
    for (std::size_t page = 0; page < job.answer.sides[i].size(); ++page) {
      StatusCode& code = job.answer.pages[sides[i].first + page];
      if (code == StatusCode::ok) code = job.answer.sides[i][page];
    }
  }
}

}  // namespace hitide
