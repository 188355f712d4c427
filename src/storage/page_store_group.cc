// PageStore over several pools: side pools, anchors, markers, hit policies.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include <fmt/format.h>

#include "base/log.h"
#include "storage/marker.h"
#include "storage/page_store.h"
#include "storage/store_call.h"

namespace hitide {
namespace {

constexpr Duration kLogInterval = std::chrono::seconds(10);

bool is_trailing(const PoolSpec& pool) {
  return pool.hit_policy.kind == HitPolicy::Kind::trailing_pages;
}

// Narrows `stops` to the prefixes that a pool allows. present: [n].
void apply_policy(const PoolSpec& pool, bool anchor, const std::vector<bool>& present,
                  std::vector<bool>& stops) {
  std::uint32_t run = 0;  // pages in a row that are there, ending here
  for (std::size_t i = 0; i < present.size(); ++i) {
    run = present[i] ? run + 1 : 0;
    std::uint32_t needed = static_cast<std::uint32_t>(i + 1);
    if (!anchor && is_trailing(pool)) needed = std::min(needed, pool.hit_policy.trailing_pages);
    if (run < needed) stops[i] = false;
  }
}

}  // namespace

struct PageStore::Anchor {
  PageKey key;
  std::span<std::byte> slot;  // empty where logical
  StatusCode* out = nullptr;
};

struct PageStore::Sorted {
  std::vector<PageSlot> sides;
  std::vector<StatusCode*> side_out;
  std::vector<Anchor> anchors;
  std::vector<std::unordered_set<PageKey>> named;  // [pools]; what the call names of side pools
};

std::uint32_t PrefixStops::longest() const {
  for (std::size_t i = stops.size(); i > 0; --i) {
    if (stops[i - 1]) return static_cast<std::uint32_t>(i);
  }
  return 0;
}

EnvelopeExpectation PageStore::marker_expectation(const PageKey& key) const {
  return {.identity = identity_,
          .key = key,
          .pool = pools_.front().name,
          .part = part_,
          .payload_bytes = 0};
}

// ---- exists -------------------------------------------------------------------------------------

CallOutcome PageStore::exists_prefix(std::span<const PageKey> keys, PrefixStops& out,
                                     const CallOptions& options) {
  out.anchor_pages = 0;
  out.stops.assign(keys.size(), !asked_.empty());
  cells_.queries.add(keys.size());
  if (asked_.empty() || keys.empty()) return {};
  std::vector<std::string> object_keys;
  for (const std::size_t pool : asked_) {
    for (const PageKey& key : keys) {
      object_keys.push_back(keys_.object_key(key, pools_[pool].name));
    }
  }
  std::vector<ItemResult> results(object_keys.size());
  CallOutcome outcome =
      guarded([&] { return store_.exists(views(object_keys), results, options); });
  for (std::size_t at = 0; at < asked_.size(); ++at) {
    const auto answers = std::span(results).subspan(at * keys.size(), keys.size());
    std::vector<bool> present(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      present[i] = answers[i].code == StatusCode::ok;
      if (!present[i] && answers[i].code != StatusCode::not_found) cells_.failures.add();
    }
    const bool anchor = asked_[at] == 0;
    if (anchor) {
      const auto gap = std::find(present.begin(), present.end(), false);
      out.anchor_pages = static_cast<std::uint32_t>(gap - present.begin());
    }
    apply_policy(pools_[asked_[at]], anchor, present, out.stops);
  }
  cells_.query_hits.add(out.longest());
  return outcome;
}

// ---- several pools ------------------------------------------------------------------------------

CallOutcome PageStore::sort_pools(std::span<const PoolPages> pools, Sorted& sorted) {
  CallOutcome outcome;
  sorted.named.resize(pools_.size());
  for (const PoolPages& pages : pools) {
    const auto known = std::find_if(pools_.begin(), pools_.end(),
                                    [&](const PoolSpec& pool) { return pool.name == pages.pool; });
    const auto index = static_cast<std::uint32_t>(known - pools_.begin());
    const bool is_anchor = index == 0 && known != pools_.end();
    const bool without_slots = is_anchor && logical_anchor() && pages.slots.empty();
    if (known == pools_.end() || pages.out.size() != pages.keys.size() ||
        (!without_slots && pages.slots.size() != pages.keys.size())) {
      std::fill(pages.out.begin(), pages.out.end(), StatusCode::invalid_argument);
      std::vector<std::string_view> names;
      for (const PoolSpec& pool : pools_) names.push_back(pool.name);
      const std::string what =
          known == pools_.end()
              ? fmt::format("no pool '{}'; known: {}", pages.pool, fmt::join(names, ", "))
              : fmt::format("pool {}: {} keys, {} slots, {} answers", pages.pool, pages.keys.size(),
                            pages.slots.size(), pages.out.size());
      if (known == pools_.end()) cells_.unknown_pools.add();
      cells_.failures.add(pages.keys.size());
      log_limited(LogLevel::error, "unknown_pool", kLogInterval, {{"reason", what}});
      merge(outcome, {.status = Status(StatusCode::invalid_argument, what)});
      continue;
    }
    for (std::size_t i = 0; i < pages.keys.size(); ++i) {
      const auto slot = without_slots ? std::span<std::byte>() : pages.slots[i];
      if (is_anchor) {
        sorted.anchors.push_back({.key = pages.keys[i], .slot = slot, .out = &pages.out[i]});
        continue;
      }
      sorted.sides.push_back({.key = pages.keys[i], .slot = slot, .pool = index});
      sorted.side_out.push_back(&pages.out[i]);
      sorted.named[index].insert(pages.keys[i]);
    }
  }
  return outcome;
}

CallOutcome PageStore::store(std::span<const PoolPages> pools, const CallOptions& options) {
  Sorted sorted;
  CallOutcome outcome = sort_pools(pools, sorted);
  std::vector<StatusCode> codes(sorted.sides.size(), StatusCode::internal);
  merge(outcome, store_data(sorted.sides, codes, options));
  for (std::size_t i = 0; i < codes.size(); ++i) *sorted.side_out[i] = codes[i];
  merge(outcome, commit(sorted, options));
  return outcome;
}

CallOutcome PageStore::load(std::span<const PoolPages> pools, const CallOptions& options) {
  Sorted sorted;
  CallOutcome outcome = sort_pools(pools, sorted);
  std::vector<PageSlot> all = std::move(sorted.sides);
  std::vector<StatusCode*> out = std::move(sorted.side_out);
  for (const Anchor& anchor : sorted.anchors) {
    all.push_back({.key = anchor.key, .slot = anchor.slot, .pool = 0});
    out.push_back(anchor.out);
  }
  std::vector<StatusCode> codes(all.size(), StatusCode::internal);
  merge(outcome, load(all, codes, options));
  for (std::size_t i = 0; i < codes.size(); ++i) *out[i] = codes[i];
  return outcome;
}

// ---- commit -------------------------------------------------------------------------------------

// The anchor's own object first, then the side objects that must be there.
void PageStore::add_questions(const Anchor& anchor, const Sorted& sorted,
                              std::vector<std::string>& object_keys) const {
  object_keys.push_back(keys_.object_key(anchor.key, pools_.front().name));
  for (const std::size_t pool : asked_) {
    if (pool == 0) continue;
    const bool named = pool < sorted.named.size() && sorted.named[pool].contains(anchor.key);
    if (is_trailing(pools_[pool]) && !named) continue;
    object_keys.push_back(keys_.object_key(anchor.key, pools_[pool].name));
  }
}

CallOutcome PageStore::commit(const Sorted& sorted, const CallOptions& options) {
  if (sorted.anchors.empty()) return {};
  std::vector<std::string> object_keys;
  std::vector<std::size_t> ends;  // [anchors]
  for (const Anchor& anchor : sorted.anchors) {
    add_questions(anchor, sorted, object_keys);
    ends.push_back(object_keys.size());
  }
  std::vector<ItemResult> results(object_keys.size());
  CallOutcome outcome =
      guarded([&] { return store_.exists(views(object_keys), results, options); });
  std::vector<const Anchor*> absent;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto answers = std::span(results).subspan(begin, ends[i] - begin);
    if (judge_confirmation(sorted.anchors[i], answers)) absent.push_back(&sorted.anchors[i]);
    begin = ends[i];
  }
  if (absent.empty()) return outcome;
  merge(outcome, logical_anchor() ? put_markers(absent, options) : put_anchors(absent, options));
  return outcome;
}

