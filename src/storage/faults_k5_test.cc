// faults.md K5: pages that are found under a key which does not say all that they depend on.
// Elsewhere: what requests differ in (adapters, salts) in cache/namespace_test.cc, attaching and
// clearing under a cache in runtime/attach_test.cc, keys in other processes in
// tests/python/test_cli.py.
#include <filesystem>
#include <functional>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <hitide/file_store.h>
#include <hitide/page_hash.h>

#include "storage/file/file_store.h"
#include "storage/memory/memory_store.h"
#include "storage/page_store.h"
#include "tests/conformance/store_kind.h"  // tidy: allow-include which stores these tests run over
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

using Codes = std::vector<StatusCode>;
constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;
constexpr std::size_t kPages = 3;

std::unique_ptr<FileStore> open_at(const std::string& path) {
  FileStoreOptions options;
  options.path = path;
  options.bytes_max = 16u << 20;
  options.segment_bytes = 1u << 20;
  options.disk_free_bytes_min = 0;
  auto store = FileStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? std::move(*store) : nullptr;
}

StoreUnderTest open_memory() {
  return {.surroundings = nullptr, .store = std::make_unique<MemoryStore>(16u << 20)};
}
StoreUnderTest open_file() {
  auto directory = std::make_shared<TempDirectory>();
  auto store = open_at(*directory / "store");
  return {.surroundings = directory, .store = std::move(store)};
}

// 8 heads of one rank, 4 tokens a page.
ModelSpec model_a() {
  ModelSpec model;
  model.model_name = "served";
  model.weights_digest = "weights of a";
  model.numerics = {"engine=1", "kv_type=bf16"};
  PoolSpec pool;
  pool.kind = PoolKind::mha;
  pool.page_size = 4;
  pool.page_bytes = 1024;
  pool.layers = 2;
  pool.heads = 8;
  pool.head_dim = 8;
  pool.dtype = "bf16";
  model.pools = {pool};
  return model;
}

std::vector<PageKey> chain(std::uint32_t page_size, std::size_t pages, std::string_view salt = {}) {
  std::vector<std::int64_t> tokens(page_size * pages);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(100 + i);
  PageHashOptions options;
  options.page_size = page_size;
  if (!salt.empty()) options.cache_salt = salt;
  return page_hashes(tokens, options).value();
}

// One owner's pages in a store that others use too. Its bytes are its own: they are a function of
// who it is and of the page.
class Owner {
 public:
  Owner(ObjectStore& store, const ModelSpec& model, std::string who)
      : model_(model), pages_(store, model), who_(std::move(who)) {}

  Codes store(std::span<const PageKey> keys, std::uint32_t pool = 0) {
    Slots slots = make(keys, pool, true);
    Codes codes(keys.size(), StatusCode::internal);
    EXPECT_TRUE(pages_.store(slots.pages, codes, {}).status.ok());
    return codes;
  }
  // Wrong bytes are turned into `internal`.
  Codes load(std::span<const PageKey> keys, std::uint32_t pool = 0) {
    Slots slots = make(keys, pool, false);
    Codes codes(keys.size(), StatusCode::internal);
    pages_.load(slots.pages, codes, {}).status.ignore();
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto want = bytes(keys[i], pool);
      const auto have = std::span(slots.memory[i]).subspan(kEnvelopeBytes);
      if (codes[i] == kOk && !std::equal(want.begin(), want.end(), have.begin(), have.end())) {
        codes[i] = StatusCode::internal;
      }
    }
    return codes;
  }
  std::uint32_t found(std::span<const PageKey> keys) {
    PrefixStops stops;
    EXPECT_TRUE(pages_.exists_prefix(keys, stops, {}).status.ok());
    return stops.longest();
  }
  std::string object_key(const PageKey& key, std::uint32_t pool = 0) const {
    return pages_.keys().object_key(key, model_.pools[pool].name);
  }
  std::size_t object_bytes(std::uint32_t pool = 0) const {
    return page_layout(model_.pools[pool]).object_bytes();
  }
  Result<std::uint64_t> clear() { return pages_.clear({}); }
  std::string name_space() const { return identity_digest(model_).to_hex(); }

 private:
  struct Slots {
    std::vector<std::vector<std::byte>> memory;
    std::vector<PageSlot> pages;
  };
  std::vector<std::byte> bytes(const PageKey& key, std::uint32_t pool) const {
    return bytes_of(who_ + key.to_hex() + model_.pools[pool].name, model_.pools[pool].page_bytes);
  }
  Slots make(std::span<const PageKey> keys, std::uint32_t pool, bool filled) const {
    Slots slots;
    slots.memory.assign(keys.size(), std::vector<std::byte>(object_bytes(pool), std::byte{0xdd}));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto content = bytes(keys[i], pool);
      const auto at = slots.memory[i].begin() + kEnvelopeBytes;
      if (filled) std::copy(content.begin(), content.end(), at);
      slots.pages.push_back({.key = keys[i], .slot = slots.memory[i], .pool = pool});
    }
    return slots;
  }

  const ModelSpec model_;
  PageStore pages_;
  const std::string who_;
};

