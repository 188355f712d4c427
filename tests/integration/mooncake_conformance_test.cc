// The contract of ObjectStore over a real Mooncake store, through the agent: with a client of our
// own, and with a thin client of a daemon.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "storage/mooncake/mooncake_store.h"
#include "tests/conformance/object_store_suite.h"
#include "tests/integration/mooncake_environment.h"

namespace hitide {
namespace {

StoreUnderTest open_on(MooncakeStack& stack) {
  stack.tell("clear");
  auto store = MooncakeStore::open(stack.options());
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  if (!store.ok()) return {};
  const Status ready = (*store)->wait_until_ready(kNoDeadline);
  EXPECT_TRUE(ready.ok()) << ready.to_string();
  return {.surroundings = nullptr, .store = std::move(*store)};
}

StoreUnderTest open_embedded() { return open_on(mooncake_stack()); }
StoreUnderTest open_standalone() { return open_on(mooncake_daemon_stack()); }

std::string name_of(const testing::TestParamInfo<StoreKind>& kind) { return kind.param.name; }

const StoreKind kEmbedded{.name = "embedded", .open = open_embedded};
const StoreKind kStandalone{.name = "standalone", .open = open_standalone};

INSTANTIATE_TEST_SUITE_P(Mooncake, ObjectStoreSuite, testing::Values(kEmbedded, kStandalone),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Mooncake, SizeLimitSuite, testing::Values(kEmbedded, kStandalone),
                         name_of);

}  // namespace
}  // namespace hitide
