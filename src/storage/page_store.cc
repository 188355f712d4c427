#include "storage/page_store.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/marker.h"
#include "storage/page_store_sorted.h"
#include "storage/store_call.h"

namespace hitide {
namespace {

constexpr std::uint32_t kRemovalsPerSecondMax = 16;
constexpr Duration kRemovalPause = std::chrono::seconds(60);  // between two of one key
constexpr std::size_t kRemovedKeysMax = 4096;
constexpr Duration kRemovalTimeMax = std::chrono::milliseconds(200);
constexpr Duration kLogInterval = std::chrono::seconds(10);

// Unlikely to repeat across processes; the ids of one process count up from it.
std::uint64_t first_backup_id() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) {
    seed = static_cast<std::uint64_t>(SystemClock::instance().now().time_since_epoch().count());
  }
  return Random(seed).next();
}

std::vector<PageLayout> layouts_of(const std::vector<PoolSpec>& pools) {
  std::vector<PageLayout> layouts;
  layouts.reserve(pools.size());
  for (const PoolSpec& pool : pools) layouts.push_back(page_layout(pool));
  return layouts;
}

std::vector<std::size_t> asked_pools(const std::vector<PoolSpec>& pools) {
  std::vector<std::size_t> asked;
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    if (pools[pool].required && pools[pool].page_bytes > 0) asked.push_back(pool);
  }
  // Markers count only where there is data that they can stand for.
  if (!asked.empty() && pools.front().kind == PoolKind::logical) asked.insert(asked.begin(), 0);
  return asked;
}

}  // namespace

std::uint64_t PageStoreStats::verification_failures_total() const {
  return std::accumulate(verification_failures.begin(), verification_failures.end(),
                         std::uint64_t{0});
}

std::uint64_t PageStoreStats::failures() const {
  return std::accumulate(failures_by_code.begin(), failures_by_code.end(), std::uint64_t{0});
}

struct PageStore::Batch {
  std::vector<const PageSlot*> pages;
  std::vector<std::string> object_keys;
  std::vector<StatusCode*> out;

  std::size_t size() const { return pages.size(); }
};

PageStore::PageStore(ObjectStore& store, const ModelSpec& model, const Clock& clock,
                     const FailedKeyLimits& failed_keys)
    : store_(store),
      clock_(clock),
      identity_(identity_digest(model)),
      pools_(model.pools),
      layouts_(layouts_of(model.pools)),
      asked_(asked_pools(model.pools)),
      part_(part_of(model.ranks)),
      keys_(identity_, part_),
      batch_items_max_(std::max<std::size_t>(1, store.capabilities().batch_items_max)),
      next_backup_id_(first_backup_id()),
      failed_keys_(failed_keys) {}

bool PageStore::usable(const PageSlot& page) const {
  if (page.pool == 0 && !anchor_has_bytes()) return true;
  return page.pool < pools_.size() && layouts_[page.pool].payload_bytes > 0 &&
         page.slot.size() >= layouts_[page.pool].object_bytes();
}

void PageStore::sort_page(const PageSlot& page, StatusCode& out, Sorted& sorted) {
  if (!usable(page)) {
    out = StatusCode::invalid_argument;
    count_failure(out);
    return;
  }
  if (page.pool == 0 && !anchor_has_bytes() && !has_markers()) {
    out = StatusCode::ok;
    return;
  }
  (page.pool == 0 ? sorted.anchors : sorted.sides).push_back({.page = page, .out = &out});
  sorted.named[page.pool].insert(page.key);
}

void PageStore::sort_pages(std::span<const PageSlot> pages, std::span<StatusCode> out,
                           Sorted& sorted) {
  sorted.named.resize(pools_.size());
  for (std::size_t i = 0; i < pages.size(); ++i) sort_page(pages[i], out[i], sorted);
}

std::size_t PageStore::find_pool(std::string_view name) const {
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const PoolSpec& pool) { return pool.name == name; });
  return static_cast<std::size_t>(found - pools_.begin());
}

