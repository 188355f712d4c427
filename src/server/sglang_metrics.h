// What SGLang's dashboards and alerts ask for, under SGLang's names (prefix `sglang:`) and labels.
// docs/server.md lists them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/metrics.h"
#include "engine/engine.h"

namespace hitide {

// SGLang's bounds.
inline constexpr double kLatencyBounds[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1,  2,   4,   6,
                                            8,   10,  20,  40,  60,  80, 100, 200, 400};

// What has become of the requests. Threading: any.
class RequestMetrics {
 public:
  void note(const GenerationResult& result);

 private:
  friend void append_sglang_metrics(MetricsText& text, const Engine& engine,
                                    const RequestMetrics& requests, const std::string& model_name);
  Counter requests_, aborted_, prompt_tokens_, generated_tokens_;
  Counter cached_device_, cached_host_, cached_storage_;
  Histogram first_token_seconds_{kLatencyBounds};
  Histogram total_seconds_{kLatencyBounds};
  Histogram queue_seconds_{kLatencyBounds};
};

void append_sglang_metrics(MetricsText& text, const Engine& engine, const RequestMetrics& requests,
                           const std::string& model_name);

}  // namespace hitide
