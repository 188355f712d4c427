// Runs the conformance suite over every backend of this layer.
#include "storage/memory/memory_store.h"
#include "storage/null/null_store.h"
#include "tests/conformance/object_store_suite.h"  // tidy: allow-include the suite is shared
#include "tests/support/fault_store.h"

namespace hitide {
namespace {

StoreUnderTest open_memory() {
  return {.surroundings = nullptr, .store = std::make_unique<MemoryStore>(16u << 20)};
}

StoreUnderTest open_null() {
  return {.surroundings = nullptr, .store = std::make_unique<NullStore>()};
}

// Without faults the test double must be as good as what it wraps.
StoreUnderTest open_fault() {
  return {.surroundings = nullptr,
          .store = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(16u << 20))};
}

INSTANTIATE_TEST_SUITE_P(Stores, ObjectStoreSuite,
                         testing::Values(StoreKind{.name = "memory", .open = open_memory},
                                         StoreKind{.name = "null", .open = open_null,
                                                   .keeps = false},
                                         StoreKind{.name = "fault", .open = open_fault}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace hitide