// True where the page is to be written; else it has its answer.
bool PageStore::judge_confirmation(const Anchor& anchor, std::span<const ItemResult> results) {
  for (const ItemResult& side : results.subspan(1)) {
    if (side.code == StatusCode::ok) continue;
    *anchor.out = side.code;
    cells_.anchors_unconfirmed.add();
    return false;
  }
  *anchor.out = results.front().code;
  if (*anchor.out == StatusCode::not_found) return true;
  if (*anchor.out != StatusCode::ok) {
    cells_.failures.add();
  } else if (logical_anchor()) {
    cells_.markers_present.add();
  } else {
    cells_.stores_present.add();
  }
  return false;
}

CallOutcome PageStore::put_anchors(std::span<const Anchor* const> anchors,
                                   const CallOptions& options) {
  std::vector<PageSlot> pages;
  for (const Anchor* anchor : anchors) {
    pages.push_back({.key = anchor->key, .slot = anchor->slot, .pool = 0});
  }
  std::vector<StatusCode> codes(pages.size(), StatusCode::internal);
  CallOutcome outcome = put_absent(pages, codes, options);
  for (std::size_t i = 0; i < codes.size(); ++i) *anchors[i]->out = codes[i];
  return outcome;
}

// ---- markers ------------------------------------------------------------------------------------

