// Object keys of schema `hitide`: docs/formats/object_key.md.
//
//   {namespace}/{page key}/{pool}.t{tp}-p{pp}-c{cp}
//
// Injective: namespace and page key have fixed lengths, and a pool name has no dot. At most
// kObjectKeyBytesMax bytes. Values, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <hitide/model_spec.h>
#include <hitide/types.h>

namespace hitide {

inline constexpr std::size_t kObjectKeyBytesMax = 64 + 1 + 64 + 1 + 15 + 1 + 35;

// Which part of a page an object holds: a range of heads, of layers, of tokens. Replicas (dp) hold
// the same bytes and share their objects.
struct PartId {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t cp_rank = 0;
  friend bool operator==(const PartId&, const PartId&) = default;
};

PartId part_of(const RankGeometry& ranks);

class KeySchema {
 public:
  KeySchema(const Digest& identity, const PartId& part);

  // pool: a valid pool name.
  std::string object_key(const PageKey& page, std::string_view pool) const;
  // Objects of one page and part share a group, whatever their pool.
  std::string group(const PageKey& page) const;
  // What all keys of this model begin with, the slash included.
  const std::string& prefix() const { return prefix_; }

 private:
  std::string prefix_;
  std::string part_;
};

}  // namespace hitide
