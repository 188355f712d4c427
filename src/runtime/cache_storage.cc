// CacheImpl: storage that comes and goes while requests are served.
#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "runtime/cache_impl.h"

namespace hitide {
namespace {

// Counters alone: what a store holds is said by the one that is attached.
void add_counters(StoreStats& to, const StoreStats& from) {
  to.gets += from.gets;
  to.get_misses += from.get_misses;
  to.get_bytes += from.get_bytes;
  to.puts += from.puts;
  to.puts_existing += from.puts_existing;
  to.put_bytes += from.put_bytes;
  to.evicted_objects += from.evicted_objects;
  to.failures += from.failures;
  to.outages += from.outages;
  to.refused += from.refused;
}

bool is_attached(StorageStatus status) {
  return status == StorageStatus::waiting || status == StorageStatus::on ||
         status == StorageStatus::failing;
}

std::string name_of(const CacheStats& stats) {
  return stats.storage_detail.empty()
             ? stats.storage_backend
             : fmt::format("{} ({})", stats.storage_backend, stats.storage_detail);
}

CacheStats stats_of(const StorageTier& tier) {
  CacheStats stats;
  tier.fill_stats(stats);
  return stats;
}

}  // namespace

StorageTier::Hooks CacheImpl::storage_hooks() {
  return {
      .on_completion = [this](Completion completion) { completions_.post(std::move(completion)); },
      .on_attached = [this](TransferEngine& lanes) { storage_attached(lanes); }};
}

void CacheImpl::storage_attached(TransferEngine& lanes) {
  const MutexLock lock(mutex_);
  lanes_ = &lanes;
  if (core_) core_->set_storage(StorageState::on);
}

std::shared_ptr<StorageTier> CacheImpl::tier() const {
  const MutexLock lock(mutex_);
  return storage_;
}

void CacheImpl::replace_tier(std::shared_ptr<StorageTier> tier) {
  const MutexLock lock(mutex_);
  storage_ = std::move(tier);
}

void CacheImpl::leave_lanes() {
  const MutexLock lock(mutex_);
  lanes_ = nullptr;
  core_->set_storage(StorageState::off);
}

Status CacheImpl::still_open(std::string_view call) const {
  const MutexLock lock(mutex_);
  if (!closed_) return {};
  return Status(StatusCode::failed_precondition, fmt::format("{}: the cache is closed", call));
}

Status CacheImpl::attach_storage(const OpenStore& open, const StorageOptions* storage,
                                 const PolicyOptions& policy, TimePoint deadline) {
  const MutexLock admin(admin_mutex_);
  HITIDE_RETURN_IF_ERROR(still_open("attach_storage"));
  const CacheStats before = stats_of(*tier());
  const auto take_policy = [&] {
    const MutexLock lock(mutex_);
    core_->set_policy(policy);
  };
  if (is_attached(before.storage_status)) {
    if (storage != nullptr && attached_by_options_ && *storage == attached_) {
      take_policy();
      return {};
    }
    return Status(StatusCode::failed_precondition,
                  fmt::format("attach_storage: {} is attached; detach it first", name_of(before)));
  }
  // One that could not be registered may hold a store open.
  HITIDE_RETURN_IF_ERROR(end_storage(deadline));
  CacheOptions options = options_;
  options.policy = policy;
  if (storage != nullptr) options.storage = *storage;
  const auto fresh = std::make_shared<StorageTier>(open(), options, storage_counters_);
  replace_tier(fresh);
  fresh->start(model_, *host_pool_, storage_hooks(), true);
  const CacheStats after = stats_of(*fresh);
  if (after.storage_status == StorageStatus::on || after.storage_status == StorageStatus::failing) {
    attached_ = options.storage;
    attached_by_options_ = storage != nullptr;
    take_policy();
    log_info("storage_attached", {{"backend", after.storage_backend}});
    return {};
  }
  end_storage(deadline).ignore();  // what stood in the way is what is said
  OpenedStore failed;
  failed.status = Status(StatusCode::unavailable, after.storage_detail);
  const auto off = std::make_shared<StorageTier>(std::move(failed), options, storage_counters_);
  replace_tier(off);
  return Status(
      StatusCode::unavailable,
      fmt::format("attach_storage: {}", after.storage_detail.empty() ? "the store does not answer"
                                                                     : after.storage_detail));
}

// What is in flight ends before the deadline, or is taken back; a call of the store that is under
// way is waited for. Nothing is attached afterwards, whatever the status says.
Status CacheImpl::end_storage(TimePoint deadline) {
  const std::shared_ptr<StorageTier> old = tier();
  Status status;
  const auto keep = [&status](const Status& one) {
    if (status.ok()) status = one;
  };
  old->stop_attaching();
  leave_lanes();
  {
    const MutexLock lock(mutex_);
    core_->forget_stored();
  }
  keep(old->drain(deadline));
  const TimePoint late = std::max(deadline, clock_.now() + kLaneGrace);
  keep(old->stop_lanes(late));
  old->detach();
  const CacheStats last = stats_of(*old);
  if (old != memory_owner_) keep(old->close(late));
  const auto none = std::make_shared<StorageTier>(OpenedStore(), options_, storage_counters_);
  const MutexLock lock(mutex_);
  if (old->store() != nullptr) add_counters(earlier_stores_[old->backend()], last.storage);
  storage_ = none;
  return status;
}

Status CacheImpl::detach_storage(TimePoint deadline) {
  const MutexLock admin(admin_mutex_);
  HITIDE_RETURN_IF_ERROR(still_open("detach_storage"));
  const CacheStats before = stats_of(*tier());
  if (!is_attached(before.storage_status)) {
    return Status(StatusCode::failed_precondition, "detach_storage: no storage is attached");
  }
  const Status status = end_storage(deadline);
  log_info("storage_detached",
           {{"backend", before.storage_backend}, {"status", status.to_string()}});
  return status;
}

Result<std::uint64_t> CacheImpl::clear_storage(TimePoint deadline) {
  const MutexLock admin(admin_mutex_);
  HITIDE_RETURN_IF_ERROR(still_open("clear_storage"));
  const std::shared_ptr<StorageTier> storage = tier();
  const CacheStats before = stats_of(*storage);
  const bool on =
      before.storage_status == StorageStatus::on || before.storage_status == StorageStatus::failing;
  if (!on) {
    return Status(StatusCode::failed_precondition,
                  before.storage_status == StorageStatus::waiting
                      ? "clear_storage: the store does not answer yet"
                      : "clear_storage: no storage is attached");
  }
  // No call of ours is under way meanwhile: a store may free what others still read or write.
  TransferEngine* lanes = nullptr;
  {
    const MutexLock lock(mutex_);
    lanes = lanes_;
  }
  leave_lanes();
  const Status drained = storage->drain(deadline);
  Result<std::uint64_t> removed =
      drained.ok() ? storage->clear(deadline) : Result<std::uint64_t>(drained);
  {
    const MutexLock lock(mutex_);
    core_->forget_stored();
  }
  storage_attached(*lanes);
  if (removed.ok()) {
    log_info("storage_cleared", {{"backend", before.storage_backend}, {"objects", *removed}});
    return removed;
  }
  return removed.status().with_context("clear_storage");
}

CacheStats CacheImpl::stats() const {
  CacheStats stats;
  std::shared_ptr<StorageTier> storage;
  std::map<std::string, StoreStats> earlier;
  {
    const MutexLock lock(mutex_);
    core_->fill_stats(stats);
    storage = storage_;
    earlier = earlier_stores_;
  }
  storage->fill_stats(stats);
  const auto counted = earlier.find(stats.storage_backend);
  if (counted != earlier.end()) add_counters(stats.storage, counted->second);
  return stats;
}

std::string CacheImpl::storage_metrics() const {
  MetricsText text;
  tier()->write_metrics(text);
  return std::move(text).text();
}

}  // namespace hitide
