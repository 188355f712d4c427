// Runs the conformance suite over every backend of this layer.
#include <functional>

#include "storage/breaker.h"
#include "storage/file/file_store.h"
#include "storage/memory/memory_store.h"
#include "storage/null/null_store.h"
#include "tests/conformance/object_store_suite.h"  // tidy: allow-include the suite is shared
#include "tests/support/fault_store.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

StoreUnderTest open_memory() {
  return {.surroundings = nullptr, .store = std::make_unique<MemoryStore>(8u << 20)};
}

StoreUnderTest open_null() {
  return {.surroundings = nullptr, .store = std::make_unique<NullStore>()};
}

// Without faults the test double must be as good as what it wraps.
StoreUnderTest open_fault() {
  return {.surroundings = nullptr,
          .store = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(8u << 20))};
}

// As good as what it keeps calls from.
StoreUnderTest open_breaker() {
  return {.surroundings = nullptr,
          .store = std::make_unique<BreakerStore>(std::make_unique<MemoryStore>(8u << 20),
                                                  BreakerOptions{})};
}

StoreUnderTest open_file_with(const std::function<void(FileStoreOptions&)>& change) {
  auto directory = std::make_shared<TempDirectory>();
  FileStoreOptions options;
  options.path = *directory / "store";
  options.bytes_max = 8u << 20;
  options.disk_free_bytes_min = 0;
  change(options);
  auto store = FileStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  if (!store.ok()) return {};
  return {.surroundings = directory, .store = std::move(*store)};
}

StoreUnderTest open_file() {
  return open_file_with([](FileStoreOptions&) {});
}
StoreUnderTest open_file_alone() {
  return open_file_with([](FileStoreOptions& options) { options.background = false; });
}
StoreUnderTest open_file_synced() {
  return open_file_with([](FileStoreOptions& options) { options.sync_puts = true; });
}

std::string name_of(const testing::TestParamInfo<StoreKind>& kind) { return kind.param.name; }

const StoreKind kMemory{.name = "memory", .open = open_memory};
const StoreKind kNull{.name = "null", .open = open_null, .keeps = false};
const StoreKind kFault{.name = "fault", .open = open_fault};
const StoreKind kBreaker{.name = "breaker", .open = open_breaker};
const StoreKind kFile{.name = "file", .open = open_file};
const StoreKind kFileAlone{.name = "file_without_keeper", .open = open_file_alone};
const StoreKind kFileSynced{.name = "file_synced", .open = open_file_synced};

INSTANTIATE_TEST_SUITE_P(Stores, ObjectStoreSuite,
                         testing::Values(kMemory, kNull, kFault, kBreaker, kFile, kFileAlone,
                                         kFileSynced),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Stores, SizeLimitSuite,
                         testing::Values(kMemory, kFault, kBreaker, kFile, kFileAlone, kFileSynced),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Stores, FullStoreSuite,
                         testing::Values(kMemory, kFault, kBreaker, kFile, kFileAlone, kFileSynced),
                         name_of);

}  // namespace
}  // namespace hitide
