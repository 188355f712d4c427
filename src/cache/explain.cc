// Which tier served what, and why the rest was not served.
#include <algorithm>

#include "cache/cache_core.h"

namespace hitide {
namespace {

constexpr std::uint32_t kNamespacesLooked = 64;

void append_served(std::vector<ServedSpan>& spans, Tier tier, std::uint32_t begin,
                   std::uint32_t end) {
  if (begin >= end) return;
  if (!spans.empty() && spans.back().tier == tier && spans.back().end == begin) {
    spans.back().end = end;
  } else {
    spans.push_back({tier, begin, end});
  }
}

void append_missed(std::vector<MissedSpan>& spans, MissReason reason, std::uint32_t begin,
                   std::uint32_t end) {
  if (begin >= end) return;
  if (!spans.empty() && spans.back().reason == reason && spans.back().end == begin) {
    spans.back().end = end;
  } else {
    spans.push_back({reason, begin, end});
  }
}

// The reason noted for a page; pages behind a noted one failed with it.
MissReason noted_reason(const std::vector<PageReason>& reasons, std::uint32_t page) {
  const PageReason* best = nullptr;
  for (const PageReason& reason : reasons) {
    if (reason.begin > page) continue;
    const bool covers = page < reason.end;
    const bool best_covers = best != nullptr && page < best->end;
    if (best == nullptr || (covers && !best_covers) ||
        (covers == best_covers && reason.begin > best->begin)) {
      best = &reason;
    }
  }
  return best == nullptr ? MissReason::unknown : best->reason;
}

}  // namespace

void CacheCore::explain_running(Request& request, TimePoint now) {
  Explanation& out = request.explanation;
  const std::uint32_t page_size = config_.page_size;
  const std::uint32_t prompt = request.prompt->token_count();
  const bool admitted = request.state == PrefixState::running;
  const std::uint32_t served = admitted ? request.hit_pages : 0;
  const std::uint32_t from_device = std::min(request.device_hit_pages, served);
  out.served.clear();
  out.missed.clear();
  append_served(out.served, Tier::device, 0, from_device * page_size);
  for (std::uint32_t page = from_device; page < served; ++page) {
    const bool fetched = page >= request.fetched_begin && page < request.fetched_end;
    append_served(out.served, fetched ? Tier::storage : Tier::host, page * page_size,
                  (page + 1) * page_size);
  }
  const std::uint32_t usable = request.prompt->usable_pages();
  if (!admitted) {
    append_missed(out.missed, MissReason::cancelled, 0, prompt);
  } else {
    explain_missing_page_run(request, served, usable, out.missed);
    const std::uint32_t whole = request.prompt->page_count() * page_size;
    append_missed(out.missed, MissReason::last_token, usable * page_size, whole);
    append_missed(out.missed, MissReason::partial_page, whole, prompt);
  }
  for (const ServedSpan& span : out.served) {
    stats_.served_tokens[static_cast<std::size_t>(span.tier)] += span.end - span.begin;
  }
  for (const MissedSpan& span : out.missed) {
    stats_.missed_tokens[static_cast<std::size_t>(span.reason)] += span.end - span.begin;
  }
  for (const LoadDecision& decision : out.decisions) {
    auto& counters = decision.loads ? stats_.spans_loaded : stats_.spans_recomputed;
    ++counters[static_cast<std::size_t>(decision.tier)];
  }
  if (admitted) out.load_time = now - request.admitted;
  if (served > 0 && speed_.known()) {
    const Duration saved = speed_.predict(served * page_size) - out.storage_wait - out.load_time;
    out.saved = std::max(saved, Duration::zero());
  }
  out.complete = true;
}

void CacheCore::explain_missing_page_run(const Request& request, std::uint32_t begin,
                                         std::uint32_t end, std::vector<MissedSpan>& out) const {
  if (begin >= end) return;
  if (!tripped_.ok()) {
    append_missed(out, MissReason::cache_off, begin * config_.page_size, end * config_.page_size);
    return;
  }
  const NodeIndex own_root = tree_.find_root(request.prompt->space);
  const std::uint32_t elsewhere =
      begin > 0 ? 0 : tree_.match_elsewhere(own_root, request.prompt->tokens, kNamespacesLooked);
  for (std::uint32_t page = begin; page < end; ++page) {
    const MissReason reason = refine(request, page, noted_reason(request.reasons, page), elsewhere);
    append_missed(out, reason, page * config_.page_size, (page + 1) * config_.page_size);
  }
}

// A page that no tier brought: is it known why none has it?
MissReason CacheCore::refine(const Request& request, std::uint32_t page, MissReason reason,
                             std::uint32_t elsewhere_pages) const {
  switch (reason) {
    case MissReason::never_seen:
    case MissReason::below_threshold:
    case MissReason::rate_limited:
    case MissReason::storage_miss:
      break;
    default:
      return reason;
  }
  if (page < elsewhere_pages) return MissReason::other_namespace;
  const std::optional<Tier> left = ghost_.find(request.prompt->keys[page]);
  if (!left) return reason;
  if (*left == Tier::device) return MissReason::evicted_device;
  // What was not asked for may well be in storage.
  const bool asked = reason != MissReason::below_threshold && reason != MissReason::rate_limited;
  return asked ? MissReason::evicted_host : reason;
}

void CacheCore::keep_explanation(Request& request) {
  if (config_.explanations_kept == 0) return;
  if (explanations_.size() >= config_.explanations_kept) explanations_.pop_front();
  explanations_.push_back(std::move(request.explanation));
}

}  // namespace hitide
