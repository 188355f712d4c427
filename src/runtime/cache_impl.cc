#include "runtime/cache_impl.h"

#include <algorithm>
#include <exception>
#include <type_traits>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "pool/host_size.h"
#include "runtime/pool_memory.h"
#include "transfer/copy_map.h"

namespace hitide {
namespace {

#ifdef HITIDE_DEBUG_CHECKS
constexpr std::size_t kCompletionsPerCheck = 256;
#endif

Status closed_status(std::string_view call) {
  return Status(StatusCode::failed_precondition, fmt::format("{}: the cache is closed", call));
}

Status fits(const ModelSpec& model, const DeviceGeometry& geometry) {
  HITIDE_RETURN_IF_ERROR(validate(model));
  if (model.pools.size() != 1 || !has_bytes(model.anchor())) {
    return Status(StatusCode::unimplemented,
                  fmt::format("model: {} pools; this version caches models with one pool that has "
                              "bytes",
                              model.pools.size()));
  }
  if (geometry.page_count == 0 || geometry.page_size != model.page_size() ||
      geometry.page_bytes != model.anchor().page_bytes) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("device: {} pages of {} tokens and {} bytes do not fit the model's "
                              "{} tokens and {} bytes",
                              geometry.page_count, geometry.page_size, geometry.page_bytes,
                              model.page_size(), model.anchor().page_bytes));
  }
  return {};
}

// A misspelt pool would lose its setting.
Status names_pools(const HostOptions& host, const ModelSpec& model) {
  for (const HostAllocatorChoice& choice : host.pool_allocators) {
    const auto is_named = [&](const PoolSpec& pool) { return pool.name == choice.pool; };
    if (std::any_of(model.pools.begin(), model.pools.end(), is_named)) continue;
    std::string known;
    for (const PoolSpec& pool : model.pools) known += (known.empty() ? "" : ", ") + pool.name;
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--host-allocator {}={}: the model has no pool of that name; it has {}",
                    choice.pool, choice.kind, known));
  }
  return {};
}

std::string explanation_prefix() {
  // The start time keeps ids of two runs apart.
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:x}-", std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

}  // namespace

CacheImpl::CacheImpl(const CacheOptions& options, const ModelSpec& model, Device& device,
                     std::function<void()> notify)
    : device_(device), notify_(std::move(notify)), options_(options), model_(model) {}

Result<std::shared_ptr<CacheImpl>> CacheImpl::open(const CacheOptions& options,
                                                   const ModelSpec& model, Device& device,
                                                   const std::function<OpenedStore()>& open_store,
                                                   bool store_given, std::function<void()> notify) {
  HITIDE_RETURN_IF_ERROR(validate(options));
  HITIDE_RETURN_IF_ERROR(fits(model, device.geometry()));
  HITIDE_RETURN_IF_ERROR(names_pools(options.host, model));
  // Before a store is opened, which may take memory too.
  HITIDE_ASSIGN_OR_RETURN(const HostSize size,
                          planned_host_size(options.host, model, device.geometry(),
                                            store_given ? std::vector<MemoryDemand>{}
                                                        : other_demands(options.storage)));
  std::shared_ptr<CacheImpl> impl(new CacheImpl(options, model, device, std::move(notify)));
  HITIDE_RETURN_IF_ERROR(impl->start(size, open_store(), store_given));
  return impl;
}

Status CacheImpl::start(const HostSize& size, OpenedStore opened, bool store_given) {
  const CacheOptions& options = options_;
  const ModelSpec& model = model_;
  const bool wanted = opened.store != nullptr || !opened.status.ok();
  const MutexLock close_lock(close_mutex_);
  const MutexLock admin(admin_mutex_);
  attached_ = options.storage;
  attached_by_options_ = wanted && !store_given;
  const auto tier = std::make_shared<StorageTier>(std::move(opened), options, storage_counters_);
  replace_tier(tier);
  HITIDE_RETURN_IF_ERROR(make_host_pool(options, model, size));
  tier->start(model, *host_pool_, storage_hooks());
  if (host_pool_->describe().allocator == AllocatorKind::store) memory_owner_ = tier;

  const DeviceGeometry geometry = device_.geometry();
  CoreConfig config;
  config.page_size = model.page_size();
  config.device_pages = geometry.page_count;
  config.device_sequences = geometry.sequence_count;
  config.host_pages = size.page_count;
  config.page_bytes = page_layout(model.anchor()).object_bytes();
  config.policy = options.policy;
  config.explanations_kept = options.explanations_kept;
  config.prefill_tokens_per_s = options.prefill_tokens_per_s;
  config.explanation_prefix = explanation_prefix();
  {
    const MutexLock lock(mutex_);
    config.storage = lanes_ != nullptr ? StorageState::on
                     : wanted          ? StorageState::off
                                       : StorageState::none;
    core_ = std::make_unique<CacheCore>(config);
    if (HostPool::kChecksFreePages) {
      HITIDE_RETURN_IF_ERROR(core_->observe_host_pages(host_pool_.get()));
    }
  }
  HITIDE_RETURN_IF_ERROR(device_.attach(this));
  core_thread_ = std::thread([this] { run_core(); });
  return {};
}

