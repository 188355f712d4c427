// What an engine says of a request, and what it gets. Used with Cache, see <hitide/cache.h>.
//
// Threading: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <hitide/types.h>

namespace hitide {

// Longest adapter and longest cache salt: a name is kept as long as any of its pages.
inline constexpr std::size_t kNamespaceBytesMax = 8192;

// What it refers to is the caller's and is read until open_prefix() returns.
//
// `extra_key` and `cache_salt` are bytes: no case folding, no normal form, NUL is a byte as others.
// Requests that differ in one of them share no page in any tier. One without both has the keys that
// it would have if there were no namespaces.
struct PrefixRequest {
  std::span<const TokenId> tokens = {};             // [n], n >= 1; the prompt
  std::optional<std::string_view> extra_key = {};   // adapter or other namespace
  std::optional<std::string_view> cache_salt = {};  // tenant; "" is none
  std::string_view label = {};                      // for the explanation
  std::int32_t priority = 0;  // eviction policy priority: high ones stay longer
};

//   waiting   storage is being asked for more of the prefix; bounded by the prefetch deadline
//   ready     admit() may be called
//   loading   device pages are reserved, copies into the device are under way
//   running   cached_tokens() tokens are in place; the engine computes the rest
//   closed    finished, released, or the cache was closed
enum class PrefixState : std::uint8_t { waiting, ready, loading, running, closed };

struct Admission {
  SequenceId sequence = {};        // invalid on page-addressed devices
  std::vector<PageId> pages = {};  // device pages of the whole prompt, ceil(n / page_size)
};

}  // namespace hitide
