// PageStore: which prefixes can be restored, and the commit of the anchor's pages.
#include <algorithm>

#include <fmt/format.h>

#include "storage/marker.h"
#include "storage/page_store.h"
#include "storage/page_store_sorted.h"
#include "storage/store_call.h"

namespace hitide {
namespace {

bool is_trailing(const PoolSpec& pool) {
  return pool.hit_policy.kind == HitPolicy::Kind::trailing_pages;
}

// Narrows `codes` to the prefixes that a pool allows. answers: [n], of the pool's objects.
// window: how many pages at the end of a prefix it needs; 0: all of them.
void apply_policy(std::uint64_t window, std::uint64_t first_page,
                  std::span<const ItemResult> answers, std::span<StatusCode> codes) {
  std::uint64_t run = 0;                   // pages in a row that are there, ending here
  StatusCode in_the_way = StatusCode::ok;  // what the page before the run answered
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].code == StatusCode::ok) {
      ++run;
    } else {
      run = 0;
      if (window > 0 || in_the_way == StatusCode::ok) in_the_way = answers[i].code;
    }
    const std::uint64_t needed = window > 0 ? std::min(first_page + i + 1, window) : i + 1;
    if (run >= needed || codes[i] != StatusCode::ok) continue;
    // Nothing that was asked for is in the way where the window begins before all of it.
    codes[i] = in_the_way != StatusCode::ok ? in_the_way : StatusCode::not_found;
  }
}

}  // namespace

std::uint32_t PrefixStops::longest() const {
  for (std::size_t i = codes.size(); i > 0; --i) {
    if (codes[i - 1] == StatusCode::ok) return static_cast<std::uint32_t>(i);
  }
  return 0;
}

// ---- exists -------------------------------------------------------------------------------------

// One call for all keys but those that could not be loaded lately, which answer so again.
CallOutcome PageStore::ask_unless_failed(std::span<const std::string> object_keys,
                                         std::span<ItemResult> out, const CallOptions& options) {
  TimePoint now = clock_.now();
  std::vector<std::string_view> questions;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < object_keys.size(); ++i) {
    if (const std::optional<StatusCode> code = failed_keys_.why(object_keys[i], now)) {
      out[i] = {.code = *code};
    } else {
      questions.push_back(object_keys[i]);
      places.push_back(i);
    }
  }
  std::vector<ItemResult> results(questions.size());
  CallOutcome outcome = ask(questions, results, options);
  now = clock_.now();
  for (std::size_t at = 0; at < results.size(); ++at) {
    out[places[at]] = results[at];
    if (results[at].code == StatusCode::ok) {
      failed_keys_.seen(questions[at], now);
    } else if (results[at].code == StatusCode::not_found) {
      absent_.insert(questions[at], now);
    } else {
      count_failure(results[at].code);
    }
  }
  return outcome;
}

CallOutcome PageStore::exists_prefix(std::span<const PageKey> keys, PrefixStops& out,
                                     const CallOptions& options, std::uint32_t first_page) {
  const bool unmarked = !anchor_has_bytes() && !has_markers();
  out.anchor_pages = unmarked ? static_cast<std::uint32_t>(keys.size()) : 0;
  out.codes.assign(keys.size(), asked_.empty() ? StatusCode::not_found : StatusCode::ok);
  cells_.queries.add(keys.size());
  if (asked_.empty() || keys.empty()) return {};
  std::vector<std::string> object_keys;
  object_keys.reserve(asked_.size() * keys.size());
  for (const std::size_t pool : asked_) {
    for (const PageKey& key : keys) {
      object_keys.push_back(keys_.object_key(key, pools_[pool].name));
    }
  }
  std::vector<ItemResult> results(object_keys.size());
  CallOutcome outcome = ask_unless_failed(object_keys, results, options);
  for (std::size_t at = 0; at < asked_.size(); ++at) {
    const auto answers = std::span(results).subspan(at * keys.size(), keys.size());
    const bool is_anchor = asked_[at] == 0;
    if (is_anchor) {
      const auto gap = std::find_if(answers.begin(), answers.end(), [](const ItemResult& answer) {
        return answer.code != StatusCode::ok;
      });
      out.anchor_pages = static_cast<std::uint32_t>(gap - answers.begin());
    }
    const PoolSpec& pool = pools_[asked_[at]];
    const bool trailing = !is_anchor && is_trailing(pool);
    apply_policy(trailing ? pool.hit_policy.trailing_pages : 0, first_page, answers, out.codes);
  }
  cells_.query_hits.add(out.longest());
  return outcome;
}

// ---- commit -------------------------------------------------------------------------------------