// From the allocator that was chosen; where the store would have to hand the memory out and cannot,
// from the default one.
Status CacheImpl::make_host_pool(const CacheOptions& options, const ModelSpec& model,
                                 const HostSize& size) {
  const PoolSpec& pool = model.anchor();
  const AllocatorKind kind = chosen_allocator(options.host, pool.name);
  HITIDE_ASSIGN_OR_RETURN(auto allocator, placed_allocator_of(kind, tier()->store(), options.host));
  Result<std::unique_ptr<HostPool>> made = HostPool::create(pool, size.page_count, allocator);
  if (!made.ok() && kind == AllocatorKind::store) {
    log_warning("host_allocator", {{"pool", pool.name},
                                   {"reason", made.status().to_string()},
                                   {"effect", "shm memory instead"}});
    HITIDE_ASSIGN_OR_RETURN(allocator,
                            placed_allocator_of(AllocatorKind::shm, nullptr, options.host));
    made = HostPool::create(pool, size.page_count, allocator);
  }
  HITIDE_RETURN_IF_ERROR(made.status());
  host_pool_ = std::move(made).value();
  return {};
}

CacheImpl::~CacheImpl() {
  const Status status = close(clock_.now());
  if (!status.ok()) log_warning("cache_close", {{"status", status.to_string()}});
}

void CacheImpl::post(CopyCompletion completion) {
  completions_.post(map_completion(std::move(completion), *host_pool_));
}

void CacheImpl::dispatch_copy(const CopyOp& copy) {
  Result<CopyBatch> batch = map_copy(copy, *host_pool_);
  if (batch.ok()) return device_.submit(std::move(batch).value());
  log_error("copy_map_failed", {{"status", batch.status().to_string()}});
  Completion completion;
  completion.id = copy.id;
  completion.pages.assign(copy.pages.size(), StatusCode::internal);
  completions_.post(std::move(completion));
}

// Where storage went between the question and the read, the answer is that it was taken back.
template <typename Op>
void CacheImpl::dispatch_storage(Op op) {
  if (lanes_ != nullptr) return lanes_->submit(std::move(op));
  Completion completion;
  completion.id = op.id;
  completion.pages.assign(op.keys.size(), StatusCode::cancelled);
  if constexpr (!std::is_same_v<Op, StorageQueryOp>) {
    for (const SidePages& side : op.sides) {
      completion.sides.emplace_back(side.host_pages.size(), StatusCode::cancelled);
    }
  }
  completions_.post(std::move(completion));
}

void CacheImpl::dispatch(Plan& plan) {
  for (PlanOp& op : plan.ops) {
    if (auto* copy = std::get_if<CopyOp>(&op)) {
      dispatch_copy(*copy);
    } else if (auto* command = std::get_if<SequenceCommand>(&op)) {
      device_.submit(std::move(*command));
    } else if (auto* agree = std::get_if<AgreeOp>(&op)) {
      ranks_.agree(std::move(*agree),
                   [this](Completion completion) { completions_.post(std::move(completion)); });
    } else if (auto* query = std::get_if<StorageQueryOp>(&op)) {
      dispatch_storage(std::move(*query));
    } else if (auto* read = std::get_if<StorageReadOp>(&op)) {
      dispatch_storage(std::move(*read));
    } else if (auto* write = std::get_if<StorageWriteOp>(&op)) {
      dispatch_storage(std::move(*write));
    }
  }
  if (plan.wake) {
    notify_pending_ = true;
    completions_.wake();
  }
  report_trip();
}

void CacheImpl::report_trip() {
  if (trip_reported_ || core_->tripped().ok()) return;
  trip_reported_ = true;
  log_error("cache_bypass", {{"reason", core_->tripped().to_string()},
                             {"effect", "every prompt misses and nothing is kept"}});
}

template <typename Step>
auto CacheImpl::with_core(std::string_view call, const Step& step)
    -> decltype(step(std::declval<CacheCore&>(), std::declval<Plan&>())) {
  const MutexLock lock(mutex_);
  if (closed_) return closed_status(call);
  const TimePoint before = core_->next_deadline();
  Plan plan;
  auto result = step(*core_, plan);
  dispatch(plan);
  if (core_->next_deadline() < before) completions_.wake();
  return result;
}

void CacheImpl::run_core() {
  std::deque<Completion> arrived;
  while (true) {
    TimePoint deadline;
    {
      const MutexLock lock(mutex_);
      deadline = core_->next_deadline();
    }
    completions_.take(arrived, deadline);
    const bool last = completions_.closed();
    try {
      take_completions(arrived);
    } catch (const std::exception& error) {
      log_error("core_thread", {{"exception", error.what()}});
    } catch (...) {
      log_error("core_thread", {{"exception", "unknown"}});
    }
    bool tell = false;
    {
      const MutexLock lock(mutex_);
      std::swap(tell, notify_pending_);
    }
    if (tell && notify_) notify_();
    if (last && arrived.empty()) return;
  }
}

