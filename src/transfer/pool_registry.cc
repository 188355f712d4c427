#include "transfer/pool_registry.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"

namespace hitide {
namespace {

using Verdict = RegistrationVerdict;
using Path = RegistrationPath;

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() == b.data() && a.size() == b.size();
}

bool is_of_client(Verdict verdict) {
  return verdict == Verdict::client_down || verdict == Verdict::transport_unavailable;
}

bool is_good(Verdict verdict) {
  return verdict == Verdict::ok || verdict == Verdict::logical_no_buffer ||
         verdict == Verdict::no_buffer_side_pools_only;
}

std::string_view effect(const PoolRegistration& row) {
  if (row.path == Path::zero_copy) return "L1, L2 and L3 go on";
  if (row.path != Path::off) return "slower at most; L1, L2 and L3 go on";
  return row.required ? "L3 is off for the model; L1 and L2 go on"
                      : "this pool has no L3; all others go on";
}

// Says what has changed since `before`.
void report(std::span<const PoolRegistration> rows, std::span<const PoolRegistration> before) {
  bool client_reported = false;
  for (const PoolRegistration& row : rows) {
    const auto known = std::find_if(before.begin(), before.end(),
                                    [&](const auto& other) { return other.pool == row.pool; });
    const bool is_new = known == before.end();
    if (!is_new && known->verdict == row.verdict && known->path == row.path) continue;
    if (is_good(row.verdict)) {
      if (is_new) continue;
      log_info(
          "pool_registration",
          {{"pool", row.pool}, {"verdict", to_string(row.verdict)}, {"path", to_string(row.path)}});
      continue;
    }
    if (is_of_client(row.verdict)) {
      if (!client_reported) {
        log_warning("storage_off", {{"client", to_string(row.client)},
                                    {"verdict", to_string(row.verdict)},
                                    {"reason", row.reason},
                                    {"change", row.advice}});
      }
      client_reported = true;
      continue;
    }
    log_warning("pool_registration", {{"pool", row.pool},
                                      {"verdict", to_string(row.verdict)},
                                      {"path", to_string(row.path)},
                                      {"reason", row.reason},
                                      {"effect", effect(row)},
                                      {"change", row.advice}});
  }
}

// A thin client takes shm memory by adopting it; these two codes say that this has failed.
bool is_failed_adoption(const Status& status, const PoolMemory& memory, ClientKind client) {
  return client == ClientKind::standalone && memory.allocator == AllocatorKind::shm &&
         (status.code() == StatusCode::data_loss ||
          status.code() == StatusCode::resource_exhausted);
}

// Which region of a call it was, and where it lies unless the client has said so.
Status in_context(const Status& status, std::span<const MemoryRegion> regions, std::size_t i) {
  const std::span<std::byte> bytes = regions[i].bytes;
  const std::string which = fmt::format("region {} of {}", i, regions.size());
  const std::string place =
      fmt::format("{} bytes at {}", bytes.size(), static_cast<const void*>(bytes.data()));
  const bool said = status.message().find(place) != std::string_view::npos;
  return status.with_context(said ? which : which + ", " + place);
}

}  // namespace

PoolRegistry::PoolRegistry(Registrar& registrar, const RegistrationRules& rules,
                           std::shared_ptr<RegistrationCounters> counters)
    : registrar_(registrar),
      rules_(rules),
      counters_(counters ? std::move(counters) : std::make_shared<RegistrationCounters>()) {}

PoolRegistry::~PoolRegistry() { detach_all(); }

std::vector<PoolRegistration> PoolRegistry::attach(std::span<const PoolToRegister> pools,
                                                   const ClientCapabilities& client) {
  const MutexLock lock(mutex_);
  std::vector<PoolMemory> memories;
  for (const PoolToRegister& pool : pools) memories.push_back(pool.memory);
  const std::vector<PoolRegistration> before = rows_;
  const std::vector<PoolRegistration> asked = ask_pools(memories, client, rules_, registered());
  enter(asked);
  const std::size_t holds_before = holds_.size();
  const auto row_of = [this](const std::string& pool) HITIDE_REQUIRES(mutex_) {
    return std::find_if(rows_.begin(), rows_.end(), [&](auto& row) { return row.pool == pool; });
  };
  for (const PoolToRegister& pool : pools) {
    const auto row = row_of(pool.memory.pool);
    if (row->path == Path::zero_copy) register_pool(pool, client, *row);
  }
  settle_registrations(rows_);
  for (std::size_t i = holds_.size(); i > holds_before; --i) {
    if (row_of(holds_[i - 1].pool)->on()) continue;
    const Hold hold = std::move(holds_[i - 1]);
    holds_.erase(holds_.begin() + static_cast<std::ptrdiff_t>(i - 1));
    counters_->undone.add(hold.regions.size());
    let_go(hold);
  }
  std::vector<PoolRegistration> answer;
  for (const PoolToRegister& pool : pools) answer.push_back(*row_of(pool.memory.pool));
  report(answer, before);
  return answer;
}

