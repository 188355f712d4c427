#include "cache/cache_core.h"

#include <algorithm>

#include <fmt/format.h>

#include "policy/eviction_policy.h"
#include "policy/write_policy.h"

namespace hitide {

CacheCore::CacheCore(const CoreConfig& config)
    : config_(config),
      tree_(config.page_size, config.device_pages, config.host_pages,
            rank_for(config.policy.eviction_policy),
            copies_before_eviction(config.policy.write_policy)),
      device_(config.device_pages),
      host_(config.host_pages),
      hasher_(config.page_size),
      speed_(config.prefill_tokens_per_s),
      ghost_(config.ghosts_kept) {
  for (std::uint32_t i = config.device_sequences; i > 0; --i) {
    free_sequences_.push_back(SequenceId{static_cast<std::int32_t>(i - 1)});
  }
}

Operation& CacheCore::add_operation(OpKind kind, OpId& id) {
  id = next_op_++;
  Operation& operation = operations_[id];
  operation.id = id;
  operation.kind = kind;
  return operation;
}

bool CacheCore::require(const Status& status) {
  if (status.ok()) return true;
  if (tripped_.ok()) {
    tripped_ = status;
    ++stats_.bypass_trips;
  }
  return false;
}

void CacheCore::begin_operations(Tier tier, std::span<const PageId> pages) {
  for (const PageId page : pages) require(allocator(tier).begin_operation(page));
}

void CacheCore::end_operations(Tier tier, std::span<const PageId> pages, TimePoint busy_until) {
  for (const PageId page : pages) require(allocator(tier).end_operation(page, busy_until));
}

void CacheCore::give_back(Tier tier, std::span<const PageId> pages, PageOwner owner) {
  require(allocator(tier).free(pages, owner));
}

Request* CacheCore::find_request(RequestId id) {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : &it->second;
}

const Request* CacheCore::find_request(RequestId id) const {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : &it->second;
}

void CacheCore::submit(SequenceCommand::Kind kind, SequenceId sequence, std::uint32_t position,
                       std::vector<PageId> pages, Plan& plan) const {
  if (!sequences_used()) return;
  plan.ops.emplace_back(SequenceCommand{kind, sequence, position, std::move(pages)});
}

void CacheCore::on_completion(const Completion& completion, TimePoint now, Plan& plan) {
  const auto it = operations_.find(completion.id);
  if (it == operations_.end() || it->second.answer) {
    // An operation is answered once; whatever comes again is late and means nothing any more.
    ++stats_.late_completions_dropped;
    return;
  }
  if (it->second.kind == OpKind::backup && answered_too_early(it->second)) {
    it->second.answer = completion;
    deferred_backups_.push_back(completion.id);
    return;
  }
  Operation operation = std::move(it->second);
  operations_.erase(it);
  device_.release_quarantine(now);
  host_.release_quarantine(now);
  switch (operation.kind) {
    case OpKind::backup:
      on_backup(operation, completion, now, plan);
      take_deferred_backups(now, plan);
      break;
    case OpKind::load:
      on_load(operation, completion, now, plan);
      break;
    case OpKind::query:
      on_query(operation, completion, now, plan);
      break;
    case OpKind::agree:
      on_agree(operation, completion, now, plan);
      break;
    case OpKind::read:
      on_read(operation, completion, now, plan);
      break;
    case OpKind::write:
      on_write(operation, completion, now, plan);
      break;
  }
}

void CacheCore::tick(TimePoint now, Plan& plan) {
  device_.release_quarantine(now);
  host_.release_quarantine(now);
  take_write_retries(now, plan);
  for (auto& [id, request] : requests_) {
    if (request.state == PrefixState::waiting && now >= request.deadline) {
      leave_prefetch(request);
      make_ready(request, now, plan);
    } else if (request.state == PrefixState::ready && now >= request.retry_at) {
      ask_again(request, now, plan);
    }
  }
}

TimePoint CacheCore::next_deadline() const {
  TimePoint next = kNoDeadline;
  for (const auto& [id, request] : requests_) {
    if (request.state == PrefixState::waiting) next = std::min(next, request.deadline);
    if (request.state == PrefixState::ready) next = std::min(next, request.retry_at);
  }
  for (const WriteRetry& retry : write_retries_) next = std::min(next, retry.due);
  return next;
}

void CacheCore::forget_stored() {
  ++storage_epoch_;
  for (NodeIndex node = 0; node < tree_.node_slots(); ++node) tree_.node(node).stored_pages = 0;
}

void CacheCore::set_policy(const PolicyOptions& policy) {
  const EvictionPolicy eviction = config_.policy.eviction_policy;  // the tree is ordered by it
  config_.policy = policy;
  config_.policy.eviction_policy = eviction;
}

PrefixState CacheCore::state(RequestId id) const {
  const Request* request = find_request(id);
  return request == nullptr ? PrefixState::closed : request->state;
}

std::uint32_t CacheCore::cached_tokens(RequestId id) const {
  const Request* request = find_request(id);
  return request == nullptr ? 0 : request->hit_pages * config_.page_size;
}

std::vector<PageId> CacheCore::pages(RequestId id) const {
  const Request* request = find_request(id);
  return request == nullptr ? std::vector<PageId>() : request->pages;
}

std::string CacheCore::explanation_id(RequestId id) const {
  const Request* request = find_request(id);
  return request == nullptr ? std::string() : request->explanation.id;
}

const Explanation* CacheCore::explain(std::string_view id) const {
  for (auto it = explanations_.rbegin(); it != explanations_.rend(); ++it) {
    if (it->id == id) return &*it;
  }
  for (const auto& [number, request] : requests_) {
    if (request.explanation.id == id) return &request.explanation;
  }
  return nullptr;
}

namespace {
PoolStats pool_stats(const PageAllocator& allocator, const RadixTree& tree, Tier tier) {
  PoolStats stats;
  stats.pages_total = allocator.capacity();
  stats.pages_free = allocator.free_count();
  stats.pages_evictable = tree.evictable_pages(tier);
  stats.pages_pinned = tree.pinned_pages(tier);
  stats.pages_in_flight = allocator.count(PageOwner::request) +
                          allocator.count(PageOwner::operation) +
                          allocator.count(PageOwner::quarantined);
  return stats;
}
}  // namespace

void CacheCore::fill_stats(CacheStats& stats) const {
  stats = stats_;
  stats.device = pool_stats(device_, tree_, Tier::device);
  stats.host = pool_stats(host_, tree_, Tier::host);
  stats.sequences_total = config_.device_sequences;
  stats.sequences_free = free_sequences_.size();
  stats.prefill_tokens_per_s = speed_.tokens_per_s();
  for (const auto& [tier, speed] :
       {std::pair(Tier::host, &host_speed_), std::pair(Tier::storage, &storage_speed_)}) {
    if (!speed->known()) continue;
    stats.load_bytes_per_s[static_cast<std::size_t>(tier)] = speed->bytes_per_s();
    stats.load_latency_s[static_cast<std::size_t>(tier)] =
        std::chrono::duration<double>(speed->latency()).count();
  }
}

}  // namespace hitide
