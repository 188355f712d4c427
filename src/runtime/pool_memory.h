// Where the memory of a host pool comes from, by the allocator's name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <hitide/object_store.h>
#include <hitide/options.h>
#include <hitide/registration.h>
#include <hitide/result.h>

#include "pool/host_allocator.h"

namespace hitide {

// Hands out `store`'s memory (ObjectStore::allocate_memory), which must outlive what it hands out.
std::shared_ptr<HostAllocator> allocator_of(ObjectStore& store);

// shm, mmap, or store where there is a `store`. failed_precondition: store memory without one.
// invalid_argument: none or unknown.
Result<std::shared_ptr<HostAllocator>> allocator_of(AllocatorKind kind, ObjectStore* store);

// What the options choose for `pool`.
AllocatorKind chosen_allocator(const HostOptions& options, std::string_view pool);

}  // namespace hitide
