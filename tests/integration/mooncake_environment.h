// The one store that the tests of this program share.
#pragma once

#include "tests/integration/mooncake_stack.h"

namespace hitide {

MooncakeStack& mooncake_stack();

}  // namespace hitide
