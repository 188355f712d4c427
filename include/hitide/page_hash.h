// Page keys of a token list: what names a page in storage. docs/formats/page_key.md.
//
//   key(page k) = SHA-256( key(page k-1) || ids of the page, 4 little-endian bytes each )
//
// The first page starts from the namespace's seed where there is a namespace, else from nothing.
// The chain is that of SGLang, byte for byte, so that both name the same page alike.
//
// Threading: pure functions. Cost: one SHA-256 over 32 + 4 * page_size bytes a page.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

namespace hitide {

struct PageHashOptions {
  std::uint32_t page_size = 32;  // tokens (pairs with bigram), >= 1
  // Key of the page before the first one, where a chain is continued. It carries the namespace, so
  // that none may be given beside it.
  std::optional<PageKey> parent = {};
  std::optional<std::string_view> extra_key = {};   // adapter or other namespace, UTF-8
  std::optional<std::string_view> cache_salt = {};  // tenant, UTF-8; "" is no salt
  // Speculative decoding: place i holds the pair (id i, id i+1), and n ids make n - 1 places.
  bool bigram = false;
};

// Keys of the whole pages of `tokens` ([n], n >= 0); a partial last page has none.
// invalid_argument: an id outside [0, 2^32 - 1] (with its position), page_size 0, or a parent
// together with a namespace.
Result<std::vector<PageKey>> page_hashes(std::span<const std::int64_t> tokens,
                                         const PageHashOptions& options);

// SHA-256 over all ids, in pages of no size. invalid_argument as above.
Result<PageKey> whole_run_hash(std::span<const std::int64_t> tokens);

// The digest that the first page starts from; nothing where there is no namespace, that is no
// extra_key and no cache_salt or an empty one (SGLang's keys take an empty salt for none; an empty
// extra_key counts).
std::optional<PageKey> namespace_seed(std::optional<std::string_view> extra_key,
                                      std::optional<std::string_view> cache_salt);

// The digest of the two fields as they are. Injective: absent, empty, and any split of the same
// letters over the two differ.
PageKey namespace_digest(std::optional<std::string_view> extra_key,
                         std::optional<std::string_view> cache_salt);

// The page's number in KV event streams: the first eight bytes of the key, most significant first,
// as a signed number.
std::int64_t event_id(const PageKey& key);

}  // namespace hitide