CallOutcome PageStore::refuse_pool(const PoolPages& pages, std::string what) {
  std::fill(pages.out.begin(), pages.out.end(), StatusCode::invalid_argument);
  for (std::size_t i = 0; i < pages.keys.size(); ++i) count_failure(StatusCode::invalid_argument);
  log_limited(LogLevel::error, "pool_refused", kLogInterval, {{"reason", what}});
  return {.status = Status(StatusCode::invalid_argument, std::move(what))};
}

// Loud, and false for all of its pages: never skipped.
CallOutcome PageStore::refuse_unknown_pool(const PoolPages& pages) {
  cells_.unknown_pools.add();
  std::vector<std::string_view> names;
  for (const PoolSpec& pool : pools_) names.push_back(pool.name);
  return refuse_pool(pages,
                     fmt::format("no pool '{}'; known: {}", pages.pool, fmt::join(names, ", ")));
}

CallOutcome PageStore::sort_pools(std::span<const PoolPages> pools, Sorted& sorted) {
  CallOutcome outcome;
  sorted.named.resize(pools_.size());
  for (const PoolPages& pages : pools) {
    const std::size_t pool = find_pool(pages.pool);
    if (pool == pools_.size()) {
      merge(outcome, refuse_unknown_pool(pages));
      continue;
    }
    const bool without_slots = pool == 0 && !anchor_has_bytes() && pages.slots.empty();
    if (pages.out.size() != pages.keys.size() ||
        (!without_slots && pages.slots.size() != pages.keys.size())) {
      merge(outcome, refuse_pool(pages, fmt::format("pool {}: {} keys, {} slots, {} answers",
                                                    pages.pool, pages.keys.size(),
                                                    pages.slots.size(), pages.out.size())));
      continue;
    }
    for (std::size_t i = 0; i < pages.keys.size(); ++i) {
      const PageSlot page{.key = pages.keys[i],
                          .slot = without_slots ? std::span<std::byte>() : pages.slots[i],
                          .pool = static_cast<std::uint32_t>(pool)};
      sort_page(page, pages.out[i], sorted);
    }
  }
  return outcome;
}

std::span<std::byte> PageStore::object_of(const PageSlot& page) const {
  return page.slot.first(layouts_[page.pool].object_bytes());
}

std::string PageStore::object_key(const PageSlot& page) const {
  return keys_.object_key(page.key, pools_[page.pool].name);
}

EnvelopeExpectation PageStore::expectation(const PageSlot& page) const {
  return {.identity = identity_,
          .key = page.key,
          .pool = pools_[page.pool].name,
          .part = part_,
          .payload_bytes = layouts_[page.pool].payload_bytes};
}

template <typename CarryOut>
CallOutcome PageStore::in_batches(std::span<const Placed> pages, const CarryOut& carry_out) {
  CallOutcome outcome;
  for (std::size_t begin = 0; begin < pages.size(); begin += batch_items_max_) {
    Batch batch;
    for (const Placed& placed :
         pages.subspan(begin, std::min(batch_items_max_, pages.size() - begin))) {
      batch.pages.push_back(&placed.page);
      batch.object_keys.push_back(object_key(placed.page));
      batch.out.push_back(placed.out);
    }
    merge(outcome, carry_out(batch));
  }
  return outcome;
}

// ---- load ---------------------------------------------------------------------------------------

CallOutcome PageStore::load(std::span<const PageSlot> pages, std::span<StatusCode> out,
                            const CallOptions& options) {
  Sorted sorted;
  sort_pages(pages, out, sorted);
  return load_sorted(sorted, options);
}

CallOutcome PageStore::load(std::span<const PoolPages> pools, const CallOptions& options) {
  Sorted sorted;
  CallOutcome outcome = sort_pools(pools, sorted);
  merge(outcome, load_sorted(sorted, options));
  return outcome;
}

