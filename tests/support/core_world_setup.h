// What tests of the core start from: a small world, prompts, and the check after every step.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_world.h"

namespace hitide {

using Tokens = std::vector<TokenId>;

// start, start + 1, ...
inline Tokens sequence_of(std::uint32_t count, TokenId start = 0) {
  Tokens tokens(count);
  for (std::uint32_t i = 0; i < count; ++i) tokens[i] = start + static_cast<TokenId>(i);
  return tokens;
}

// 16 device pages of 4 tokens, 32 host pages, storage.
inline WorldOptions small_world() {
  WorldOptions options;
  options.core.page_size = 4;
  options.core.device_pages = 16;
  options.core.device_sequences = 8;
  options.core.host_pages = 32;
  options.core.storage = StorageState::on;
  options.core.policy.prefetch_threshold_tokens = 8;
  options.core.policy.load_back_threshold_tokens = 4;
  options.core.policy.storage_batch_pages = 2;
  options.core.policy.prefetch_occupancy_max = 1.0;
  options.core.ghosts_kept = 64;  // small worlds are made by the hundred thousand
  return options;
}

inline CacheStats stats_of(CoreWorld& world) {
  CacheStats stats;
  world.core().fill_stats(stats);
  return stats;
}

#define EXPECT_WORLD_OK(world)                                                 \
  do {                                                                         \
    const Status world_status_ = (world).core().check();                       \
    EXPECT_TRUE(world_status_.ok()) << world_status_.to_string();              \
    EXPECT_TRUE((world).violations().empty()) << (world).violations().front(); \
  } while (false)

}  // namespace hitide
