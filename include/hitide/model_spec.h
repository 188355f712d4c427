// What is cached: the pools of a model, their geometry, and the identity that pins the bytes.
//
// Threading: values and pure functions.
//
// Two engines share pages only where the whole ModelSpec, written down by its owner, is equal:
// whatever changes a stored byte must be part of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

namespace hitide {

enum class PoolKind : std::uint8_t {
  mha,      // K and V, [layers, tokens, heads, dim] each
  mla,      // one latent vector per token and layer
  k_only,   // keys only (indexers)
  packed,   // opaque: page_bytes of bytes per page, whatever the engine makes of them
  state,    // one recurrent state per page end
  logical,  // owns page ids and no bytes; its data lies in side pools, its pages are markers
  side_pools_only,  // the same without a mark in storage: its side pools alone say what is there
};

// How the bytes of a host page lie. Formulas: docs/formats/layouts.md.
enum class HostLayout : std::uint8_t {
  page_packed,  // a header slot, then all bytes of a page of one pool
};

// Which pages of a prefix a side pool needs before the prefix may be restored.
struct HitPolicy {
  enum class Kind : std::uint8_t { all_pages, trailing_pages } kind = Kind::all_pages;
  std::uint32_t trailing_pages = 0;  // only for trailing_pages: the last n, n >= 1
};

struct PoolSpec {
  std::string name = "kv";  // [a-z0-9_]+, at most 15 characters, unique in the model
  PoolKind kind = PoolKind::packed;
  std::uint32_t page_size = 32;  // tokens; the same for all pools of a model
  std::uint64_t page_bytes = 0;  // payload of one page on one rank; 0 for the last two kinds alone
  std::uint32_t layers = 0;      // informative for packed pools
  std::uint32_t heads = 0;
  std::uint32_t head_dim = 0;
  std::string dtype = {};         // for example "q8_0"
  std::string index_source = {};  // empty: owns page ids; else the pool whose ids it borrows
  HitPolicy hit_policy = {};
  bool required = true;  // false: may lose its L3 while the others go on (drafts)
  HostLayout layout = HostLayout::page_packed;
};

// False for an anchor whose data lies in side pools.
constexpr bool has_bytes(const PoolSpec& pool) {
  return pool.kind != PoolKind::logical && pool.kind != PoolKind::side_pools_only;
}

struct RankGeometry {
  std::uint32_t tp_rank = 0, tp_size = 1;
  std::uint32_t pp_rank = 0, pp_size = 1;
  std::uint32_t cp_rank = 0, cp_size = 1;
  std::uint32_t dp_rank = 0, dp_size = 1;
};

struct ModelSpec {
  std::string model_name = {};      // for people; not part of the identity
  std::string weights_digest = {};  // hex digest of the weights, or a revision; never empty
  // Everything else that changes a stored bit: engine build, state format, KV type, flash
  // attention, rope, micro-batch class, back end. "name=value" each; order does not matter.
  std::vector<std::string> numerics = {};
  std::vector<PoolSpec> pools = {};  // the first one is the anchor: it hands out page ids
  RankGeometry ranks = {};

  const PoolSpec& anchor() const { return pools.front(); }
  std::uint32_t page_size() const { return pools.empty() ? 0 : pools.front().page_size; }
};

// invalid_argument with the field's name where something does not hold (no pools or weights, names
// twice or bad, mixed page sizes, bytes on a pool of a kind without, a side pool of
// side_pools_only, an unknown index source, a rank out of range).
Status validate(const ModelSpec& model);

// The digest that names the model's namespace in the store: identity, numerics, page size, pools
// and stored format version; injective over the fields named above. docs/formats/object_key.md.
// Requires validate(model).ok().
Digest identity_digest(const ModelSpec& model);

}  // namespace hitide