struct Difference {
  std::string name;
  std::function<void(ModelSpec&)> make;
};

class FaultsK5 : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    under_test_ = GetParam().open();
    ASSERT_NE(under_test_.store, nullptr);
  }
  ObjectStore& store() { return *under_test_.store; }

  // Under the same page keys, which is stricter than it comes: those of other page sizes differ.
  void expect_miss_both_ways(const Difference& difference) {
    SCOPED_TRACE(difference.name);
    ModelSpec other = model_a();
    difference.make(other);
    ASSERT_TRUE(validate(other).ok()) << validate(other).to_string();
    const std::vector<PageKey> keys = chain(4, kPages);
    Owner a(store(), model_a(), "a");
    a.store(keys);
    Owner b(store(), other, "b: " + difference.name);
    EXPECT_EQ(b.found(keys), 0u);
    EXPECT_EQ(b.load(keys), Codes(kPages, kMiss));
    EXPECT_EQ(b.store(keys), Codes(kPages, kOk));
    EXPECT_EQ(b.load(keys), Codes(kPages, kOk)) << "its own";
    EXPECT_EQ(a.load(keys), Codes(kPages, kOk)) << "what was there stays as it was";
    EXPECT_EQ(*b.clear(), kPages);
    EXPECT_EQ(a.found(keys), kPages) << "a clear takes its own pages alone";
  }

  StoreUnderTest under_test_;
};

INSTANTIATE_TEST_SUITE_P(Stores, FaultsK5,
                         testing::Values(StoreKind{.name = "memory", .open = open_memory},
                                         StoreKind{.name = "file", .open = open_file}),
                         [](const auto& kind) { return kind.param.name; });

// Each single difference is a miss, also where an object is as long as the other's.
TEST_P(FaultsK5, B059OtherWeightsNumericsOrGeometryMiss) {
  const std::vector<Difference> differences = {
      {"weights", [](ModelSpec& m) { m.weights_digest = "weights of b"; }},
      {"quantisation", [](ModelSpec& m) { m.numerics[1] = "kv_type=q8_0"; }},
      {"engine", [](ModelSpec& m) { m.numerics[0] = "engine=2"; }},
      {"a number more", [](ModelSpec& m) { m.numerics.push_back("rope=1"); }},
      {"page size", [](ModelSpec& m) { m.pools[0].page_size = 8; }},
      {"page size and bytes",
       [](ModelSpec& m) {
         m.pools[0].page_size = 8;
         m.pools[0].page_bytes = 2048;
       }},
      {"layout of the layers", [](ModelSpec& m) { m.pools[0].kind = PoolKind::packed; }},
      {"heads", [](ModelSpec& m) { m.pools[0].heads = 4; }},
      {"heads for values",
       [](ModelSpec& m) {
         m.pools[0].heads = 4;
         m.pools[0].head_dim = 16;
       }},
      {"layers", [](ModelSpec& m) { m.pools[0].layers = 4; }},
      {"name of the pool", [](ModelSpec& m) { m.pools[0].name = "draft"; }},
  };
  for (const Difference& difference : differences) expect_miss_both_ways(difference);
}

