#include <hitide/model_spec.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/hash.h"

namespace hitide {
namespace {

// Bumped when the stored format (envelope or page bytes) changes.
constexpr std::uint32_t kStoredFormatVersion = 1;

Status invalid(std::string message) {
  return Status(StatusCode::invalid_argument, "model: " + std::move(message));
}

bool good_pool_name(std::string_view name) {
  if (name.empty() || name.size() > 15) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

Status validate_rank(std::string_view axis, std::uint32_t rank, std::uint32_t size) {
  if (size >= 1 && rank < size) return {};
  return invalid(fmt::format("{}_rank {} must be below {}_size {}", axis, rank, axis, size));
}

Status validate_pool(const PoolSpec& pool, const ModelSpec& model) {
  if (!good_pool_name(pool.name)) {
    return invalid(
        fmt::format("pool name '{}' must be 1 to 15 characters of a-z, 0-9 and '_'", pool.name));
  }
  if (pool.page_size == 0 || pool.page_size != model.page_size()) {
    return invalid(fmt::format("pool {}: page_size {} must be >= 1 and equal to the anchor's {}",
                               pool.name, pool.page_size, model.page_size()));
  }
  if ((pool.page_bytes > 0) != has_bytes(pool)) {
    return invalid(
        fmt::format("pool {}: page_bytes {}: exactly logical pools, and those whose data "
                    "lies in side pools only, have no bytes",
                    pool.name, pool.page_bytes));
  }
  if (pool.kind == PoolKind::side_pools_only && pool.name != model.anchor().name) {
    return invalid(
        fmt::format("pool {}: only the anchor can have all its bytes in side pools", pool.name));
  }
  if (pool.hit_policy.kind == HitPolicy::Kind::trailing_pages &&
      pool.hit_policy.trailing_pages == 0) {
    return invalid(fmt::format("pool {}: trailing_pages must be >= 1", pool.name));
  }
  if (!pool.index_source.empty()) {
    const auto known = [&](const PoolSpec& other) { return other.name == pool.index_source; };
    if (pool.index_source == pool.name ||
        std::none_of(model.pools.begin(), model.pools.end(), known)) {
      return invalid(fmt::format("pool {}: index_source '{}' is no other pool of the model",
                                 pool.name, pool.index_source));
    }
  }
  return {};
}

// Length-prefixed, so that no two different field lists give the same bytes.
void put(Sha256& sha, std::string_view text) {
  const std::uint64_t size = text.size();
  sha.update(&size, sizeof size);
  sha.update(text);
}

}  // namespace

Status validate(const ModelSpec& model) {
  if (model.pools.empty()) return invalid("there are no pools");
  if (model.weights_digest.empty()) {
    return invalid("weights_digest is empty: pages of other weights could not be told from these");
  }
  if (!model.anchor().index_source.empty()) {
    return invalid(fmt::format("anchor pool {} must own its page ids", model.anchor().name));
  }
  std::set<std::string_view> names;
  for (const PoolSpec& pool : model.pools) {
    HITIDE_RETURN_IF_ERROR(validate_pool(pool, model));
    if (!names.insert(pool.name).second) {
      return invalid(fmt::format("pool name '{}' stands twice", pool.name));
    }
  }
  const RankGeometry& ranks = model.ranks;
  HITIDE_RETURN_IF_ERROR(validate_rank("tp", ranks.tp_rank, ranks.tp_size));
  HITIDE_RETURN_IF_ERROR(validate_rank("pp", ranks.pp_rank, ranks.pp_size));
  HITIDE_RETURN_IF_ERROR(validate_rank("cp", ranks.cp_rank, ranks.cp_size));
  return validate_rank("dp", ranks.dp_rank, ranks.dp_size);
}

Digest identity_digest(const ModelSpec& model) {
  Sha256 sha;
  put(sha, "hitide-identity");
  put(sha, fmt::format("{}", kStoredFormatVersion));
  put(sha, model.weights_digest);
  std::vector<std::string> numerics = model.numerics;
  std::sort(numerics.begin(), numerics.end());
  put(sha, fmt::format("{}", numerics.size()));
  for (const std::string& fact : numerics) put(sha, fact);
  put(sha, fmt::format("{}", model.pools.size()));
  for (const PoolSpec& pool : model.pools) {
    put(sha, pool.name);
    put(sha, fmt::format("{} {} {} {} {} {} {} {} {}", static_cast<int>(pool.kind), pool.page_size,
                         pool.page_bytes, pool.layers, pool.heads, pool.head_dim,
                         static_cast<int>(pool.hit_policy.kind), pool.hit_policy.trailing_pages,
                         static_cast<int>(pool.layout)));
    put(sha, pool.dtype);
    put(sha, pool.index_source);
  }
  // Which slice of the heads or layers an object holds is in its part name; how many slices there
  // are changes the bytes.
  const RankGeometry& ranks = model.ranks;
  put(sha, fmt::format("{} {} {}", ranks.tp_size, ranks.pp_size, ranks.cp_size));
  Digest digest;
  sha.finish(digest.bytes);
  return digest;
}

}  // namespace hitide
