#include "server/sglang_metrics.h"

#include <string>
#include <utility>

#include "base/clock.h"

namespace hitide {
namespace {

double as_double(std::uint64_t value) { return static_cast<double>(value); }

// One cache: its pools and the ways between them, in tokens.
void append_cache(MetricsText& text, const EngineInfo& info, const CacheStats& stats,
                  const std::string& model) {
  const auto tokens = [&](std::uint64_t pages) { return as_double(pages * info.page_size); };
  const PoolStats& device = stats.device;
  const std::uint64_t used = device.pages_total - device.pages_free - device.pages_evictable;
  text.gauge("sglang:max_total_num_tokens", "Tokens that the device tier holds",
             tokens(device.pages_total), model);
  text.gauge("sglang:num_used_tokens", "Tokens of the device tier that requests hold", tokens(used),
             model);
  text.gauge("sglang:token_usage", "The share of the device tier that requests hold",
             device.pages_total == 0 ? 0.0 : as_double(used) / as_double(device.pages_total),
             model);
  text.gauge("sglang:hicache_host_used_tokens", "Tokens in the host tier",
             tokens(stats.host.pages_total - stats.host.pages_free), model);
  text.gauge("sglang:hicache_host_total_tokens", "Tokens that the host tier holds",
             tokens(stats.host.pages_total), model);
  text.counter("sglang:evicted_tokens_total", "Tokens evicted from the device",
               tokens(stats.evicted_pages[static_cast<std::size_t>(Tier::device)]), model);
  const std::string pool = model + "," + MetricsText::label("pool", "kv");
  text.counter("sglang:load_back_tokens_total", "Tokens copied from host to device",
               tokens(stats.loaded_back_pages), pool);
  text.counter("sglang:hicache_backup_tokens_total", "Tokens copied from device to host",
               tokens(stats.backed_up_pages_host), pool);
  text.counter("sglang:hicache_dropped_tokens_total",
               "Tokens that were not copied from device to host",
               tokens(stats.backup_dropped_pages_host),
               MetricsText::label("reason", "host_full") + "," + pool);
  std::string storage = model + "," + MetricsText::label("storage_backend", stats.storage_backend);
  for (const char* rank : {"tp_rank", "dp_rank", "pp_rank", "attn_cp_rank"}) {
    storage += "," + MetricsText::label(rank, "0");
  }
  for (const char* size : {"pp_size", "attn_cp_size"}) {
    storage += "," + MetricsText::label(size, "1");
  }
  text.counter("sglang:prefetched_tokens_total", "Tokens read from storage",
               tokens(stats.prefetched_pages), storage);
  text.counter("sglang:backuped_tokens_total", "Tokens written to storage",
               tokens(stats.backed_up_pages_storage), storage);
  text.counter("sglang:hicache_backup_dropped_tokens_total",
               "Tokens that were not written to storage, each time it was tried",
               tokens(stats.backup_dropped_pages_storage), storage);
}

}  // namespace

void RequestMetrics::note(const GenerationResult& result) {
  requests_.add();
  if (result.finish == FinishReason::cancelled) aborted_.add();
  prompt_tokens_.add(result.prompt_tokens);
  generated_tokens_.add(result.tokens.size());
  cached_device_.add(result.cached_device);
  cached_host_.add(result.cached_host);
  cached_storage_.add(result.cached_storage);
  if (result.explanation_id.empty()) return;  // it was never let in
  queue_seconds_.observe(to_seconds(result.queue_time));
  total_seconds_.observe(to_seconds(result.total_time));
  if (!result.tokens.empty()) first_token_seconds_.observe(to_seconds(result.first_token_time));
}

void append_sglang_metrics(MetricsText& text, const Engine& engine, const RequestMetrics& requests,
                           const std::string& model_name) {
  const std::string model = MetricsText::label("model_name", model_name);
  const auto count = [&](const char* name, const char* help, const Counter& counter) {
    text.counter(name, help, as_double(counter.value()), model);
  };
  const EngineLoad load = engine.load();
  text.gauge("sglang:num_running_reqs", "Requests that are computed", load.running, model);
  text.gauge("sglang:num_queue_reqs", "Requests that wait", load.waiting, model);
  count("sglang:num_requests_total", "Requests that have ended", requests.requests_);
  count("sglang:num_aborted_requests_total", "Those that were cancelled", requests.aborted_);
  count("sglang:prompt_tokens_total", "Prompt tokens of requests that have ended",
        requests.prompt_tokens_);
  count("sglang:generation_tokens_total", "Tokens that they generated", requests.generated_tokens_);
  const CacheStats stats = engine.cache_stats();
  const std::uint64_t device = requests.cached_device_.value();
  const std::uint64_t host = requests.cached_host_.value();
  const std::uint64_t storage = requests.cached_storage_.value();
  const std::pair<std::string, std::uint64_t> sources[] = {
      {"device", device},
      {"host", host},
      {"storage_" + (stats.storage_backend.empty() ? "none" : stats.storage_backend), storage},
      {"total", device + host + storage}};
  for (const auto& [source, tokens] : sources) {
    text.counter("sglang:cached_tokens_total", "Prompt tokens from the cache, by tier",
                 as_double(tokens), MetricsText::label("cache_source", source) + "," + model);
  }
  text.histogram("sglang:time_to_first_token_seconds", "From the request to its first token",
                 requests.first_token_seconds_, model);
  text.histogram("sglang:e2e_request_latency_seconds", "From the request to its end",
                 requests.total_seconds_, model);
  text.histogram("sglang:queue_time_seconds", "From the request to its admission",
                 requests.queue_seconds_, model);
  const EngineInfo info = engine.info();
  if (info.cache_on) append_cache(text, info, stats, model);
}

}  // namespace hitide
