// PageStore over the pools of synthetic models, on the stores of this layer.
#include "base/random.h"
#include "storage/file/file_store.h"
#include "storage/memory/memory_store.h"
#include "tests/conformance/page_store_suite.h"  // tidy: allow-include the suite is shared
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

StoreUnderTest open_memory() {
  return {.surroundings = nullptr, .store = std::make_unique<MemoryStore>(64u << 20)};
}

StoreUnderTest open_file() {
  auto directory = std::make_shared<TempDirectory>();
  FileStoreOptions options;
  options.path = *directory / "store";
  options.bytes_max = 64u << 20;
  options.disk_free_bytes_min = 0;
  auto store = FileStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  if (!store.ok()) return {};
  return {.surroundings = directory, .store = std::move(*store)};
}

INSTANTIATE_TEST_SUITE_P(Stores, PageStoreSuite,
                         testing::Values(StoreKind{.name = "memory", .open = open_memory},
                                         StoreKind{.name = "file", .open = open_file}),
                         [](const auto& kind) { return kind.param.name; });

// K2 B017: nothing is divided by the bytes of an anchor that has none.
TEST(PageStoreOverFileTest, K2_B017_AnAnchorOfNoBytesDividesNothing) {
  const TempDirectory directory;
  FileStoreOptions options;
  options.path = directory / "store";
  options.bytes_max = 1u << 20;
  options.disk_free_bytes_min = 0;
  auto store = FileStore::open(options);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {synthetic_pool("kv", 0, ""), synthetic_pool("c4", 1000, "kv")};
  PageStore pages(**store, model);
  EXPECT_EQ(page_layout(model.pools[0]).payload_bytes, 0u);
  std::vector<PagePart> parts;
  parts.push_back(synthetic_part(model.pools[0], 0, 8));
  parts.push_back(synthetic_part(model.pools[1], 0, 8));
  EXPECT_TRUE(pages.store(views_of(parts), {}).status.ok());
  PrefixStops stops;
  EXPECT_TRUE(pages.exists_prefix(parts[0].keys, stops, {}).status.ok());
  EXPECT_EQ(stops.longest(), 8u);
}

class PageStoreOverMemory : public PageStoreSuite {};
INSTANTIATE_TEST_SUITE_P(Stores, PageStoreOverMemory,
                         testing::Values(StoreKind{.name = "memory", .open = open_memory}),
                         [](const auto& kind) { return kind.param.name; });

// Random losses: what is announced as restorable is there, and nothing restorable is held back.
TEST_P(PageStoreOverMemory, StopPointsAgreeWithTheirDefinition) {
  const std::uint64_t seed = 4711;
  SCOPED_TRACE(seed);
  Random random(seed);
  constexpr int kPages = 8;
  for (int round = 0; round < 300; ++round) {
    use(round % 2 == 0);
    for (int end = 1; end <= kPages; ++end) store_all(0, end);
    for (std::uint64_t i = 0; i < random.next() % 4; ++i) {
      const int page = static_cast<int>(random.next() % kPages);
      const auto which = static_cast<std::uint32_t>(random.next() % 4);
      remove_object(inner(), object_key(page, which));
    }
    const PrefixStops answer = stops(kPages);
    for (int end = 1; end <= kPages; ++end) {
      bool want = true;
      for (int page = 0; page < end; ++page) {
        want = want && present(page, kKv) && present(page, kC4);
        if (page >= end - static_cast<int>(kWindow)) want = want && present(page, kSwa);
      }
      ASSERT_EQ(answer.codes[static_cast<std::size_t>(end - 1)] == kOk, want)
          << round << " " << end;
    }
  }
}

}  // namespace
}  // namespace hitide