CallOutcome PageStore::load_sorted(const Sorted& sorted, const CallOptions& options) {
  std::vector<std::string> damaged;
  CallOutcome outcome;
  const auto load_data = [&](std::span<const Placed> pages) {
    merge(outcome, in_batches(pages, [&](const Batch& batch) {
            return load_batch(batch, options, damaged);
          }));
  };
  if (has_markers()) {
    merge(outcome, load_markers(sorted.anchors, damaged, options));
  } else {
    load_data(sorted.anchors);
  }
  load_data(sorted.sides);
  if (!damaged.empty()) remove_damaged(damaged, options);
  return outcome;
}

CallOutcome PageStore::load_batch(const Batch& batch, const CallOptions& options,
                                  std::vector<std::string>& damaged) {
  std::vector<std::span<std::byte>> buffers;
  for (const PageSlot* page : batch.pages) buffers.push_back(object_of(*page));
  std::vector<GetItem> items(batch.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = batch.object_keys[i], .buffers = std::span(buffers).subspan(i, 1)};
  }
  std::vector<ItemResult> results(items.size());
  CallOutcome outcome = guarded([&] { return store_.get(items, results, options); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    *batch.out[i] = judge_load(*batch.pages[i], results[i], batch.object_keys[i], damaged);
    failed_keys_.failed(batch.object_keys[i], *batch.out[i], clock_.now());
  }
  return outcome;
}

StatusCode PageStore::judge_load(const PageSlot& page, const ItemResult& result,
                                 const std::string& object_key, std::vector<std::string>& damaged) {
  EnvelopeFault fault = EnvelopeFault::length;
  if (result.code == StatusCode::ok) {
    const auto object = object_of(page);
    if (result.bytes == object.size()) {
      const EnvelopeVerdict verdict = verify_envelope(expectation(page), object);
      if (verdict.ok) {
        cells_.loads.add();
        cells_.load_bytes.add(object.size());
        return StatusCode::ok;
      }
      fault = verdict.fault;
    }
  } else if (result.code == StatusCode::not_found) {
    cells_.load_misses.add();
    return StatusCode::not_found;
  } else if (result.code == StatusCode::data_loss) {
    fault = EnvelopeFault::damaged_record;
  } else {
    count_failure(result.code);
    return result.code;
  }
  return judge_fault(fault, object_key, damaged);
}

StatusCode PageStore::judge_marker(const PageKey& key, std::span<const std::byte> record,
                                   const ItemResult& result, const std::string& object_key,
                                   std::vector<std::string>& damaged) {
  if (result.code == StatusCode::ok) {
    const auto written = record.first(std::min<std::size_t>(record.size(), result.bytes));
    const EnvelopeVerdict verdict = verify_marker(expectation({.key = key, .slot = {}}), written);
    return verdict.ok ? StatusCode::ok : judge_fault(verdict.fault, object_key, damaged);
  }
  if (result.code == StatusCode::data_loss) {
    return judge_fault(EnvelopeFault::damaged_record, object_key, damaged);
  }
  if (result.code == StatusCode::not_found) {
    cells_.load_misses.add();
  } else {
    count_failure(result.code);
  }
  return result.code;
}

// One call, as for the put.
CallOutcome PageStore::load_markers(std::span<const Placed> markers,
                                    std::vector<std::string>& damaged, const CallOptions& options) {
  if (markers.empty()) return {};
  std::vector<std::byte> records(markers.size() * kMarkerBytes);
  std::vector<std::span<std::byte>> buffers;
  std::vector<std::string> object_keys;
  for (std::size_t i = 0; i < markers.size(); ++i) {
    buffers.push_back(std::span(records).subspan(i * kMarkerBytes, kMarkerBytes));
    object_keys.push_back(object_key(markers[i].page));
  }
  std::vector<GetItem> items(markers.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = object_keys[i], .buffers = std::span(buffers).subspan(i, 1)};
  }
  std::vector<ItemResult> results(items.size());
  CallOutcome outcome = guarded([&] { return store_.get(items, results, options); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    *markers[i].out =
        judge_marker(markers[i].page.key, buffers[i], results[i], object_keys[i], damaged);
    failed_keys_.failed(object_keys[i], *markers[i].out, clock_.now());
  }
  return outcome;
}

