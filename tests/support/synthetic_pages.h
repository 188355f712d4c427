// Pages of synthetic models of several pools, each with bytes that are a function of page and pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/types.h>

#include "storage/page_store.h"
#include "tests/support/store_bytes.h"

namespace hitide {

inline constexpr std::byte kPoison{0xdd};

// page_bytes 0: logical. source: the pool whose ids it borrows; empty: ids of its own.
inline PoolSpec synthetic_pool(std::string name, std::uint64_t page_bytes, std::string source) {
  PoolSpec spec;
  spec.name = std::move(name);
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  spec.index_source = std::move(source);
  return spec;
}

inline PageKey synthetic_key(int page) {
  PageKey key;
  key.bytes[0] = static_cast<std::uint8_t>(page);
  key.bytes[1] = static_cast<std::uint8_t>(page >> 8);
  key.bytes[2] = 1;
  return key;
}

inline std::vector<std::byte> synthetic_payload(const PoolSpec& pool, int page) {
  return bytes_of(std::to_string(page) + "@" + pool.name, pool.page_bytes);
}

// Pages of one pool in memory, and their answers.
struct PagePart {
  std::string pool;
  std::vector<PageKey> keys;
  std::vector<std::vector<std::byte>> memory;  // empty for a logical pool
  std::vector<std::span<std::byte>> slots;
  std::vector<StatusCode> codes;

  PoolPages view() { return {.pool = pool, .keys = keys, .slots = slots, .out = codes}; }
  std::span<const std::byte> payload(std::size_t at) const {
    return std::span(memory[at]).subspan(kEnvelopeBytes);
  }
};

// Filled with what the pages must hold, or poisoned.
inline PagePart synthetic_part(const PoolSpec& pool, int first, int count, bool filled = true) {
  PagePart part;
  part.pool = pool.name;
  part.codes.assign(static_cast<std::size_t>(count), StatusCode::internal);
  for (int page = first; page < first + count; ++page) {
    part.keys.push_back(synthetic_key(page));
    if (pool.page_bytes == 0) continue;
    std::vector<std::byte> memory(page_layout(pool).object_bytes(), kPoison);
    const auto bytes = synthetic_payload(pool, page);
    if (filled) std::copy(bytes.begin(), bytes.end(), memory.begin() + kEnvelopeBytes);
    part.memory.push_back(std::move(memory));
  }
  for (auto& memory : part.memory) part.slots.emplace_back(memory);
  return part;
}

inline bool holds_page(const PagePart& part, const PoolSpec& pool, int page, std::size_t at) {
  const auto want = synthetic_payload(pool, page);
  const auto have = part.payload(at);
  return std::equal(want.begin(), want.end(), have.begin(), have.end());
}

inline std::vector<PoolPages> views_of(std::vector<PagePart>& parts) {
  std::vector<PoolPages> views;
  for (PagePart& part : parts) views.push_back(part.view());
  return views;
}

}  // namespace hitide
