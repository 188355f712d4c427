// The small nouns that every part of HiTide shares. Words: docs/glossary.md.
//
// Threading: values and pure functions.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace hitide {

// One vocabulary id, as engines hand it out.
using TokenId = std::int32_t;

// Monotonic time. The deterministic core never reads a clock; it is told `now`.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;
inline constexpr TimePoint kNoDeadline = TimePoint::max();

// Where bytes lie: in the engine's pools (L1), in this machine's memory (L2), in the store (L3).
enum class Tier : std::uint8_t { device = 0, host = 1, storage = 2 };
inline constexpr int kTierCount = 3;
constexpr const char* to_string(Tier tier) {
  return tier == Tier::device ? "device" : tier == Tier::host ? "host" : "storage";
}

// A physical page of one pool on one tier. The generation grows each time the page is handed out
// anew, so that a late completion for a reused page is recognised.
struct PageId {
  std::uint32_t index = UINT32_MAX;
  std::uint32_t generation = 0;
  bool valid() const { return index != UINT32_MAX; }
  friend bool operator==(const PageId&, const PageId&) = default;
};

// A place in a device whose pages are reached through sequences (llama.cpp): the page at position
// i of a sequence holds tokens [i * page_size, (i + 1) * page_size). Negative: none.
struct SequenceId {
  std::int32_t value = -1;
  bool valid() const { return value >= 0; }
  friend bool operator==(const SequenceId&, const SequenceId&) = default;
};

// Chained SHA-256 digest that names a page's content: it covers every token from position 0 and
// the namespace. docs/formats/page_key.md.
struct PageKey {
  std::array<std::uint8_t, 32> bytes{};
  friend auto operator<=>(const PageKey&, const PageKey&) = default;
  std::string to_hex() const;
};

// 32-byte digest of a model's identity, numerics and stored format.
struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  friend auto operator<=>(const Digest&, const Digest&) = default;
  std::string to_hex() const;
};

}  // namespace hitide

template <>
struct std::hash<hitide::PageKey> {
  std::size_t operator()(const hitide::PageKey& key) const noexcept {
    std::size_t value;
    __builtin_memcpy(&value, key.bytes.data(), sizeof value);  // a digest is already uniform
    return value;
  }
};