CallOutcome PageStore::commit(const PoolPages& anchor, std::span<const PoolPages> sides,
                              const CallOptions& options) {
  if (anchor.pool != pools_.front().name) {
    return refuse_pool(anchor, fmt::format("'{}' is not the anchor, which is {}", anchor.pool,
                                           pools_.front().name));
  }
  Sorted sorted;
  CallOutcome outcome = sort_pools({&anchor, 1}, sorted);
  for (const PoolPages& side : sides) {
    const std::size_t pool = find_pool(side.pool);
    if (pool == pools_.size()) {
      merge(outcome, refuse_unknown_pool(side));
      continue;
    }
    sorted.named[pool].insert(side.keys.begin(), side.keys.end());
  }
  merge(outcome, commit_sorted(sorted, options));
  return outcome;
}

// The anchor's own object first, then the side objects that must be there.
void PageStore::add_questions(const Placed& anchor, const Sorted& sorted,
                              std::vector<std::string>& object_keys) const {
  object_keys.push_back(object_key(anchor.page));
  for (const std::size_t pool : asked_) {
    if (pool == 0) continue;
    if (is_trailing(pools_[pool]) && !sorted.named[pool].contains(anchor.page.key)) continue;
    object_keys.push_back(keys_.object_key(anchor.page.key, pools_[pool].name));
  }
}

CallOutcome PageStore::commit_sorted(const Sorted& sorted, const CallOptions& options) {
  if (sorted.anchors.empty()) return {};
  const TimePoint now = clock_.now();
  std::vector<Placed> absent;
  std::vector<const Placed*> asked;
  std::vector<std::string> object_keys;
  std::vector<std::size_t> ends;  // [asked]
  for (const Placed& anchor : sorted.anchors) {
    const std::size_t begin = object_keys.size();
    add_questions(anchor, sorted, object_keys);
    // Side objects must be seen to be there; the absence of the anchor's own may be known.
    if (object_keys.size() == begin + 1 && absent_.contains(object_keys.back(), now)) {
      object_keys.pop_back();
      absent.push_back(anchor);
      continue;
    }
    asked.push_back(&anchor);
    ends.push_back(object_keys.size());
  }
  std::vector<ItemResult> results(object_keys.size());
  CallOutcome outcome = ask(views(object_keys), results, options);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto answers = std::span(results).subspan(begin, ends[i] - begin);
    if (judge_confirmation(*asked[i], answers)) absent.push_back(*asked[i]);
    begin = ends[i];
  }
  if (absent.empty()) return outcome;
  merge(outcome, has_markers() ? put_markers(absent, options) : put_anchors(absent, options));
  return outcome;
}

// True where the page is to be written; else it has its answer.
bool PageStore::judge_confirmation(const Placed& anchor, std::span<const ItemResult> results) {
  StatusCode& out = *anchor.out;
  for (const ItemResult& side : results.subspan(1)) {
    if (side.code == StatusCode::ok) continue;
    out = side.code;
    if (out == StatusCode::not_found) {
      cells_.anchors_unconfirmed.add();
    } else {
      count_failure(out);
    }
    return false;
  }
  out = results.front().code;
  if (out == StatusCode::not_found) return true;
  if (out == StatusCode::ok) {
    (has_markers() ? cells_.markers_present : cells_.stores_present).add();
  } else {
    count_failure(out);
  }
  return false;
}

// One put, however many there are: they are small, and a call a marker is what makes them dear.
CallOutcome PageStore::put_markers(std::span<const Placed> anchors, const CallOptions& options) {
  std::vector<std::byte> records(anchors.size() * kMarkerBytes);
  std::vector<std::span<const std::byte>> buffers;
  std::vector<std::string> object_keys;
  std::vector<std::string> groups;
  for (std::size_t i = 0; i < anchors.size(); ++i) {
    const PageSlot& page = anchors[i].page;
    const auto record = std::span(records).subspan(i * kMarkerBytes, kMarkerBytes);
    write_marker(expectation(page), record);
    buffers.emplace_back(record);
    object_keys.push_back(object_key(page));
    groups.push_back(keys_.group(page.key));
  }
  std::vector<PutItem> items(anchors.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {
        .key = object_keys[i], .buffers = std::span(buffers).subspan(i, 1), .group = groups[i]};
  }
  std::vector<ItemResult> results(items.size());
  const CallOptions absent{.deadline = options.deadline, .keys_absent = true};
  CallOutcome outcome = guarded([&] { return store_.put(items, results, absent); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    judge_put(items[i].key, results[i], *anchors[i].out, cells_.markers, cells_.markers_present);
  }
  return outcome;
}

}  // namespace hitide
