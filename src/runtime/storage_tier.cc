#include "runtime/storage_tier.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "runtime/pool_memory.h"
#include "spec/layout.h"

namespace hitide {
namespace {

// A start waits so long for memory to be adopted; then requests are served without L3 until it is.
constexpr Duration kFirstAttachWait = std::chrono::seconds(10);
// How soon a tier that waits for its store notices that it is to stop.
constexpr Duration kPollTime = std::chrono::milliseconds(250);
// Between tries to register memory that the client has refused.
constexpr Duration kFirstRetryPause = std::chrono::seconds(1);
constexpr Duration kRetryPauseMax = std::chrono::seconds(60);

std::string place_of(const StorageOptions& options, const std::string& backend) {
  if (backend == "file") return options.path;
  if (backend != "mooncake") return {};
  const MooncakeOptions& mooncake = options.mooncake;
  return mooncake.standalone_storage ? "daemon " + mooncake.client_server_address
                                     : "master " + mooncake.master_server_address;
}

// Every put of a page that is larger would be refused.
Status pages_fit(const ModelSpec& model, const StoreCapabilities& store) {
  for (const PoolSpec& pool : model.pools) {
    if (!pool.required || !has_bytes(pool)) continue;
    const std::uint64_t bytes = page_layout(pool).object_bytes();
    if (bytes <= store.object_bytes_max) continue;
    return Status(StatusCode::invalid_argument,
                  fmt::format("a page of pool {} has {} bytes, and an object of the {} store at "
                              "most {}: lower --page-size, or raise that limit ({})",
                              pool.name, bytes, store.name, store.object_bytes_max,
                              store.name == "mooncake" ? "object_bytes_max" : "the store's size"));
  }
  return {};
}

TimePoint soon(Duration time) { return SystemClock::instance().now() + time; }

}  // namespace

StorageTier::StorageTier(OpenedStore opened, const CacheOptions& options,
                         const StorageCounters& counters)
    : opened_(std::move(opened)),
      options_(options),
      counters_(counters),
      backend_(opened_.store ? opened_.store->capabilities().name : options.storage.backend),
      place_(place_of(options.storage, backend_)) {
  if (opened_.store) {
    status_ = StorageStatus::waiting;
    registrar_ = std::make_unique<StoreRegistrar>(*opened_.store);
    registry_ = std::make_unique<PoolRegistry>(
        *registrar_, RegistrationRules{.staging_allowed = options_.storage.staging},
        counters_.registration);
  } else if (!opened_.status.ok()) {
    turn_off(opened_.status);
  }
}

void StorageTier::turn_off(const Status& reason) {
  {
    const MutexLock lock(mutex_);
    status_ = StorageStatus::off;
    detail_ = reason.to_string();
  }
  log_warning("storage_off", {{"backend", backend_},
                              {"reason", reason.to_string()},
                              {"effect", "device and host go on without storage"}});
}

StorageTier::~StorageTier() {
  stop_attaching();
  stop_lanes(soon(Duration::zero())).ignore();
  detach();
}

void StorageTier::start(const ModelSpec& model, HostPool& pool, Hooks hooks, bool pool_in_use) {
  pool_ = &pool;
  hooks_ = std::move(hooks);
  {
    const MutexLock lock(memory_mutex_);
    pool_in_use_ = pool_in_use;
  }
  if (!opened_.store) {
    if (opened_.status.ok()) return;
    const PoolMemory memory = pool.describe();
    const MutexLock lock(mutex_);
    rows_ = plan_registration(std::span(&memory, 1), opened_.client,
                              {.staging_allowed = options_.storage.staging});
    return;
  }
  if (Status fits = pages_fit(model, opened_.store->capabilities()); !fits.ok()) {
    turn_off(fits);
    return;
  }
  auto pages =
      std::make_unique<PageStore>(*opened_.store, model, SystemClock::instance(),
                                  FailedKeyLimits{.keys_max = options_.storage.failed_keys_max,
                                                  .pause = options_.storage.failed_key_pause,
                                                  .counters = counters_.failed_keys});
  {
    const MutexLock lock(mutex_);
    page_store_ = std::move(pages);
  }
  if (opened_.client.kind == ClientKind::local) {
    attach();
  } else {
    thread_ = std::thread([this] { run(); });
    MutexLock lock(mutex_);
    changed_.wait_until(lock, soon(kFirstAttachWait),
                        [this]() HITIDE_REQUIRES(mutex_) { return tried_; });
  }
  const MutexLock lock(memory_mutex_);
  pool_in_use_ = true;
}

// One try after the other, until there is nothing left to gain or the tier is not wanted any more.
void StorageTier::run() {
  Duration pause = kFirstRetryPause;
  try {
    do {
      attach();
    } while (wait_for_next_try(pause));
  } catch (const std::exception& error) {
    give_up(error.what());
  } catch (...) {
    give_up("unknown");
  }
}

// Nothing that is thrown ends the process: what was on stays on, the rest is off.
void StorageTier::give_up(std::string_view exception) {
  log_error("storage_thread", {{"exception", exception}});
  const MutexLock lock(mutex_);
  if (!lanes_) status_ = StorageStatus::off;
  if (!lanes_) detail_ = "attaching it ended by an exception";
  tried_ = true;
  changed_.notify_all();
}

// False: there is none.
bool StorageTier::wait_for_next_try(Duration& pause) {
  MutexLock lock(mutex_);
  const auto stopping = [this]() HITIDE_REQUIRES(mutex_) { return stopping_; };
  if (status_ != StorageStatus::waiting) {
    // What a client refuses once it may take later: a part of the store may just have died.
    const bool refused = rows_.front().verdict == RegistrationVerdict::register_failed;
    if (!refused || changed_.wait_until(lock, soon(pause), stopping)) return false;
    pause = std::min(2 * pause, kRetryPauseMax);
  }
  for (Status ready(StatusCode::unavailable, ""); !ready.ok();) {
    lock.unlock();
    ready = opened_.store->wait_until_ready(soon(kPollTime));
    lock.lock();
    // A store that says no at once is asked in peace.
    if (!ready.ok() && changed_.wait_until(lock, soon(kPollTime), stopping)) return false;
    if (stopping_) return false;
  }
  opened_.client = client_of(*opened_.store);
  return true;
}

// Registers the pool and starts the lanes.
void StorageTier::attach() {
  PoolToRegister pool{.memory = pool_->describe(), .move_to_store_memory = {}};
  {
    const MutexLock lock(memory_mutex_);
    pool.memory.in_use = pool_in_use_;
  }
  pool.move_to_store_memory = [this] { return move_to_store_memory(); };
  const std::vector<PoolRegistration> rows = registry_->attach(std::span(&pool, 1), opened_.client);
  std::unique_ptr<TransferEngine> fresh;
  Status status;
  if (!storage_on(rows)) {
    status = Status(StatusCode::unavailable, rows.front().reason);
  } else if (lanes() == nullptr) {
    status = start_lanes(fresh);
  }
  const bool on = status.ok();
  if (fresh) hooks_.on_attached(*fresh);
  const MutexLock lock(mutex_);
  const bool down = !on && rows.front().verdict == RegistrationVerdict::client_down;
  if (on && tried_ && status_ != StorageStatus::on) log_info("storage_on", {{"backend", backend_}});
  status_ = on ? StorageStatus::on : down ? StorageStatus::waiting : StorageStatus::off;
  detail_ = on ? place_ : std::string(status.message());
  rows_ = rows;
  if (fresh) lanes_ = std::move(fresh);
  tried_ = true;
  changed_.notify_all();
}

Status StorageTier::start_lanes(std::unique_ptr<TransferEngine>& lanes) {
  TransferOptions options;
  options.threads = options_.storage.threads;
  options.batch_pages = options_.policy.storage_batch_pages;
  options.cells = counters_.lanes;
  options.write_queue_max = options_.storage.backup_queue_max;
  // Pages that wait to be stored cannot be evicted: half of the pool is left for all else.
  options.write_pages_max = std::max<std::uint64_t>(1, pool_->page_count() / 2);
  options.second_touch = options_.storage.second_touch;
  auto started = TransferEngine::start(*page_store(), *pool_, options, hooks_.on_completion);
  if (started.ok()) {
    lanes = std::move(started).value();
    return {};
  }
  log_warning("storage_off", {{"backend", backend_}, {"reason", started.status().to_string()}});
  return started.status();
}

Result<PoolMemory> StorageTier::move_to_store_memory() {
  const MutexLock lock(memory_mutex_);
  if (pool_in_use_) return Status(StatusCode::failed_precondition, "the pool is in use");
  HITIDE_RETURN_IF_ERROR(pool_->exchange_memory(allocator_of(*opened_.store)));
  return pool_->describe();
}

PageStore* StorageTier::page_store() const {
  const MutexLock lock(mutex_);
  return page_store_.get();
}

TransferEngine* StorageTier::lanes() const {
  const MutexLock lock(mutex_);
  return lanes_.get();
}

void StorageTier::fill_stats(CacheStats& stats) const {
  {
    const MutexLock lock(mutex_);
    stats.storage_status = status_;
    stats.storage_detail = detail_;
    stats.registration = rows_;
  }
  if (stats.storage_status == StorageStatus::on) {
    const Status health = opened_.store->health();
    if (!health.ok()) {
      stats.storage_status = StorageStatus::failing;
      stats.storage_detail = health.message();
    }
  }
  const bool none =
      stats.storage_status == StorageStatus::none || stats.storage_status == StorageStatus::off;
  stats.storage_backend = none ? "none" : backend_;
  if (opened_.store) stats.storage = opened_.store->stats();
}

void StorageTier::write_metrics(MetricsText& text) const {
  if (registry_) registry_->write_metrics(text);
  const MutexLock lock(mutex_);
  if (lanes_) lanes_->write_metrics(text);
  if (!page_store_) return;
  const auto number = [](const Counter& counter) { return static_cast<double>(counter.value()); };
  text.gauge("hitide_failed_keys", "Pages that are not asked for now, as they could not be loaded",
             static_cast<double>(page_store_->failed_keys()));
  text.counter("hitide_failed_keys_noted_total", "Times that a page became one of them",
               number(counters_.failed_keys->noted));
  text.counter("hitide_failed_keys_spared_total", "Questions that were not asked for their sake",
               number(counters_.failed_keys->spared));
}

Result<std::uint64_t> StorageTier::clear(TimePoint deadline) {
  return page_store()->clear({.deadline = deadline});
}

void StorageTier::stop_attaching() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status StorageTier::drain(TimePoint deadline) {
  TransferEngine* const lanes = this->lanes();
  return lanes != nullptr ? lanes->drain_all(deadline) : Status();
}

Status StorageTier::stop_lanes(TimePoint deadline) {
  TransferEngine* const lanes = this->lanes();
  return lanes != nullptr ? lanes->stop(deadline) : Status();
}

void StorageTier::detach() {
  if (registry_) registry_->detach_all();
}

Status StorageTier::close(TimePoint deadline) {
  return opened_.store ? opened_.store->close(deadline) : Status();
}

}  // namespace hitide