// Rows of pools that are known give way to the new ones. What the rule says of all pools together
// is obeyed before anything is attempted.
void PoolRegistry::enter(std::span<const PoolRegistration> rows) {
  for (const PoolRegistration& row : rows) {
    const auto known = std::find_if(rows_.begin(), rows_.end(),
                                    [&](const auto& other) { return other.pool == row.pool; });
    if (known != rows_.end()) {
      *known = row;
    } else {
      rows_.push_back(row);
    }
  }
  settle_registrations(rows_);
}

void PoolRegistry::register_pool(const PoolToRegister& pool, const ClientCapabilities& client,
                                 PoolRegistration& row) {
  const Clock& clock = SystemClock::instance();
  const TimePoint begin = clock.now();
  const Status status = hold_regions(pool.memory);
  if (status.ok()) {
    row.measured = fmt::format("registered in {:.1f} ms", to_milliseconds(clock.now() - begin));
    return;
  }
  const bool adoption = is_failed_adoption(status, pool.memory, client.kind);
  row.verdict = adoption ? Verdict::adoption_failed : Verdict::register_failed;
  row.reason = std::string(status.message());
  row.path = path_of(row.verdict, rules_.staging_allowed);
  if (adoption && !pool.memory.in_use && pool.move_to_store_memory) {
    move_to_store_memory(pool, client, row);
  }
  row.advice = row.path == Path::zero_copy ? "" : advice_for(row, rules_.staging_allowed);
}

void PoolRegistry::move_to_store_memory(const PoolToRegister& pool,
                                        const ClientCapabilities& client, PoolRegistration& row) {
  Result<PoolMemory> moved = pool.move_to_store_memory();
  if (!moved.ok()) {
    row.reason += "; no store memory either: " + std::string(moved.status().message());
    return;
  }
  row.allocator = moved->allocator;
  row.bytes = moved->bytes();
  Registrability answer = registrability(*moved, client, registered());
  const Status status = answer.verdict == Verdict::ok
                            ? hold_regions(*moved)
                            : Status(StatusCode::failed_precondition, answer.reason);
  if (status.ok()) {
    row.path = Path::zero_copy;
    row.reason += "; the pool was moved to store memory";
  } else {
    row.reason += "; store memory was not taken either: " + std::string(status.message());
  }
}

// Registers what is not registered yet and counts the rest; all of it or nothing.
Status PoolRegistry::hold_regions(const PoolMemory& memory) {
  std::vector<MemoryRegion> fresh;
  Hold hold{.pool = memory.pool, .regions = {}};
  for (const MemoryRegion& region : memory.regions) {
    if (region.bytes.empty()) continue;
    hold.regions.push_back(region.bytes);
    const bool asked = std::any_of(fresh.begin(), fresh.end(), [&](const MemoryRegion& other) {
      return same(other.bytes, region.bytes);
    });
    if (!asked && find(region.bytes) == nullptr) fresh.push_back(region);
  }
  if (!fresh.empty()) HITIDE_RETURN_IF_ERROR(call_registrar(fresh));
  for (const MemoryRegion& region : fresh) regions_.push_back({.bytes = region.bytes, .count = 0});
  for (const std::span<std::byte> bytes : hold.regions) ++find(bytes)->count;
  holds_.push_back(std::move(hold));
  return ok_status();
}

