#include <hitide/options.h>

#include <cmath>

#include <fmt/format.h>

namespace hitide {
namespace {
Status invalid(std::string_view option, std::string message) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", option, message));
}

Status positive(std::string_view option, double value) {
  if (std::isfinite(value) && value >= 0.0) return {};
  return invalid(option, fmt::format("{} must be a finite number >= 0", value));
}
}  // namespace

Status validate(const CacheOptions& options) {
  const StorageOptions& storage = options.storage;
  if (storage.backend != "file" && storage.backend != "memory" && storage.backend != "null" &&
      storage.backend != "none") {
    return invalid("hicache-storage-backend",
                   fmt::format("'{}' is not one of file, memory, null, none", storage.backend));
  }
  if (options.host.allocator != "shm") {
    return invalid("host-allocator", fmt::format("'{}' is not shm", options.host.allocator));
  }
  if (storage.threads < 1 || storage.threads > 64) {
    return invalid("storage threads", fmt::format("{} is not in 1..64", storage.threads));
  }
  if (storage.segment_bytes < (1u << 20) || storage.segment_bytes > (1u << 30)) {
    return invalid("storage segment_bytes",
                   fmt::format("{} is not in 1 MiB..1 GiB", storage.segment_bytes));
  }
  const PolicyOptions& policy = options.policy;
  HITIDE_RETURN_IF_ERROR(positive("prefetch_timeout_base", policy.prefetch_timeout_base_s));
  HITIDE_RETURN_IF_ERROR(
      positive("prefetch_timeout_per_ki_token", policy.prefetch_timeout_per_ki_token_s));
  HITIDE_RETURN_IF_ERROR(positive("prefetch_timeout_max", policy.prefetch_timeout_max_s));
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
