// The Prometheus page: cache, server and engine. docs/server.md lists the names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "engine/engine.h"
#include "server/sglang_metrics.h"

namespace hitide {

// Answers by route and status. Routes are the server's own names, so their number is bounded.
class HttpCounts {
 public:
  void count(const std::string& route, int status);
  std::map<std::pair<std::string, int>, std::uint64_t> values() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> counts_ HITIDE_GUARDED_BY(mutex_);
};

struct ServerGauges {
  std::uint32_t requests_in_flight = 0;
  std::uint32_t requests_max = 0;
};

std::string metrics_page(const Engine& engine, const HttpCounts& http, const ServerGauges& gauges,
                         const RequestMetrics& requests, const std::string& model_name);

}  // namespace hitide
