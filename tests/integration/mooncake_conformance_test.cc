// The contract of ObjectStore over a real Mooncake store, through the agent.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "storage/mooncake/mooncake_store.h"
#include "tests/conformance/object_store_suite.h"
#include "tests/integration/mooncake_environment.h"

namespace hitide {
namespace {

StoreUnderTest open_mooncake() {
  mooncake_stack().tell("clear");
  auto store = MooncakeStore::open(mooncake_stack().options());
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  if (!store.ok()) return {};
  EXPECT_TRUE((*store)->wait_until_ready(kNoDeadline).ok());
  return {.surroundings = nullptr, .store = std::move(*store)};
}

INSTANTIATE_TEST_SUITE_P(Mooncake, ObjectStoreSuite,
                         testing::Values(StoreKind{.name = "embedded", .open = open_mooncake}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace hitide
