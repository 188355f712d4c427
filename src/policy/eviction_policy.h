// Eviction decisions: the rank of a leaf. Pure.
#pragma once

#include <hitide/options.h>

#include "prefix/eviction_order.h"

namespace hitide {

// Null for lru, for which the tree keeps a list that costs nothing to order.
RankLeaf rank_for(EvictionPolicy policy);

}  // namespace hitide
