// Ghost: a bounded memory of pages that were evicted, for explanations only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <hitide/types.h>

namespace hitide {

class Ghost {
 public:
  explicit Ghost(std::size_t capacity);
  ~Ghost();
  // The page left `tier` and is in no tier of this process any more.
  void note(const PageKey& key, Tier tier);
  std::optional<Tier> find(const PageKey& key) const;

 private:
  struct Map;
  std::unique_ptr<Map> map_;
  std::vector<std::uint64_t> ring_;  // oldest at next_
  std::size_t next_ = 0;
};

}  // namespace hitide
