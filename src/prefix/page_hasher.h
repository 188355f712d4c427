// PageHasher: page keys, incrementally. The public functions over it are in <hitide/page_hash.h>.
//
//   keys of a conversation's next turn = extend(key of its last cached page, new tokens)
//
// Threading: one hasher for one thread at a time (it reuses one SHA-256 context). Nothing is
// allocated but what grows in the caller's `out`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <hitide/page_hash.h>
#include <hitide/types.h>

#include "base/hash.h"

namespace hitide {

class PageHasher {
 public:
  // page_size >= 1.
  explicit PageHasher(std::uint32_t page_size);

  std::uint32_t page_size() const { return page_size_; }

  // Appends the keys of the whole pages of `tokens` ([n] ids >= 0, n >= 0; only the first
  // n / page_size * page_size are read). `parent` is the key of the page before, the namespace's
  // seed for the first page of a namespace, or null. It may point into `out`.
  void extend(const PageKey* parent, std::span<const TokenId> tokens, std::vector<PageKey>& out);

  // The same over ids that use all 32 bits.
  void extend(const PageKey* parent, std::span<const std::uint32_t> ids, std::vector<PageKey>& out);

  // The same over pairs (id i, id i+1): n ids make n - 1 places, and a continued chain starts with
  // the id at the border, which both runs share.
  void extend_bigram(const PageKey* parent, std::span<const std::uint32_t> ids,
                     std::vector<PageKey>& out);
  void extend_bigram(const PageKey* parent, std::span<const TokenId> tokens,
                     std::vector<PageKey>& out);

 private:
  // Ids as unsigned numbers: memory of int32 may be read as uint32 and has the same bytes.
  static std::span<const std::uint32_t> as_ids(std::span<const TokenId> tokens);
  void feed(std::span<const std::uint32_t> ids);
  void feed_pairs(std::span<const std::uint32_t> ids);

  std::uint32_t page_size_;
  Sha256 sha_;
};

}  // namespace hitide