// A label is none: the same weights under another name are the same pages.
TEST_P(FaultsK5, B059TheServedNameIsNoIdentity) {
  const std::vector<PageKey> keys = chain(4, kPages);
  Owner(store(), model_a(), "a").store(keys);
  ModelSpec renamed = model_a();
  renamed.model_name = "another";
  EXPECT_EQ(Owner(store(), renamed, "a").load(keys), Codes(kPages, kOk));
}

// Of equal size: half as wide, twice as many tokens.
TEST_P(FaultsK5, B060AnotherTypeOfTheValuesMisses) {
  expect_miss_both_ways({"fp8, half the bytes", [](ModelSpec& m) {
                           m.pools[0].dtype = "fp8";
                           m.pools[0].page_bytes = 512;
                         }});
  expect_miss_both_ways({"fp8, the same bytes", [](ModelSpec& m) {
                           m.pools[0].dtype = "fp8";
                           m.pools[0].page_size = 8;
                         }});
  expect_miss_both_ways({"fp8, nothing else", [](ModelSpec& m) { m.pools[0].dtype = "fp8"; }});
}

// The weights change under a name that stays; a model that does not say its weights is none.
TEST_P(FaultsK5, B061EveryUpdateOfTheWeightsHasPagesOfItsOwn) {
  const std::vector<PageKey> keys = chain(4, kPages);
  for (const char* version : {"v0", "v1", "v2"}) {
    ModelSpec model = model_a();
    model.weights_digest = version;
    Owner owner(store(), model, version);
    EXPECT_EQ(owner.found(keys), 0u) << version;
    EXPECT_EQ(owner.load(keys), Codes(kPages, kMiss)) << version;
    EXPECT_EQ(owner.store(keys), Codes(kPages, kOk));
    EXPECT_EQ(owner.load(keys), Codes(kPages, kOk));
  }
  ModelSpec unnamed = model_a();
  unnamed.weights_digest = "";
  EXPECT_EQ(validate(unnamed).code(), StatusCode::invalid_argument);
  EXPECT_NE(validate(unnamed).message().find("weights_digest"), std::string::npos);
}

// 8 heads on one rank; 4 heads on each of two, and twice as many tokens in a page as long.
TEST_P(FaultsK5, B063AnotherNumberOfRanksMisses) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto halve = [rank](ModelSpec& m) {
      m.ranks.tp_size = 2;
      m.ranks.tp_rank = rank;
      m.pools[0].heads = 4;
      m.pools[0].page_size = 8;
    };
    expect_miss_both_ways({"tp " + std::to_string(rank), halve});
  }
  expect_miss_both_ways({"tp alone", [](ModelSpec& m) { m.ranks.tp_size = 2; }});
  expect_miss_both_ways({"pp alone", [](ModelSpec& m) { m.ranks.pp_size = 2; }});
  expect_miss_both_ways({"cp alone", [](ModelSpec& m) { m.ranks.cp_size = 2; }});
}

// The rank is the end of an object's name. It is in no page's key, so the chain is every rank's.
TEST_P(FaultsK5, B067TheRankIsASuffixAndNoPartOfTheChain) {
  const std::vector<PageKey> keys = chain(4, kPages);
  std::vector<ModelSpec> models(2, model_a());
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    models[rank].ranks.tp_size = 2;
    models[rank].ranks.tp_rank = rank;
  }
  Owner first(store(), models[0], "rank 0");
  Owner second(store(), models[1], "rank 1");
  EXPECT_EQ(first.store(keys), Codes(kPages, kOk));
  EXPECT_EQ(second.found(keys), 0u);
  EXPECT_EQ(second.store(keys), Codes(kPages, kOk));
  std::set<std::string> names;
  for (const PageKey& key : keys) {
    EXPECT_EQ(exists_object(store(), first.object_key(key)), kOk);
    EXPECT_EQ(exists_object(store(), second.object_key(key)), kOk);
    EXPECT_EQ(first.object_key(key), first.name_space() + "/" + key.to_hex() + "/kv.t0-p0-c0");
    EXPECT_EQ(second.object_key(key), first.name_space() + "/" + key.to_hex() + "/kv.t1-p0-c0");
    names.insert({first.object_key(key), second.object_key(key)});
  }
  EXPECT_EQ(names.size(), 2 * kPages);
  EXPECT_EQ(first.load(keys), Codes(kPages, kOk));
  EXPECT_EQ(second.load(keys), Codes(kPages, kOk));
}

