// What did not come or go the first time: pages that storage did not take, and pages that it did
// not bring for a request that has not been admitted yet.
#include <algorithm>
#include <utility>

#include "cache/cache_core.h"
#include "policy/prefetch_policy.h"
#include "policy/write_policy.h"

namespace hitide {

// `missing`: the first page of each node of the operation that storage has not taken. With
// write_back the next page that leaves, or a drain, takes them along.
void CacheCore::write_again_later(const Operation& operation, std::vector<PageId> missing,
                                  TimePoint now) {
  if (copies_before_eviction(config_.policy.write_policy) || drain_ != Drain::none) return;
  if (operation.attempt >= kWriteRetriesMax || write_retries_.size() >= kWriteRetriesKept) return;
  write_retries_.push_back({.due = now + write_retry_delay(operation.attempt),
                            .attempt = operation.attempt + 1,
                            .storage_epoch = operation.storage_epoch,
                            .pages = std::move(missing)});
}

void CacheCore::write_again(const WriteRetry& retry, Plan& plan) {
  if (config_.storage != StorageState::on || retry.storage_epoch != storage_epoch_) return;
  std::vector<NodeIndex> nodes;
  for (const PageId page : retry.pages) {
    if (host_.owner(page) != PageOwner::node) continue;  // it has left the host
    const NodeIndex node = tree_.owner(Tier::host, page);
    if (!tree_.node(node).stored() && !tree_.node(node).store_pending) nodes.push_back(node);
  }
  if (nodes.empty()) return;
  write_to_storage(nodes, plan).attempt = retry.attempt;
  ++stats_.backup_retries;
}

void CacheCore::take_write_retries(TimePoint now, Plan& plan) {
  std::vector<WriteRetry> due;
  std::erase_if(write_retries_, [&](WriteRetry& retry) {
    if (now < retry.due) return false;
    due.push_back(std::move(retry));
    return true;
  });
  for (const WriteRetry& retry : due) write_again(retry, plan);
}

// Some of what the request hoped for has not come, and may yet. Asking again delays nobody: it ends
// when the request is admitted.
void CacheCore::ask_again_later(Request& request, TimePoint now) {
  if (request.retries >= config_.policy.prefetch_retries_max) return;
  request.retry_at = now + prefetch_retry_delay(config_.policy, request.retries);
}

void CacheCore::ask_again(Request& request, TimePoint now, Plan& plan) {
  request.retry_at = kNoDeadline;
  if (request.prefetch != 0 || !tripped_.ok()) return;
  ++request.retries;
  const FindResult found = find(*request.prompt);
  request.hit_pages = std::min(found.host.pages, request.prompt->usable_pages());
  start_prefetch(request, found, true, now, plan);
}

}  // namespace hitide
