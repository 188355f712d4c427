// What the two halves of TransferEngine (transfer_engine.cc, transfer_engine_moves.cc) share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include <hitide/types.h>

#include "spec/plan.h"

namespace hitide {

inline constexpr Duration kTransferLogInterval = std::chrono::seconds(10);

using StorageOp = std::variant<StorageQueryOp, StorageReadOp, StorageWriteOp>;

inline std::size_t count_ok(std::span<const StatusCode> codes) {
  return static_cast<std::size_t>(std::count(codes.begin(), codes.end(), StatusCode::ok));
}

inline void fill_from(std::vector<StatusCode>& codes, std::size_t first, StatusCode code) {
  if (first < codes.size()) {
    std::fill(codes.begin() + static_cast<std::ptrdiff_t>(first), codes.end(), code);
  }
}

inline std::span<const SidePages> sides_of(const StorageOp& op) {
  if (const auto* read = std::get_if<StorageReadOp>(&op)) return read->sides;
  if (const auto* write = std::get_if<StorageWriteOp>(&op)) return write->sides;
  return {};
}

// The pages of all pools that belong to the keys from `first` on.
inline void fill_sides_from(Completion& answer, std::span<const SidePages> sides, std::size_t first,
                            StatusCode code) {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    fill_from(answer.sides[i], first - std::min<std::size_t>(first, sides[i].first), code);
  }
}

}  // namespace hitide