StatusCode PageStore::judge_fault(EnvelopeFault fault, const std::string& object_key,
                                  std::vector<std::string>& damaged) {
  cells_.verification_failures[static_cast<std::size_t>(fault)].add();
  log_limited(LogLevel::warning, "page_not_verified", kLogInterval,
              {{"object", object_key}, {"reason", to_string(fault)}, {"meaning", meaning(fault)}});
  // What a newer version wrote is not damaged; somebody may still want it.
  if (fault != EnvelopeFault::newer_version) damaged.push_back(object_key);
  return StatusCode::data_loss;
}

bool PageStore::may_remove(const std::string& object_key, TimePoint now) {
  const MutexLock lock(removal_mutex_);
  if (now >= removal_window_ + std::chrono::seconds(1)) {
    removal_window_ = now;
    removals_in_window_ = 0;
  }
  if (removals_in_window_ >= kRemovalsPerSecondMax) return false;
  const auto known = removed_.find(object_key);
  if (known != removed_.end() && now < known->second + kRemovalPause) return false;
  if (removed_.size() >= kRemovedKeysMax) {
    std::erase_if(removed_, [&](const auto& entry) { return now >= entry.second + kRemovalPause; });
    if (removed_.size() >= kRemovedKeysMax) return false;
  }
  removed_[object_key] = now;
  ++removals_in_window_;
  return true;
}

void PageStore::remove_damaged(std::span<const std::string> object_keys,
                               const CallOptions& options) {
  const TimePoint now = clock_.now();
  std::vector<std::string_view> chosen;
  for (const std::string& key : object_keys) {
    if (may_remove(key, now)) chosen.push_back(key);
  }
  if (chosen.empty()) return;
  std::vector<ItemResult> results(chosen.size());
  // The caller waits for its pages, not for this: a slow store may leave the objects where they
  // are until somebody reads them again. Deadlines are in real time, whatever clock_ is.
  const TimePoint quick_end = SystemClock::instance().now() + kRemovalTimeMax;
  const CallOptions quick{.deadline = std::min(options.deadline, quick_end)};
  guarded([&] { return store_.remove(chosen, results, quick); }).status.ignore();
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].code != StatusCode::ok) continue;
    cells_.removals.add();
    failed_keys_.forget(chosen[i]);
  }
}

// ---- store --------------------------------------------------------------------------------------

CallOutcome PageStore::ask(std::span<const std::string_view> object_keys, std::span<ItemResult> out,
                           const CallOptions& options) {
  if (object_keys.empty()) return {};
  return guarded([&] { return store_.exists(object_keys, out, options); });
}

CallOutcome PageStore::store(std::span<const PageSlot> pages, std::span<StatusCode> out,
                             const CallOptions& options) {
  Sorted sorted;
  sort_pages(pages, out, sorted);
  return store_sorted(sorted, options);
}

CallOutcome PageStore::store(std::span<const PoolPages> pools, const CallOptions& options) {
  Sorted sorted;
  CallOutcome outcome = sort_pools(pools, sorted);
  merge(outcome, store_sorted(sorted, options));
  return outcome;
}

CallOutcome PageStore::store_sorted(const Sorted& sorted, const CallOptions& options) {
  CallOutcome outcome =
      in_batches(sorted.sides, [&](const Batch& batch) { return store_batch(batch, options); });
  merge(outcome, commit_sorted(sorted, options));
  return outcome;
}

