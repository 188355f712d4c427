// Where the memory of a host pool comes from, by the allocator's name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/device.h>
#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/options.h>
#include <hitide/registration.h>
#include <hitide/result.h>

#include "pool/host_allocator.h"
#include "pool/host_size.h"

namespace hitide {

// Hands out `store`'s memory (ObjectStore::allocate_memory), which must outlive what it hands out.
std::shared_ptr<HostAllocator> allocator_of(ObjectStore& store);

// shm, mmap, or store where there is a `store`. failed_precondition: store memory without one.
// invalid_argument: none or unknown.
Result<std::shared_ptr<HostAllocator>> allocator_of(AllocatorKind kind, ObjectStore* store);

// The same, placed as the options say (pool/host_placement.h) where it is shm or mmap memory.
// invalid_argument too: a NUMA node that is not there.
Result<std::shared_ptr<HostAllocator>> placed_allocator_of(AllocatorKind kind, ObjectStore* store,
                                                           const HostOptions& options);

// Memory beside the host tier's that this configuration takes on this machine.
std::vector<MemoryDemand> other_demands(const StorageOptions& storage);

// What the host tier gets, worked out from what is free now and what `others` want. Requires a
// validated model whose pools have bytes. Errors as for host_size() and memory_room().
Result<HostSize> planned_host_size(const HostOptions& options, const ModelSpec& model,
                                   const DeviceGeometry& device,
                                   const std::vector<MemoryDemand>& others);

// What the options choose for `pool`.
AllocatorKind chosen_allocator(const HostOptions& options, std::string_view pool);

}  // namespace hitide
