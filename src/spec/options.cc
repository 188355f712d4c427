#include <hitide/options.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <hitide/registration.h>

#include "spec/mooncake_options.h"

namespace hitide {
namespace {
Status invalid(std::string_view option, std::string message) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", option, message));
}

Status positive(std::string_view option, double value) {
  if (std::isfinite(value) && value >= 0.0) return {};
  return invalid(option, fmt::format("{} must be a finite number >= 0", value));
}

Status validate_allocator(const std::string& pool, const std::string& kind) {
  const AllocatorKind known = allocator_kind(kind);
  if (known != AllocatorKind::none && known != AllocatorKind::unknown) return {};
  return invalid("host-allocator", fmt::format("'{}{}' is not shm, mmap or store",
                                               pool.empty() ? "" : pool + "=", kind));
}

bool is_numa_choice(std::string_view choice) {
  if (choice == "auto" || choice == "off") return true;
  const bool digits =
      std::all_of(choice.begin(), choice.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits && !choice.empty() && choice.size() <= 4;
}

Status validate_host(const HostOptions& host) {
  HITIDE_RETURN_IF_ERROR(validate_allocator("", host.allocator));
  for (const HostAllocatorChoice& choice : host.pool_allocators) {
    HITIDE_RETURN_IF_ERROR(validate_allocator(choice.pool, choice.kind));
  }
  if (host.huge_pages != "auto" && host.huge_pages != "off") {
    return invalid("host-huge-pages", fmt::format("'{}' is not auto or off", host.huge_pages));
  }
  if (!is_numa_choice(host.numa)) {
    return invalid("host-numa", fmt::format("'{}' is not auto, off or a node's number", host.numa));
  }
  return {};
}
}  // namespace

Status validate(const CacheOptions& options) {
  constexpr std::array<std::string_view, 5> kBackends = {"file", "mooncake", "memory", "null",
                                                         "none"};
  const StorageOptions& storage = options.storage;
  if (std::find(kBackends.begin(), kBackends.end(), storage.backend) == kBackends.end()) {
    return invalid("hicache-storage-backend", fmt::format("'{}' is not one of {}", storage.backend,
                                                          fmt::join(kBackends, ", ")));
  }
  if (storage.backend == "mooncake") HITIDE_RETURN_IF_ERROR(validate(storage.mooncake));
  HITIDE_RETURN_IF_ERROR(validate_host(options.host));
  if (storage.threads < 1 || storage.threads > 64) {
    return invalid("storage threads", fmt::format("{} is not in 1..64", storage.threads));
  }
  if (storage.segment_bytes < (1u << 20) || storage.segment_bytes > (1u << 30)) {
    return invalid("storage segment_bytes",
                   fmt::format("{} is not in 1 MiB..1 GiB", storage.segment_bytes));
  }
  const BreakerOptions& breaker = storage.breaker;
  if (breaker.failures_to_open < 1 || breaker.pause_first <= Duration::zero() ||
      breaker.pause_max < breaker.pause_first || breaker.hang_limit <= Duration::zero() ||
      !(breaker.failed_share_to_open > 0.0) || breaker.window <= Duration::zero()) {
    return invalid("breaker",
                   "breaker_failures must be 1 or more, the times above 0, and breaker_pause_max "
                   "not below breaker_pause");
  }
  if (storage.backup_queue_max < 1) return invalid("backup_queue_max", "0 is below 1");
  const PolicyOptions& policy = options.policy;
  HITIDE_RETURN_IF_ERROR(positive("prefetch_timeout_base", policy.prefetch_timeout_base_s));
  HITIDE_RETURN_IF_ERROR(
      positive("prefetch_timeout_per_ki_token", policy.prefetch_timeout_per_ki_token_s));
  HITIDE_RETURN_IF_ERROR(positive("prefetch_timeout_max", policy.prefetch_timeout_max_s));
  HITIDE_RETURN_IF_ERROR(positive("prefetch_retry_interval", policy.prefetch_retry_interval_s));
  HITIDE_RETURN_IF_ERROR(positive("prefill_tokens_per_s", options.prefill_tokens_per_s));
  if (!(policy.prefetch_occupancy_max > 0.0 && policy.prefetch_occupancy_max <= 1.0)) {
    return invalid("prefetch_occupancy_max",
                   fmt::format("{} is not in (0, 1]", policy.prefetch_occupancy_max));
  }
  if (policy.storage_batch_pages < 1 || policy.storage_batch_pages > 1024) {
    return invalid("storage_batch_pages",
                   fmt::format("{} is not in 1..1024", policy.storage_batch_pages));
  }
  return {};
}

}  // namespace hitide