// One put, however many there are: they are small, and a call a marker is what makes them dear.
CallOutcome PageStore::put_markers(std::span<const Anchor* const> anchors,
                                   const CallOptions& options) {
  std::vector<std::byte> records(anchors.size() * kMarkerBytes);
  std::vector<std::span<const std::byte>> buffers;
  std::vector<std::string> object_keys;
  std::vector<std::string> groups;
  for (std::size_t i = 0; i < anchors.size(); ++i) {
    const auto record = std::span(records).subspan(i * kMarkerBytes, kMarkerBytes);
    write_marker(marker_expectation(anchors[i]->key), record);
    buffers.emplace_back(record);
    object_keys.push_back(keys_.object_key(anchors[i]->key, pools_.front().name));
    groups.push_back(keys_.group(anchors[i]->key));
  }
  std::vector<PutItem> items(anchors.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {
        .key = object_keys[i], .buffers = std::span(buffers).subspan(i, 1), .group = groups[i]};
  }
  std::vector<ItemResult> results(items.size());
  CallOutcome outcome = guarded([&] { return store_.put(items, results, options); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    StatusCode& out = *anchors[i]->out;
    out = results[i].code;
    if (out == StatusCode::already_exists) {
      cells_.markers_present.add();
      out = StatusCode::ok;
    } else if (out == StatusCode::ok) {
      cells_.markers.add();
    } else {
      cells_.failures.add();
    }
  }
  return outcome;
}

CallOutcome PageStore::store_markers(std::span<const PageSlot> pages, std::span<StatusCode> out,
                                     const CallOptions& options) {
  Sorted sorted;
  sorted.named.resize(pools_.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (is_marker(pages[i])) {
      sorted.anchors.push_back({.key = pages[i].key, .slot = {}, .out = &out[i]});
    } else if (pages[i].pool < pools_.size()) {
      sorted.named[pages[i].pool].insert(pages[i].key);
    }
  }
  return commit(sorted, options);
}

CallOutcome PageStore::load_markers(std::span<const PageSlot> pages, std::span<StatusCode> out,
                                    std::vector<std::string>& damaged, const CallOptions& options) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (is_marker(pages[i])) places.push_back(i);
  }
  if (places.empty()) return {};
  std::vector<std::byte> records(places.size() * kMarkerBytes);
  std::vector<std::span<std::byte>> buffers;
  std::vector<std::string> object_keys;
  for (std::size_t i = 0; i < places.size(); ++i) {
    buffers.push_back(std::span(records).subspan(i * kMarkerBytes, kMarkerBytes));
    object_keys.push_back(keys_.object_key(pages[places[i]].key, pools_.front().name));
  }
  std::vector<GetItem> items(places.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = object_keys[i], .buffers = std::span(buffers).subspan(i, 1)};
  }
  std::vector<ItemResult> results(items.size());
  CallOutcome outcome = guarded([&] { return store_.get(items, results, options); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    StatusCode& code = out[places[i]];
    code = results[i].code;
    EnvelopeVerdict verdict{.ok = false, .fault = EnvelopeFault::damaged_record};
    if (code == StatusCode::ok) {
      const auto record = std::span<const std::byte>(buffers[i]);
      verdict = verify_marker(marker_expectation(pages[places[i]].key),
                              record.first(std::min<std::size_t>(record.size(), results[i].bytes)));
      if (verdict.ok) continue;
    } else if (code == StatusCode::not_found) {
      cells_.load_misses.add();
      continue;
    } else if (code != StatusCode::data_loss) {
      cells_.failures.add();
      continue;
    }
    code = judge_fault(verdict.fault, object_keys[i], damaged);
  }
  return outcome;
}

}  // namespace hitide