// Small pages under a large one: 3 of 4 are there, then all, then their bytes lie where the large
// page would. None of it is a large page.
TEST_P(FaultsK5, B069SmallPagesAreNoEvidenceForALargeOne) {
  ModelSpec large = model_a();
  large.pools[0].page_size = 16;
  large.pools[0].page_bytes = 4096;
  const std::vector<PageKey> small_keys = chain(4, 4);
  const std::vector<PageKey> large_keys = chain(16, 1);
  Owner small(store(), model_a(), "small");
  Owner reader(store(), large, "large");
  for (const std::size_t there : {3u, 4u}) {
    small.store(std::span(small_keys).first(there));
    EXPECT_EQ(reader.found(large_keys), 0u);
    EXPECT_EQ(reader.load(large_keys), Codes(1, kMiss));
  }
  // An object says its own extent: a piece, and four pieces in a row, are damage.
  std::vector<std::byte> pieces;
  for (const PageKey& key : small_keys) {
    StatusCode code = StatusCode::internal;
    const auto object = get_object(store(), small.object_key(key), small.object_bytes(), code);
    ASSERT_EQ(code, kOk);
    pieces.insert(pieces.end(), object.begin(), object.end());
  }
  pieces.resize(reader.object_bytes(), std::byte{0});
  for (const std::size_t size : {small.object_bytes(), pieces.size()}) {
    ASSERT_EQ(remove_object(store(), reader.object_key(large_keys[0])), kOk);
    const auto planted = std::span<const std::byte>(pieces).first(size);
    ASSERT_EQ(put_object(store(), reader.object_key(large_keys[0]), planted), kOk);
    EXPECT_EQ(Owner(store(), large, "large").load(large_keys), Codes(1, StatusCode::data_loss));
  }
}

// A page of four objects, of which every subset is there, from two writers of the same model;
// reuse ends at the last page that is whole. A writer of another model adds nothing to it.
TEST_P(FaultsK5, B069ReuseEndsAtTheLastWholePage) {
  ModelSpec model = model_a();
  for (const char* name : {"p1", "p2", "p3"}) {
    model.pools.push_back(model.pools[0]);
    model.pools.back().name = name;
    model.pools.back().index_source = "kv";
  }
  ModelSpec other = model;
  other.weights_digest = "weights of b";
  const std::vector<PageKey> keys = chain(4, kPages);
  for (unsigned there = 0; there < 16; ++there) {
    SCOPED_TRACE(there);
    Owner first(store(), model, "a");
    Owner second(store(), model, "a");
    Owner stranger(store(), other, "b");
    // Side pools before the anchor, which is committed once they are there.
    for (std::uint32_t pool = 4; pool-- > 0;) {
      EXPECT_EQ((pool % 2 == 0 ? first : second).store(keys, pool), Codes(kPages, kOk));
      EXPECT_EQ(stranger.store(keys, pool), Codes(kPages, kOk));
    }
    for (std::uint32_t pool = 0; pool < 4; ++pool) {
      if ((there & (1u << pool)) == 0) {
        ASSERT_EQ(remove_object(store(), first.object_key(keys[1], pool)), kOk);
      }
    }
    EXPECT_EQ(first.found(keys), there == 15 ? 3u : 1u);
    for (std::uint32_t pool = 0; pool < 4; ++pool) {
      const bool held = (there & (1u << pool)) != 0;
      EXPECT_EQ(first.load(keys, pool), (Codes{kOk, held ? kOk : kMiss, kOk}));
    }
    ASSERT_TRUE(first.clear().ok());
    ASSERT_TRUE(stranger.clear().ok());
  }
}

// ---- files --------------------------------------------------------------------------------------

