#include "storage/key_schema.h"

#include <fmt/format.h>

namespace hitide {

PartId part_of(const RankGeometry& ranks) {
  return {.tp_rank = ranks.tp_rank, .pp_rank = ranks.pp_rank, .cp_rank = ranks.cp_rank};
}

KeySchema::KeySchema(const Digest& identity, const PartId& part)
    : prefix_(identity.to_hex() + "/"),
      part_(fmt::format("t{}-p{}-c{}", part.tp_rank, part.pp_rank, part.cp_rank)) {}

std::string KeySchema::object_key(const PageKey& page, std::string_view pool) const {
  return fmt::format("{}{}/{}.{}", prefix_, page.to_hex(), pool, part_);
}

std::string KeySchema::group(const PageKey& page) const {
  return fmt::format("{}{}.{}", prefix_, page.to_hex(), part_);
}

}  // namespace hitide
