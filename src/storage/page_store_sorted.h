// What the two halves of PageStore (page_store.cc, page_store_group.cc) share.
#pragma once

#include <unordered_set>
#include <vector>

#include <hitide/types.h>

#include "storage/page_store.h"

namespace hitide {

struct PageStore::Sorted {
  std::vector<Placed> sides;
  std::vector<Placed> anchors;
  std::vector<std::unordered_set<PageKey>> named;  // [pools]; what the call names of each
};

}  // namespace hitide