class FaultsK5Files : public testing::Test {
 protected:
  FaultsK5Files() { store_ = open_at(path_); }
  void restart() {
    store_.reset();
    store_ = open_at(path_);
  }
  TempDirectory directory_;
  const std::string path_ = directory_ / "store";
  std::unique_ptr<FileStore> store_;
};

// Two tenants' pages of the same tokens, with bytes of their own; one is deleted.
TEST_F(FaultsK5Files, B055TenantsAreIndependentOverARestart) {
  const std::vector<PageKey> of_a = chain(4, kPages, "a");
  const std::vector<PageKey> of_b = chain(4, kPages, "b");
  const std::vector<PageKey> of_none = chain(4, kPages);
  {
    Owner a(*store_, model_a(), "a"), b(*store_, model_a(), "b"), none(*store_, model_a(), "");
    EXPECT_EQ(a.store(of_a), Codes(kPages, kOk));
    EXPECT_EQ(b.store(of_b), Codes(kPages, kOk));
    EXPECT_EQ(none.store(of_none), Codes(kPages, kOk));
    EXPECT_EQ(a.load(of_a), Codes(kPages, kOk));
    EXPECT_EQ(b.load(of_b), Codes(kPages, kOk));
    for (const PageKey& key : of_a) EXPECT_EQ(remove_object(*store_, a.object_key(key)), kOk);
  }
  restart();
  EXPECT_EQ(Owner(*store_, model_a(), "a").load(of_a), Codes(kPages, kMiss));
  EXPECT_EQ(Owner(*store_, model_a(), "b").load(of_b), Codes(kPages, kOk));
  EXPECT_EQ(Owner(*store_, model_a(), "").load(of_none), Codes(kPages, kOk));
}

TEST_F(FaultsK5Files, B059TheStoreListsTheIdentitiesThatItHolds) {
  ModelSpec other = model_a();
  other.weights_digest = "weights of b";
  Owner a(*store_, model_a(), "a"), b(*store_, other, "b");
  a.store(chain(4, 3));
  b.store(chain(4, 2));
  const auto contents = inspect_file_store(path_);
  ASSERT_TRUE(contents.ok()) << contents.status().to_string();
  ASSERT_EQ(contents->namespaces.size(), 2u);
  EXPECT_EQ(contents->namespaces[0].name, a.name_space());
  EXPECT_EQ(contents->namespaces[0].pages, 3u);
  EXPECT_EQ(contents->namespaces[1].name, b.name_space());
  EXPECT_EQ(contents->namespaces[1].pages, 2u);
}

// Two ranks clear at once while the files vanish under them.
TEST_F(FaultsK5Files, B061TwoClearsAtOnceTolerateWhatIsGone) {
  std::vector<ModelSpec> models(2, model_a());
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    models[rank].ranks.tp_size = 2;
    models[rank].ranks.tp_rank = rank;
  }
  Owner first(*store_, models[0], "rank 0");
  Owner second(*store_, models[1], "rank 1");
  const std::vector<PageKey> keys = chain(4, 200);
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    ASSERT_EQ(first.store(keys), Codes(keys.size(), kOk));
    ASSERT_EQ(second.store(keys), Codes(keys.size(), kOk));
    std::latch start(3);
    Result<std::uint64_t> cleared[2] = {0ul, 0ul};
    const auto clear = [&](Owner& owner, Result<std::uint64_t>& answer) {
      start.arrive_and_wait();
      answer = owner.clear();
    };
    std::thread one(clear, std::ref(first), std::ref(cleared[0]));
    std::thread two(clear, std::ref(second), std::ref(cleared[1]));
    start.arrive_and_wait();
    for (const auto& segment : list_segments(path_)) {
      std::error_code ignored;
      std::filesystem::remove(segment_path(path_, segment.number), ignored);
    }
    one.join();
    two.join();
    for (const auto& answer : cleared) {
      ASSERT_TRUE(answer.ok()) << answer.status().to_string();
      EXPECT_LE(*answer, 2 * keys.size());
    }
    EXPECT_EQ(first.found(keys), 0u);
    EXPECT_EQ(second.load(keys), Codes(keys.size(), kMiss));
  }
}

}  // namespace
}  // namespace hitide
