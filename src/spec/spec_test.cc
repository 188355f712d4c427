#include <gtest/gtest.h>

#include <hitide/explanation.h>
#include <hitide/model_spec.h>
#include <hitide/options.h>

#include "spec/layout.h"

namespace hitide {
namespace {

ModelSpec small_model() {
  ModelSpec model;
  model.weights_digest = "abc";
  model.numerics = {"engine=1", "kv=q8_0"};
  PoolSpec pool;
  pool.page_size = 4;
  pool.page_bytes = 64;
  model.pools = {pool};
  return model;
}

TEST(ModelSpec, RefusesWhatDoesNotHold) {
  EXPECT_TRUE(validate(small_model()).ok());
  ModelSpec model = small_model();
  model.pools.clear();
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument);
  model = small_model();
  model.weights_digest.clear();
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument) << "whose pages?";
  model = small_model();
  model.pools.push_back(model.pools[0]);
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument) << "duplicate name";
  model.pools[1].name = "swa";
  EXPECT_TRUE(validate(model).ok());
  model.pools[1].page_size = 8;
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument) << "mixed page sizes";
  model.pools[1].page_size = 4;
  model.pools[1].kind = PoolKind::logical;
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument) << "bytes on a logical pool";
  model.pools[1].page_bytes = 0;
  EXPECT_TRUE(validate(model).ok());
  model.pools[1].index_source = "nowhere";
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument) << "unknown index source";
  model = small_model();
  model.pools[0].name = "Bad Name";
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument);
  model = small_model();
  model.ranks.tp_rank = 1;
  EXPECT_EQ(validate(model).code(), StatusCode::invalid_argument) << "rank out of range";
}

TEST(ModelSpec, IdentityChangesWithEveryFieldThatChangesBytes) {
  const Digest base = identity_digest(small_model());
  ModelSpec model = small_model();
  model.model_name = "another label";
  std::swap(model.numerics[0], model.numerics[1]);
  EXPECT_EQ(identity_digest(model), base) << "label and order of numerics are not identity";
  const auto differs = [&](auto change) {
    ModelSpec changed = small_model();
    change(changed);
    return identity_digest(changed) != base;
  };
  EXPECT_TRUE(differs([](ModelSpec& m) { m.weights_digest = "abd"; }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.numerics = {"engine=1kv=q8_0"}; }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.numerics.push_back(""); }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.pools[0].page_size = 8; }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.pools[0].page_bytes = 65; }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.pools[0].dtype = "f16"; }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.pools[0].name = "kv2"; }));
  EXPECT_TRUE(differs([](ModelSpec& m) { m.ranks.tp_size = 2; }));
}

// The same in every process, on every machine and in every version, or what is stored is lost. Made
// by a program of its own: SHA-256 over the fields in order, each behind its length in 8
// little-endian bytes: hitide-identity, 1, abc, 2, engine=1, kv=q8_0, 1, kv, "3 4 64 0 0 0 0 0 0",
// dtype, index_source (both empty), "1 1 1".
TEST(ModelSpec, K5_B065_TheIdentityIsTheGoldenOne) {
  EXPECT_EQ(identity_digest(small_model()).to_hex(),
            "d5a16cf841f156f4fce298c0b6e87316a21ee2f37144801fa852b9bf8539563e");
}

TEST(PageLayout, SlotHoldsHeaderAndPayloadAligned) {
  const PageLayout layout = page_layout(small_model().anchor());
  EXPECT_EQ(layout.payload_offset, kEnvelopeBytes);
  EXPECT_EQ(layout.object_bytes(), kEnvelopeBytes + 64);
  EXPECT_EQ(layout.stride_bytes, kPageAlignment);
}

TEST(MissReason, EveryReasonHasAMeaning) {
  for (int i = 0; i < kMissReasonCount; ++i) {
    EXPECT_FALSE(meaning(static_cast<MissReason>(i)).empty());
  }
}

TEST(CacheOptions, NamesTheBadOption) {
  CacheOptions options;
  EXPECT_TRUE(validate(options).ok());
  options.storage.backend = "tape";
  EXPECT_NE(validate(options).message().find("hicache-storage-backend"), std::string_view::npos);
  options = CacheOptions();
  options.policy.prefetch_timeout_base_s = -1;
  EXPECT_EQ(validate(options).code(), StatusCode::invalid_argument);
  options.policy.prefetch_timeout_base_s = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(validate(options).code(), StatusCode::invalid_argument);
  options = CacheOptions();
  options.policy.prefetch_occupancy_max = 0;
  EXPECT_EQ(validate(options).code(), StatusCode::invalid_argument);
}

TEST(CacheOptions, NamesTheBadAllocatorAndItsPool) {
  for (const char* kind : {"shm", "mmap", "store"}) {
    CacheOptions options;
    options.host.allocator = kind;
    options.host.pool_allocators = {{"draft", kind}};
    EXPECT_TRUE(validate(options).ok()) << kind;
  }
  for (const char* kind : {"", "none", "malloc"}) {
    CacheOptions options;
    options.host.pool_allocators = {{"draft", kind}};
    EXPECT_NE(validate(options).message().find("draft="), std::string_view::npos) << kind;
    options = {};
    options.host.allocator = kind;
    EXPECT_EQ(validate(options).code(), StatusCode::invalid_argument) << kind;
  }
}

TEST(CacheOptions, MooncakesAreLookedAtWhereItIsUsed) {
  CacheOptions options;
  options.storage.mooncake.protocol = "pigeon";
  EXPECT_TRUE(validate(options).ok());
  options.storage.backend = "mooncake";
  EXPECT_NE(validate(options).message().find("protocol"), std::string_view::npos);
}

}  // namespace
}  // namespace hitide
