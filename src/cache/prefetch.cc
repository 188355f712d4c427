// From storage to host memory: ask, agree, allocate, read, publish the longest legal prefix.
#include <algorithm>

#include "cache/cache_core.h"

namespace hitide {
namespace {
MissReason reason_of(StatusCode code) {
  switch (code) {
    case StatusCode::not_found:
      return MissReason::storage_miss;
    case StatusCode::data_loss:
      return MissReason::verification_failed;
    case StatusCode::deadline_exceeded:
      return MissReason::deadline;
    default:
      return MissReason::storage_failed;
  }
}
}  // namespace

void CacheCore::add_reason(Prefetch& prefetch, std::uint32_t begin, std::uint32_t end,
                           MissReason reason) {
  Request* request = find_request(prefetch.waiter);
  if (request != nullptr && begin < end) request->reasons.push_back({begin, end, reason});
}

void CacheCore::on_query(Operation& operation, const Completion& completion, TimePoint now,
                         Plan& plan) {
  Prefetch& prefetch = prefetches_.at(operation.prefetch);
  std::uint32_t held = 0;
  while (held < completion.pages.size() && held < prefetch.span_pages &&
         completion.pages[held] == StatusCode::ok) {
    ++held;
  }
  if (held < prefetch.span_pages) {
    const StatusCode code =
        held < completion.pages.size() ? completion.pages[held] : StatusCode::unavailable;
    add_reason(prefetch, prefetch.first_page + held, prefetch.first_page + prefetch.span_pages,
               reason_of(code));
    prefetch.worth_asking_again = true;
  }
  // Nobody waits any more: what would be read now is read when it is asked for again.
  const bool wanted = prefetch.waiter != 0 || prefetch.goes_on_alone;
  if (!wanted || held == 0) return end_prefetch(prefetch.id, now, plan);
  AgreeOp agree;
  add_operation(OpKind::agree, agree.id).prefetch = prefetch.id;
  agree.decision = next_decision_++;
  agree.stop_points.assign(prefetch.span_pages + 1, 0);
  std::fill_n(agree.stop_points.begin(), held + 1, std::uint8_t{1});
  plan.ops.emplace_back(std::move(agree));
}

void CacheCore::on_agree(Operation& operation, const Completion& completion, TimePoint now,
                         Plan& plan) {
  Prefetch& prefetch = prefetches_.at(operation.prefetch);
  std::uint32_t agreed = 0;
  for (std::uint32_t i = 0; i < completion.pages.size() && i <= prefetch.span_pages; ++i) {
    if (completion.pages[i] == StatusCode::ok) agreed = i;
  }
  const std::uint32_t begin = prefetch.first_page;
  const bool wanted = prefetch.waiter != 0 || prefetch.goes_on_alone;
  if (!wanted || agreed == 0) return end_prefetch(prefetch.id, now, plan);
  if (agreed * config_.page_size < config_.policy.prefetch_threshold_tokens) {
    add_reason(prefetch, begin, begin + agreed, MissReason::below_threshold);
    return end_prefetch(prefetch.id, now, plan);
  }
  // What storage has may be too little to be worth it where all would have been.
  Request* const waiter = find_request(prefetch.waiter);
  if (waiter != nullptr && !prefetch.goes_on_alone && !prefetch.again &&
      !worth_loading(*waiter, Tier::storage, begin, begin + agreed, now)) {
    add_reason(prefetch, begin, begin + agreed, MissReason::not_worth_loading);
    return end_prefetch(prefetch.id, now, plan);
  }
  if (!bring_down_head(prefetch, now, plan)) {
    prefetch.worth_asking_again = true;
    add_reason(prefetch, begin, begin + agreed, MissReason::pool_full);
    return end_prefetch(prefetch.id, now, plan);
  }
  // As many as fit, if they are still worth it.
  make_room(Tier::host, agreed, now, plan);
  const std::uint32_t count = std::min(agreed, host_.free_count());
  prefetch.worth_asking_again = prefetch.worth_asking_again || count < agreed;
  if (count * config_.page_size < config_.policy.prefetch_threshold_tokens) {
    add_reason(prefetch, begin, begin + agreed, MissReason::pool_full);
    return end_prefetch(prefetch.id, now, plan);
  }
  add_reason(prefetch, begin + count, begin + agreed, MissReason::pool_full);
  if (!require(host_.allocate(count, PageOwner::operation, prefetch.pages))) {
    return end_prefetch(prefetch.id, now, plan);
  }
  prefetch.states.assign(count, Prefetch::PageState::reading);
  prefetch.reading = true;
  issue_reads(prefetch, now, plan);
}

// The node that ends where the pages go that are not settled yet; kNoNode: it has left the tree.
NodeIndex CacheCore::above(const Prefetch& prefetch) {
  const std::uint32_t pages = prefetch.first_page + prefetch.settled - prefetch.anchor_pages;
  const FindResult found = tree_.find(
      prefetch.anchor, std::span(prefetch.prompt->tokens)
                           .subspan(std::size_t{prefetch.anchor_pages} * config_.page_size,
                                    std::size_t{pages} * config_.page_size));
  return found.path.pages == pages ? tree_.materialize(found.path) : kNoNode;
}

// Fetched pages can only be hung below pages that are on the host themselves: those that the device
// alone has are copied while the read is under way.
bool CacheCore::bring_down_head(Prefetch& prefetch, TimePoint now, Plan& plan) {
  const NodeIndex node = above(prefetch);
  if (node == kNoNode) return false;
  if (node == prefetch.anchor || tree_.residency(node, Tier::host).resident()) return true;
  const std::vector<NodeIndex> chain = missing_below(Tier::device, node);
  if (!chain.empty()) start_backup(chain, now, plan);
  return tree_.node(node).backup_pending;
}

void CacheCore::settle_held(TimePoint now, Plan& plan) {
  std::vector<std::uint64_t> held;
  for (const auto& [id, prefetch] : prefetches_) {
    if (prefetch.held) held.push_back(id);
  }
  for (const std::uint64_t id : held) {
    Prefetch& prefetch = prefetches_.at(id);
    settle(prefetch, plan);
    if (prefetch.operations == 0 && !prefetch.held) end_prefetch(id, now, plan);
  }
}

void CacheCore::issue_reads(Prefetch& prefetch, TimePoint now, Plan& plan) {
  const std::uint32_t count = static_cast<std::uint32_t>(prefetch.pages.size());
  for (std::uint32_t first = 0; first < count; first += config_.policy.storage_batch_pages) {
    const std::uint32_t batch = std::min(count - first, config_.policy.storage_batch_pages);
    StorageReadOp read;
    Operation& operation = add_operation(OpKind::read, read.id);
    operation.prefetch = prefetch.id;
    operation.first = first;
    const auto keys = prefetch.prompt->keys.begin() + prefetch.first_page + first;
    read.keys.assign(keys, keys + batch);
    operation.host_pages.assign(prefetch.pages.begin() + first,
                                prefetch.pages.begin() + first + batch);
    read.host_pages = operation.host_pages;
    // The batches before it go first.
    read.deadline = now + storage_call_limit((first + batch) * config_.page_bytes);
    begin_operations(Tier::host, operation.host_pages);
    read.waited = !prefetch.goes_on_alone;
    ++prefetch.operations;
    plan.ops.emplace_back(std::move(read));
  }
}

void CacheCore::on_read(Operation& operation, const Completion& completion, TimePoint now,
                        Plan& plan) {
  end_operations(Tier::host, operation.host_pages, completion.buffers_busy_until);
  Prefetch& prefetch = prefetches_.at(operation.prefetch);
  for (std::uint32_t i = 0; i < operation.host_pages.size(); ++i) {
    const StatusCode code =
        i < completion.pages.size() ? completion.pages[i] : StatusCode::unavailable;
    const bool ok = code == StatusCode::ok;
    prefetch.states[operation.first + i] =
        ok ? Prefetch::PageState::read : Prefetch::PageState::failed;
    if (ok) ++prefetch.read_pages;
    if (ok) continue;
    if (code == StatusCode::data_loss) {
      ++stats_.verification_failures;  // and dropped: it does not come back by itself
    } else {
      prefetch.worth_asking_again = true;
    }
    const std::uint32_t page = prefetch.first_page + operation.first + i;
    add_reason(prefetch, page, page + 1, reason_of(code));
  }
  --prefetch.operations;
  if (prefetch.operations == 0) {
    storage_speed_.note(span_bytes(prefetch.read_pages), now - prefetch.started, now);
  }
  settle(prefetch, plan);
  if (prefetch.operations == 0 && !prefetch.held) end_prefetch(prefetch.id, now, plan);
  keep_host_reserve(now, plan);
}

// Publishes the leading run of read pages that is not published yet; gives back what cannot be.
void CacheCore::settle(Prefetch& prefetch, Plan& plan) {
  using PageState = Prefetch::PageState;
  const std::uint32_t count = static_cast<std::uint32_t>(prefetch.pages.size());
  std::uint32_t end = prefetch.settled;
  while (!prefetch.broken && end < count && prefetch.states[end] == PageState::read) ++end;
  if (end > prefetch.settled) {
    const std::uint32_t run = end - prefetch.settled;
    const std::uint32_t position = prefetch.first_page + prefetch.settled;
    const std::span<const PageId> pages(prefetch.pages.data() + prefetch.settled, run);
    const NodeIndex start = above(prefetch);
    prefetch.held = start != kNoNode && tree_.node(start).backup_pending;
    if (prefetch.held) return;
    const bool closed = start != kNoNode && tree_.deepest_resident(start, Tier::host) == start;
    Placement placed;
    if (closed) {
      PlaceRun place_run;
      place_run.tier = Tier::host;
      place_run.start = start;
      place_run.tokens = std::span(prefetch.prompt->tokens)
                             .subspan(std::size_t{position} * config_.page_size,
                                      std::size_t{run} * config_.page_size);
      place_run.keys = std::span(prefetch.prompt->keys).subspan(position, run);
      place_run.pages = pages;
      place_run.owner = PageOwner::operation;
      placed = place(place_run, plan);
      for (NodeIndex at = placed.end; at != start && at != kNoNode; at = tree_.node(at).parent) {
        if (prefetch.storage_epoch != storage_epoch_) break;
        tree_.node(at).stored_pages = tree_.node(at).page_count();
      }
    }
    give_back(Tier::host, pages.first(placed.existing), PageOwner::operation);
    give_back(Tier::host, pages.subspan(placed.placed), PageOwner::operation);
    stats_.prefetched_pages += placed.placed - placed.existing;
    prefetch.broken = prefetch.broken || placed.placed < run;
    prefetch.settled = end;
    prefetch.published += placed.placed;
    report_progress(prefetch);
    // The path stays while somebody waits for it.
    Request* waiter = find_request(prefetch.waiter);
    if (waiter != nullptr && placed.end != kNoNode) {
      pin_request(*waiter, waiter->device_pin, placed.end);
    }
  }
  if (end < count && prefetch.states[end] == PageState::failed) prefetch.broken = true;
  if (!prefetch.broken) return;
  for (std::uint32_t i = prefetch.settled; i < count; ++i) {
    PageState& state = prefetch.states[i];
    if (state != PageState::read && state != PageState::failed) continue;
    give_back(Tier::host, std::span(&prefetch.pages[i], 1), PageOwner::operation);
    state = PageState::settled;
  }
}

void CacheCore::report_progress(const Prefetch& prefetch) {
  Request* waiter = find_request(prefetch.waiter);
  if (waiter == nullptr) return;
  waiter->fetched_begin = prefetch.served_from;
  waiter->fetched_end = prefetch.first_page + prefetch.published;
  waiter->hit_pages = std::max(waiter->hit_pages, waiter->fetched_end);
}

void CacheCore::end_prefetch(std::uint64_t id, TimePoint now, Plan& plan) {
  Prefetch& prefetch = prefetches_.at(id);
  occupied_pages_ -= prefetch.span_pages;
  Request* waiter = find_request(prefetch.waiter);
  if (waiter != nullptr && waiter->state == PrefixState::waiting) make_ready(*waiter, now, plan);
  if (waiter != nullptr) {
    waiter->prefetch = 0;
    if (prefetch.worth_asking_again) ask_again_later(*waiter, now);
  }
  tree_.unpin(prefetch.anchor, Tier::host);
  prefetches_.erase(id);
}

}  // namespace hitide
