// Tries a store with pages of the pools that are registered with it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/registration.h>
#include <hitide/types.h>

#include "pool/host_pool.h"

namespace hitide {

// For each row whose path is on, in the order of the model's pools: puts all pages of its host pool
// (a logical pool: as many markers as the other pools have pages), reads them back over other
// bytes, compares, and removes them from the store. What it took goes to `measured`. A pool whose
// pages do not come back is off, with the reason; then the rows are settled again.
//
// host[p]: the host pool of pool p, null for one without bytes; nobody else may use its pages.
// Calls begin before `deadline`; rows that were not reached are off.
void try_pools(ObjectStore& store, const ModelSpec& model,
               std::span<const std::unique_ptr<HostPool>> host, TimePoint deadline,
               std::span<PoolRegistration> rows);

}  // namespace hitide