// Pages whose absence is known.
CallOutcome PageStore::put_anchors(std::span<const Placed> anchors, const CallOptions& options) {
  return in_batches(anchors, [&](const Batch& batch) {
    std::vector<std::size_t> all(batch.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return put_missing(batch, all, options);
  });
}

CallOutcome PageStore::store_batch(const Batch& batch, const CallOptions& options) {
  const TimePoint now = clock_.now();
  std::vector<std::size_t> missing;
  std::vector<std::size_t> asked;
  std::vector<std::string_view> questions;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (absent_.contains(batch.object_keys[i], now)) {
      missing.push_back(i);
    } else {
      asked.push_back(i);
      questions.push_back(batch.object_keys[i]);
    }
  }
  std::vector<ItemResult> results(questions.size());
  CallOutcome outcome = ask(questions, results, options);
  for (std::size_t at = 0; at < asked.size(); ++at) {
    const StatusCode code = results[at].code;
    *batch.out[asked[at]] = code;
    if (code == StatusCode::ok) {
      cells_.stores_present.add();
    } else if (code == StatusCode::not_found) {
      missing.push_back(asked[at]);
    } else {
      count_failure(code);
    }
  }
  if (!missing.empty()) merge(outcome, put_missing(batch, missing, options));
  return outcome;
}

CallOutcome PageStore::put_missing(const Batch& batch, std::span<const std::size_t> missing,
                                   const CallOptions& options) {
  const std::uint64_t backup_id = next_backup_id_.fetch_add(1, std::memory_order_relaxed);
  std::vector<std::span<const std::byte>> buffers;
  std::vector<std::string> groups;
  for (const std::size_t i : missing) {
    const PageSlot& page = *batch.pages[i];
    seal_envelope(expectation(page), backup_id, object_of(page));
    buffers.push_back(object_of(page));
    groups.push_back(keys_.group(page.key));
  }
  std::vector<PutItem> items(missing.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = batch.object_keys[missing[i]],
                .buffers = std::span(buffers).subspan(i, 1),
                .group = groups[i]};
  }
  std::vector<ItemResult> results(items.size());
  const CallOptions absent{.deadline = options.deadline, .keys_absent = true};
  CallOutcome outcome = guarded([&] { return store_.put(items, results, absent); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    judge_put(items[i].key, results[i], *batch.out[missing[i]], cells_.stores,
              cells_.stores_present);
    if (results[i].code == StatusCode::ok) cells_.store_bytes.add(buffers[i].size());
  }
  return outcome;
}

void PageStore::judge_put(std::string_view object_key, const ItemResult& result, StatusCode& out,
                          Counter& written, Counter& present) {
  out = result.code;
  absent_.erase(object_key);
  if (out == StatusCode::already_exists) {
    // Somebody else was quicker; the key says that the content is the same.
    present.add();
    failed_keys_.forget(object_key);
    out = StatusCode::ok;
  } else if (out == StatusCode::ok) {
    failed_keys_.forget(object_key);
    written.add();
  } else {
    count_failure(out);
  }
}

// ---- the rest -----------------------------------------------------------------------------------

Result<std::uint64_t> PageStore::clear(const CallOptions& options) {
  std::uint64_t removed = 0;
  const CallOutcome outcome = guarded([&] {
    const Result<std::uint64_t> count = store_.remove_prefix(keys_.prefix(), options);
    if (count.ok()) removed = *count;
    return CallOutcome{.status = count.status()};
  });
  if (!outcome.status.ok()) return outcome.status;
  return removed;
}

PageStoreStats PageStore::stats() const {
  PageStoreStats stats;
  stats.queries = cells_.queries.value();
  stats.query_hits = cells_.query_hits.value();
  stats.loads = cells_.loads.value();
  stats.load_misses = cells_.load_misses.value();
  stats.load_bytes = cells_.load_bytes.value();
  stats.stores = cells_.stores.value();
  stats.stores_present = cells_.stores_present.value();
  stats.store_bytes = cells_.store_bytes.value();
  for (std::size_t i = 0; i < kEnvelopeFaultCount; ++i) {
    stats.verification_failures[i] = cells_.verification_failures[i].value();
  }
  stats.markers = cells_.markers.value();
  stats.markers_present = cells_.markers_present.value();
  stats.anchors_unconfirmed = cells_.anchors_unconfirmed.value();
  stats.unknown_pools = cells_.unknown_pools.value();
  stats.removals = cells_.removals.value();
  for (std::size_t i = 0; i < kStatusCodeCount; ++i) {
    stats.failures_by_code[i] = cells_.failures[i].value();
  }
  return stats;
}

}  // namespace hitide
