// The stores that the tests of this program share.
#pragma once

#include "tests/integration/mooncake_stack.h"

namespace hitide {

MooncakeStack& mooncake_stack();
// With a daemon for thin clients; started when it is first asked for.
MooncakeStack& mooncake_daemon_stack();

}  // namespace hitide
