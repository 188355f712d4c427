#include "replay/replay.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/hash.h"

namespace hitide {
namespace {

// What a cache that never evicts would serve.
class Ceiling {
 public:
  explicit Ceiling(std::uint32_t page_size) : page_size_(page_size) {}

  // Leading pages of the prompt that an earlier one had.
  std::uint32_t note(std::span<const TokenId> tokens) {
    std::uint32_t known = 0;
    bool all_known = true;
    std::vector<TokenId> page(page_size_ + 2);  // behind the two halves of the page before's digest
    for (std::size_t at = 0; at + page_size_ <= tokens.size(); at += page_size_) {
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(at), page_size_, page.begin() + 2);
      const std::uint64_t digest = checksum64(std::as_bytes(std::span(page)));
      all_known = !seen_.insert(digest).second && all_known;
      if (all_known) ++known;
      page[0] = static_cast<TokenId>(digest >> 32);
      page[1] = static_cast<TokenId>(digest);
    }
    return known;
  }

 private:
  std::uint32_t page_size_;
  std::unordered_set<std::uint64_t> seen_;
};

CoreConfig core_config(const ReplayOptions& options) {
  CoreConfig config;
  config.page_size = options.page_size;
  config.device_pages = static_cast<std::uint32_t>(options.device_pages);
  config.host_pages = static_cast<std::uint32_t>(options.host_pages);
  config.page_bytes = 1;
  config.storage = options.storage_pages > 0 ? StorageState::on : StorageState::none;
  config.policy = options.policy;
  config.explanations_kept = 1;
  config.prefill_tokens_per_s = options.prefill_tokens_per_s;
  // The token behind each prompt's last page takes a page of its own while it is computed.
  if (options.definition == LruDefinition::leaf) ++config.device_pages;
  return config;
}

class Run {
 public:
  Run(const Trace& trace, const ReplayOptions& options)
      : trace_(trace),
        options_(options),
        shell_(core_config(options), options.storage_pages, options.storage_speed),
        ceiling_(options.page_size) {}

  Result<ReplayReport> all() {
    const TimePoint start = shell_.now();
    for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
      const TraceRequest& request = trace_.requests[i];
      prompt_tokens(trace_, request, tokens_);
      if (options_.definition == LruDefinition::leaf) fill_last_page();
      shell_.pass(start + request.at);
      HITIDE_ASSIGN_OR_RETURN(const std::uint64_t served, serve(request));
      const std::uint64_t ceiling =
          std::min<std::uint64_t>(ceiling_.note(tokens_),
                                  (tokens_.size() - 1) / options_.page_size) *
          options_.page_size;
      count(report_.all, request, served, ceiling);
      if (i >= trace_.requests.size() / 2) count(report_.last_half, request, served, ceiling);
      HITIDE_RETURN_IF_ERROR(shell_.core().tripped());
    }
    report_.span = trace_.requests.back().at;
    CacheStats stats;
    shell_.core().fill_stats(stats);
    report_.evicted_pages = stats.evicted_pages;
    report_.evicted_pages[static_cast<std::size_t>(Tier::storage)] =
        shell_.storage().evicted_pages();
    return report_;
  }

 private:
  // Whole pages and one token more: then every page may be kept, and every one be served.
  void fill_last_page() {
    const std::size_t over = tokens_.size() % options_.page_size;
    if (over > 0) tokens_.resize(tokens_.size() + options_.page_size - over, 0);
    tokens_.push_back(0);
  }

  static void count(ReplayShare& share, const TraceRequest& request, std::uint64_t served,
                    std::uint64_t ceiling) {
    ++share.requests;
    share.prompt_tokens += request.tokens;
    share.served_tokens += served;
    share.ceiling_tokens += std::min<std::uint64_t>(ceiling, request.tokens);
  }

  // Tokens of the prompt that some tier served.
  Result<std::uint64_t> serve(const TraceRequest& request) {
    PrefixRequest prefix;
    prefix.tokens = tokens_;
    const Result<RequestId> id = shell_.act(
        [&](CacheCore& core, TimePoint now, Plan& plan) { return core.open(prefix, now, plan); });
    if (!id.ok()) return id.status();
    shell_.wait_ready(*id);
    const Status admitted = shell_.act([&](CacheCore& core, TimePoint now, Plan& plan) {
      return core.admit(*id, now, plan).status();
    });
    std::uint64_t served = 0;
    if (admitted.ok()) {
      served = note_spans(*id, request.tokens);
      HITIDE_RETURN_IF_ERROR(shell_.act([&](CacheCore& core, TimePoint now, Plan& plan) {
        return core.commit(*id, tokens_, now, plan);
      }));
    } else {
      ++report_.refused_requests;
      report_.missed_tokens[static_cast<std::size_t>(MissReason::pool_full)] += request.tokens;
    }
    shell_.act([&](CacheCore& core, TimePoint now, Plan& plan) {
      core.release(*id, now, plan);
      return 0;
    });
    shell_.pass(shell_.now());
    return served;
  }

  // Spans behind the `tokens` of the trace's prompt are of what fill_last_page() added.
  std::uint64_t note_spans(RequestId id, std::uint32_t tokens) {
    const Explanation* explanation = shell_.core().explain(shell_.core().explanation_id(id));
    if (explanation == nullptr) return 0;
    std::uint64_t served = 0;
    for (const ServedSpan& span : explanation->served) {
      const auto tier = static_cast<std::size_t>(span.tier);
      const std::uint32_t length = std::min(span.end, tokens) - std::min(span.begin, tokens);
      report_.served_tokens[tier] += length;
      report_.served_pages[tier] += (span.end - span.begin) / options_.page_size;
      served += length;
    }
    for (const MissedSpan& span : explanation->missed) {
      report_.missed_tokens[static_cast<std::size_t>(span.reason)] +=
          std::min(span.end, tokens) - std::min(span.begin, tokens);
    }
    report_.storage_wait += explanation->storage_wait;
    return served;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  SimulatedShell shell_;
  Ceiling ceiling_;
  ReplayReport report_;
  std::vector<TokenId> tokens_;
};

}  // namespace

Result<ReplayReport> replay(const Trace& trace, const ReplayOptions& options) {
  return Run(trace, options).all();
}

}  // namespace hitide
