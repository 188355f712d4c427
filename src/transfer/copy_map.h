// From page ids to bytes for copies between device and host.
#pragma once

#include <hitide/device.h>
#include <hitide/result.h>

#include "pool/host_pool.h"
#include "spec/plan.h"

namespace hitide {

// The device's view of the copy: payloads instead of host pages, positions one after the other.
// internal: a host page that the pool does not have. Pure; the spans lie in the pool's memory.
Result<CopyBatch> map_copy(const CopyOp& op, const HostPool& pool);

// The core's view of the answer.
Completion map_completion(CopyCompletion completion, const HostPool& pool);

}  // namespace hitide
