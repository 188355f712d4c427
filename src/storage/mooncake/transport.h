// Whether the chosen transport can work on this machine, asked before any attempt.
#pragma once

#include <hitide/mooncake_options.h>
#include <hitide/status.h>

namespace hitide {

// failed_precondition: rdma without a device, which the client's own set-up does not notice; the
// message names the device and what to set instead. A thin client has no transport of its own.
Status check_transport(const MooncakeOptions& options);

}  // namespace hitide
