// How values lie in stored bytes: little-endian, at fixed offsets.
//
// Threading: pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace hitide {

static_assert(std::endian::native == std::endian::little, "stored integers are little-endian");

// `at` and the value's size lie within `bytes`.
template <typename T>
void put(std::span<std::byte> bytes, std::size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <typename T>
T take(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace hitide
