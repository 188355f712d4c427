// CoreDriver: puts prompts into a CacheCore with no engine and no bytes behind it. Every copy is
// answered at once, as done.
#pragma once

#include <span>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

#include "cache/cache_core.h"

namespace hitide::bench {

// Page-addressed device, no storage.
CoreConfig core_config(std::uint32_t page_size, std::uint32_t device_pages,
                       std::uint32_t host_pages);

// `count` token ids that look like text to a hash: no two seeds share a page.
std::vector<TokenId> make_tokens(std::size_t count, std::uint64_t seed);

// The same for a real model: ids that every vocabulary has.
std::vector<TokenId> make_prompt(std::size_t count, std::uint64_t seed);

class CoreDriver {
 public:
  explicit CoreDriver(const CoreConfig& config) : core_(config) {}
  CacheCore& core() { return core_; }

  // Opens, admits, commits all tokens and releases: they are cached afterwards.
  Status add(std::span<const TokenId> tokens);
  // Opens and admits; the request is running.
  Result<RequestId> start(std::span<const TokenId> tokens);
  Result<RequestId> open(std::span<const TokenId> tokens);
  void release(RequestId id);
  Result<std::vector<PageId>> reserve(RequestId id, std::uint32_t total_tokens);
  void flush();

 private:
  void carry_out();

  CacheCore core_;
  Plan plan_;
  TimePoint now_{std::chrono::seconds(1)};
};

}  // namespace hitide::bench
