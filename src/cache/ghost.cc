#include "cache/ghost.h"

#include <tsl/robin_map.h>

namespace hitide {

struct Ghost::Map {
  tsl::robin_map<std::uint64_t, Tier> tiers;
};

namespace {
// 64 bits of a digest: a collision mislabels one reason, nothing else.
std::uint64_t short_key(const PageKey& key) {
  std::uint64_t value;
  __builtin_memcpy(&value, key.bytes.data(), sizeof value);
  return value;
}
}  // namespace

Ghost::Ghost(std::size_t capacity) : map_(std::make_unique<Map>()), ring_(capacity, 0) {}
Ghost::~Ghost() = default;

void Ghost::note(const PageKey& key, Tier tier) {
  if (ring_.empty()) return;
  const std::uint64_t value = short_key(key);
  if (!map_->tiers.insert_or_assign(value, tier).second) return;
  if (ring_[next_] != 0) map_->tiers.erase(ring_[next_]);
  ring_[next_] = value;
  next_ = (next_ + 1) % ring_.size();
}

std::optional<Tier> Ghost::find(const PageKey& key) const {
  const auto it = map_->tiers.find(short_key(key));
  if (it == map_->tiers.end()) return std::nullopt;
  return it->second;
}

}  // namespace hitide
