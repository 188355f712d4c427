#include "server/metrics_page.h"

#include <array>

#include "base/metrics.h"

namespace hitide {
namespace {

std::string tier_label(int tier) {
  return MetricsText::label("tier", to_string(static_cast<Tier>(tier)));
}

double as_double(std::uint64_t value) { return static_cast<double>(value); }

void append_pools(MetricsText& text, const CacheStats& stats) {
  const std::pair<const char*, const PoolStats*> pools[] = {{"device", &stats.device},
                                                            {"host", &stats.host}};
  for (const auto& [tier, pool] : pools) {
    const std::string label = MetricsText::label("tier", tier);
    text.gauge("hitide_pages", "Pages of a tier", as_double(pool->pages_total), label);
  }
  for (const auto& [tier, pool] : pools) {
    const std::pair<const char*, std::uint64_t> states[] = {{"free", pool->pages_free},
                                                            {"evictable", pool->pages_evictable},
                                                            {"pinned", pool->pages_pinned},
                                                            {"in_flight", pool->pages_in_flight}};
    for (const auto& [state, pages] : states) {
      text.gauge("hitide_pages_by_state", "Pages of a tier by what they are used for",
                 as_double(pages),
                 MetricsText::label("tier", tier) + "," + MetricsText::label("state", state));
    }
  }
  text.gauge("hitide_sequences", "Sequences of the device", as_double(stats.sequences_total));
  text.gauge("hitide_sequences_free", "Sequences of the device that are free",
             as_double(stats.sequences_free));
}

void append_cache(MetricsText& text, const CacheStats& stats) {
  text.counter("hitide_requests_total", "Requests that the cache has seen",
               as_double(stats.requests));
  text.counter("hitide_prompt_tokens_total", "Prompt tokens of these requests",
               as_double(stats.prompt_tokens));
  for (int tier = 0; tier < kTierCount; ++tier) {
    text.counter("hitide_served_tokens_total", "Prompt tokens served, by tier",
                 as_double(stats.served_tokens[std::size_t(tier)]), tier_label(tier));
  }
  for (int reason = 0; reason < kMissReasonCount; ++reason) {
    text.counter("hitide_missed_tokens_total", "Prompt tokens computed, by reason",
                 as_double(stats.missed_tokens[std::size_t(reason)]),
                 MetricsText::label("reason", to_string(static_cast<MissReason>(reason))));
  }
  for (const Tier tier : {Tier::device, Tier::host}) {
    text.counter("hitide_evicted_pages_total", "Pages evicted, by tier",
                 as_double(stats.evicted_pages[std::size_t(tier)]),
                 MetricsText::label("tier", to_string(tier)));
  }
  const std::string host = MetricsText::label("tier", "host");
  const std::string storage = MetricsText::label("tier", "storage");
  text.counter("hitide_backed_up_pages_total", "Pages copied down, by the tier they went to",
               as_double(stats.backed_up_pages_host), host);
  text.counter("hitide_backed_up_pages_total", "Pages copied down, by the tier they went to",
               as_double(stats.backed_up_pages_storage), storage);
  text.counter("hitide_backup_dropped_pages_total",
               "Pages that could not be copied down, each time it was tried",
               as_double(stats.backup_dropped_pages_host), host);
  text.counter("hitide_backup_dropped_pages_total",
               "Pages that could not be copied down, each time it was tried",
               as_double(stats.backup_dropped_pages_storage), storage);
  text.counter("hitide_loaded_back_pages_total", "Pages copied from host to device",
               as_double(stats.loaded_back_pages));
  text.counter("hitide_prefetched_pages_total", "Pages read from storage",
               as_double(stats.prefetched_pages));
  text.counter("hitide_prefetch_queries_total", "Questions to storage",
               as_double(stats.prefetch_queries));
  text.counter("hitide_prefetch_retries_total", "Questions to storage that were asked again",
               as_double(stats.prefetch_retries));
  text.counter("hitide_backup_retries_total", "Writes to storage that were tried again",
               as_double(stats.backup_retries));
  text.counter("hitide_late_completions_dropped_total",
               "Completions for pages that had been given to others",
               as_double(stats.late_completions_dropped));
  text.counter("hitide_verification_failures_total", "Pages from storage that did not verify",
               as_double(stats.verification_failures));
  text.counter("hitide_bypass_trips_total", "Times a broken invariant turned the cache off",
               as_double(stats.bypass_trips));
}

// What load-or-recompute is decided from, and how often it was decided how.
void append_cost_model(MetricsText& text, const CacheStats& stats) {
  constexpr std::array kTiers = {Tier::host, Tier::storage};
  const auto at = [](Tier tier) { return static_cast<std::size_t>(tier); };
  const auto label = [](Tier tier) { return MetricsText::label("tier", to_string(tier)); };
  // All samples of a name stand together.
  for (const Tier tier : kTiers) {
    const auto decided = [&](const char* decision, std::uint64_t spans) {
      text.counter("hitide_load_decisions_total", "Spans by where they were and what was cheaper",
                   as_double(spans), label(tier) + "," + MetricsText::label("decision", decision));
    };
    decided("load", stats.spans_loaded[at(tier)]);
    decided("recompute", stats.spans_recomputed[at(tier)]);
  }
  for (const Tier tier : kTiers) {
    text.gauge("hitide_load_bytes_per_second", "Measured speed of loads from a tier; 0: not yet",
               stats.load_bytes_per_s[at(tier)], label(tier));
  }
  for (const Tier tier : kTiers) {
    text.gauge("hitide_load_latency_seconds", "Measured time of a load before its first byte",
               stats.load_latency_s[at(tier)], label(tier));
  }
  text.gauge("hitide_prefill_tokens_per_second", "Measured or given speed of prefill; 0: not known",
             stats.prefill_tokens_per_s);
}

void append_storage(MetricsText& text, const CacheStats& stats) {
  const std::string backend = MetricsText::label("backend", stats.storage_backend);
  const StoreStats& store = stats.storage;
  text.gauge("hitide_store_up", "1 when the storage tier is attached and its calls do not fail",
             stats.storage_status == StorageStatus::on ? 1 : 0, backend);
  text.gauge("hitide_store_objects", "Objects in the store", as_double(store.objects), backend);
  text.gauge("hitide_store_bytes", "Bytes in the store", as_double(store.bytes_used), backend);
  text.gauge("hitide_store_bytes_limit", "Bytes that the store may use",
             as_double(store.bytes_limit), backend);
  text.counter("hitide_store_gets_total", "Objects asked for", as_double(store.gets), backend);
  text.counter("hitide_store_get_misses_total", "Objects asked for that were not there",
               as_double(store.get_misses), backend);
  text.counter("hitide_store_get_bytes_total", "Bytes read", as_double(store.get_bytes), backend);
  text.counter("hitide_store_puts_total", "Objects offered", as_double(store.puts), backend);
  text.counter("hitide_store_puts_existing_total", "Objects offered that were there already",
               as_double(store.puts_existing), backend);
  text.counter("hitide_store_put_bytes_total", "Bytes written", as_double(store.put_bytes),
               backend);
  text.counter("hitide_store_evicted_objects_total", "Objects evicted from the store",
               as_double(store.evicted_objects), backend);
  text.counter("hitide_store_failures_total", "Calls to the store, or objects of them, that failed",
               as_double(store.failures), backend);
  text.counter("hitide_store_outages_total", "Times that calls were refused, as too many failed",
               as_double(store.outages), backend);
  text.counter("hitide_store_refused_total", "Calls that were refused so", as_double(store.refused),
               backend);
}

}  // namespace

void HttpCounts::count(const std::string& route, int status) {
  const MutexLock lock(mutex_);
  ++counts_[{route, status}];
}

std::map<std::pair<std::string, int>, std::uint64_t> HttpCounts::values() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::string metrics_page(const Engine& engine, const HttpCounts& http, const ServerGauges& gauges,
                         const RequestMetrics& requests, const std::string& model_name) {
  MetricsText text;
  for (const auto& [key, count] : http.values()) {
    text.counter("hitide_http_requests_total", "Answers by route and status", as_double(count),
                 MetricsText::label("route", key.first) + "," +
                     MetricsText::label("status", std::to_string(key.second)));
  }
  text.gauge("hitide_requests_in_flight", "Generations computed or waiting",
             gauges.requests_in_flight);
  text.gauge("hitide_requests_max", "Most of them; further ones are answered with 429",
             gauges.requests_max);
  if (engine.info().cache_on) {
    const CacheStats stats = engine.cache_stats();
    append_cache(text, stats);
    append_cost_model(text, stats);
    append_pools(text, stats);
    append_storage(text, stats);
  }
  engine.append_metrics(text);
  append_sglang_metrics(text, engine, requests, model_name);
  return std::move(text).text();
}

}  // namespace hitide
