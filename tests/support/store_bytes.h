// Bytes that are a function of a key, so that a wrong byte is seen wherever it comes from; and
// one-object calls for tests of object stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/object_store.h>

namespace hitide {

inline std::vector<std::byte> bytes_of(std::string_view key, std::size_t size) {
  std::uint64_t state = 0x9e3779b97f4a7c15ull;
  for (const char c : key) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

inline StatusCode put_object(ObjectStore& store, std::string_view key,
                             std::span<const std::byte> bytes, const CallOptions& options = {}) {
  const PutItem item{.key = key, .buffers = std::span(&bytes, 1)};
  ItemResult result;
  store.put(std::span(&item, 1), std::span(&result, 1), options).status.ignore();
  if (result.code == StatusCode::ok && result.bytes != bytes.size()) return StatusCode::internal;
  return result.code;
}

// The object of this length, or nothing; `code` says why.
inline std::vector<std::byte> get_object(ObjectStore& store, std::string_view key, std::size_t size,
                                         StatusCode& code, const CallOptions& options = {}) {
  std::vector<std::byte> bytes(size, std::byte{0xee});
  const std::span<std::byte> buffer(bytes);
  const GetItem item{.key = key, .buffers = std::span(&buffer, 1)};
  ItemResult result;
  store.get(std::span(&item, 1), std::span(&result, 1), options).status.ignore();
  code = result.code;
  if (code == StatusCode::ok && result.bytes != size) code = StatusCode::internal;
  if (code != StatusCode::ok) bytes.clear();
  return bytes;
}

inline StatusCode exists_object(ObjectStore& store, std::string_view key) {
  ItemResult result;
  store.exists(std::span(&key, 1), std::span(&result, 1), {}).status.ignore();
  return result.code;
}

inline StatusCode remove_object(ObjectStore& store, std::string_view key) {
  ItemResult result;
  store.remove(std::span(&key, 1), std::span(&result, 1), {}).status.ignore();
  return result.code;
}

// ok: the store has exactly bytes_of(key, size). internal: it answered with wrong bytes, which no
// store may ever do. Else the code of the answer.
inline StatusCode check_object(ObjectStore& store, std::string_view key, std::size_t size) {
  StatusCode code = StatusCode::internal;
  const auto bytes = get_object(store, key, size, code);
  if (code == StatusCode::ok && bytes != bytes_of(key, size)) return StatusCode::internal;
  return code;
}

}  // namespace hitide