void CacheImpl::take_completions(const std::deque<Completion>& completions) {
  const MutexLock lock(mutex_);
  Plan plan;
  const TimePoint now = clock_.now();
  for (const Completion& completion : completions) core_->on_completion(completion, now, plan);
  core_->tick(now, plan);
  dispatch(plan);
#ifdef HITIDE_DEBUG_CHECKS
  checked_ += completions.size();
  if (checked_ >= kCompletionsPerCheck) {
    checked_ = 0;
    const Status status = core_->check();
    HITIDE_CHECK(status.ok(), status.to_string());
  }
#endif
  if (core_->operations_in_flight() == 0) idle_.notify_all();
}

Result<PrefixHandle> CacheImpl::open_prefix(const PrefixRequest& request) {
  Result<RequestId> id =
      with_core("open_prefix", [&](CacheCore& core, Plan& plan) -> Result<RequestId> {
        return core.open(request, clock_.now(), plan);
      });
  if (!id.ok()) return id.status();
  return PrefixHandle(shared_from_this(), *id);
}

Result<Admission> CacheImpl::admit(RequestId id) {
  return with_core("admit", [&](CacheCore& core, Plan& plan) -> Result<Admission> {
    return core.admit(id, clock_.now(), plan);
  });
}

Result<std::vector<PageId>> CacheImpl::reserve(RequestId id, std::uint32_t total_tokens) {
  return with_core("reserve", [&](CacheCore& core, Plan& plan) -> Result<std::vector<PageId>> {
    return core.reserve(id, total_tokens, clock_.now(), plan);
  });
}

Status CacheImpl::commit(RequestId id, std::span<const TokenId> tokens) {
  return with_core("commit", [&](CacheCore& core, Plan& plan) -> Status {
    return core.commit(id, tokens, clock_.now(), plan);
  });
}

void CacheImpl::release(RequestId id) {
  // Closed: nothing is held any more.
  with_core("release", [&](CacheCore& core, Plan& plan) {
    core.release(id, clock_.now(), plan);
    return ok_status();
  }).ignore();
}

PrefixState CacheImpl::state(RequestId id) const {
  const MutexLock lock(mutex_);
  return closed_ ? PrefixState::closed : core_->state(id);
}

std::uint32_t CacheImpl::cached_tokens(RequestId id) const {
  const MutexLock lock(mutex_);
  return core_->cached_tokens(id);
}

std::vector<PageId> CacheImpl::pages(RequestId id) const {
  const MutexLock lock(mutex_);
  return core_->pages(id);
}

std::string CacheImpl::explanation_id(RequestId id) const {
  const MutexLock lock(mutex_);
  return core_->explanation_id(id);
}

void CacheImpl::note_prefill(std::uint32_t tokens, Duration time) {
  const MutexLock lock(mutex_);
  core_->note_prefill(tokens, time);
}

Status CacheImpl::flush() {
  return with_core("flush", [&](CacheCore& core, Plan& plan) -> Status {
    core.flush(clock_.now(), plan);
    return ok_status();
  });
}

Result<Explanation> CacheImpl::explain(std::string_view id) const {
  const MutexLock lock(mutex_);
  const Explanation* found = core_->explain(id);
  if (found != nullptr) return *found;
  return Status(StatusCode::not_found,
                fmt::format("explain: no explanation '{}'; only the last ones are kept", id));
}

Status CacheImpl::check() const {
  const MutexLock lock(mutex_);
  return core_->check();
}

Status CacheImpl::close(TimePoint deadline) {
  const MutexLock close_lock(close_mutex_);
  if (close_done_) return close_status_;
  close_done_ = true;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    if (!core_thread_.joinable()) return close_status_;  // never started
    Plan plan;
    core_->drain(clock_.now(), plan);
    dispatch(plan);
    // Backups go on: the device carries out its commands until it is detached.
    const auto idle = [this]()
                          HITIDE_REQUIRES(mutex_) { return core_->operations_in_flight() == 0; };
    if (!idle_.wait_until(lock, deadline, idle)) {
      close_status_ = Status(StatusCode::deadline_exceeded,
                             fmt::format("close: {} operations were still under way and have been "
                                         "cancelled",
                                         core_->operations_in_flight()));
    }
  }
  const MutexLock admin(admin_mutex_);
  const TimePoint late = std::max(deadline, clock_.now() + kLaneGrace);
  const auto keep = [this](const Status& status) HITIDE_REQUIRES(close_mutex_) {
    if (close_status_.ok()) close_status_ = status;
  };
  const std::shared_ptr<StorageTier> storage = tier();
  device_.detach();
  storage->stop_attaching();
  keep(storage->stop_lanes(late));
  completions_.close();
  core_thread_.join();
  storage->detach();
  host_pool_.reset();
  keep(storage->close(late));
  if (memory_owner_ && memory_owner_ != storage) keep(memory_owner_->close(late));
  return close_status_;
}

}  // namespace hitide