Status PoolRegistry::call_registrar(std::span<const MemoryRegion> regions) {
  std::vector<Status> answers;
  Status failure;
  counters_->attempts.add(regions.size());
  try {
    answers = registrar_.register_regions(regions);
  } catch (const std::exception& error) {
    failure = Status(StatusCode::internal, std::string("the client threw: ") + error.what());
  } catch (...) {
    failure = Status(StatusCode::internal, "the client threw");
  }
  if (failure.ok() && answers.size() != regions.size()) {
    failure =
        Status(StatusCode::internal, "the client answered for " + std::to_string(answers.size()) +
                                         " of " + std::to_string(regions.size()) + " regions");
  }
  // What happened is not known then: all of them are undone, which is harmless for the others.
  const bool known = failure.ok();
  for (std::size_t i = 0; known && i < answers.size(); ++i) {
    if (answers[i].ok()) continue;
    failure = in_context(answers[i], regions, i);
    break;
  }
  if (failure.ok()) return failure;
  counters_->failures.add();
  for (std::size_t i = regions.size(); i > 0; --i) {
    if (known && !answers[i - 1].ok()) continue;
    counters_->undone.add();
    unregister(regions[i - 1].bytes);
  }
  return failure;
}

void PoolRegistry::unregister(std::span<std::byte> bytes) {
  try {
    registrar_.unregister_region(bytes).ignore();  // the memory is ours again either way
  } catch (...) {
    counters_->failures.add();
  }
}

Status PoolRegistry::detach(std::string_view pool) {
  const MutexLock lock(mutex_);
  const auto is_of_pool = [pool](const auto& entry) { return entry.pool == pool; };
  const auto row = std::find_if(rows_.begin(), rows_.end(), is_of_pool);
  if (row == rows_.end()) {
    return Status(StatusCode::not_found, "pool " + std::string(pool) + " is not attached");
  }
  const auto latest = std::find_if(holds_.rbegin(), holds_.rend(), is_of_pool);
  if (latest != holds_.rend()) {
    const Hold hold = std::move(*latest);
    holds_.erase(std::next(latest).base());
    let_go(hold);
  }
  if (std::none_of(holds_.begin(), holds_.end(), is_of_pool)) rows_.erase(row);
  return ok_status();
}

void PoolRegistry::detach_all() {
  const MutexLock lock(mutex_);
  while (!holds_.empty()) {
    const Hold hold = std::move(holds_.back());
    holds_.pop_back();
    let_go(hold);
  }
  rows_.clear();
}

void PoolRegistry::let_go(const Hold& hold) {
  for (auto bytes = hold.regions.rbegin(); bytes != hold.regions.rend(); ++bytes) {
    Region* region = find(*bytes);
    if (region == nullptr || --region->count > 0) continue;
    unregister(*bytes);
    regions_.erase(regions_.begin() + (region - regions_.data()));
  }
}

PoolRegistry::Region* PoolRegistry::find(std::span<std::byte> bytes) {
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const Region& region) { return same(region.bytes, bytes); });
  return found == regions_.end() ? nullptr : &*found;
}

std::vector<std::span<std::byte>> PoolRegistry::registered() const {
  std::vector<std::span<std::byte>> all;
  for (const Region& region : regions_) all.push_back(region.bytes);
  return all;
}

std::vector<PoolRegistration> PoolRegistry::pools() const {
  const MutexLock lock(mutex_);
  return rows_;
}

bool PoolRegistry::storage_on() const {
  const MutexLock lock(mutex_);
  return hitide::storage_on(rows_);
}

std::size_t PoolRegistry::region_count() const {
  const MutexLock lock(mutex_);
  return regions_.size();
}

void PoolRegistry::write_metrics(MetricsText& text) const {
  const auto number = [](const Counter& counter) { return static_cast<double>(counter.value()); };
  text.counter("hitide_registration_attempts_total", "Regions that a store was asked to register",
               number(counters_->attempts));
  text.counter("hitide_registration_failures_total", "Calls to register that failed",
               number(counters_->failures));
  text.counter("hitide_registration_undone_total", "Regions unregistered after a failure",
               number(counters_->undone));
  for (const PoolRegistration& row : pools()) {
    const std::string labels = MetricsText::label("pool", row.pool) + "," +
                               MetricsText::label("verdict", to_string(row.verdict)) + "," +
                               MetricsText::label("path", to_string(row.path));
    text.gauge("hitide_pool_registration", "1 for the verdict and path that a pool has", 1, labels);
  }
}

}  // namespace hitide
