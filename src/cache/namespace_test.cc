// Adapters and cache salts: two requests that differ in one of them never share a page, in any
// tier, whatever the two are made of.
#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <hitide/page_hash.h>

#include "tests/support/core_world_setup.h"

namespace hitide {
namespace {

using Text = std::optional<std::string>;
struct Tenant {
  Text adapter;
  Text salt;
};

// One field as the encodings of keys and of the tree write it.
std::string field(const std::string& text) {
  std::string out = "\1";
  const std::uint64_t size = text.size();
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  return out + text;
}

std::vector<Tenant> hostile_tenants() {
  using namespace std::string_literals;
  const std::string composed = "\u00e9";     // one letter,
  const std::string decomposed = "e\u0301";  // and the same in two
  std::vector<Tenant> tenants = {
      {{}, {}},
      {"", {}},  // an empty adapter is one
      {{}, "a"},
      {"a", {}},
      {"a", "a"},
      {"ab", "c"},
      {"a", "bc"},
      {"abc", {}},
      {{}, "abc"},
      {"", "abc"},
      {{}, "\0"s},  // embedded NUL
      {{}, "\0\0"s},
      {{}, "a\0"s},
      {{}, "a\0b"s},
      {"a\0b"s, {}},
      {"a", "\0b"s},
      {{}, " a"},
      {{}, "a "},
      {{}, "A"},
      {{}, composed},
      {{}, decomposed},
      {{}, "\xff\xfe"},  // no UTF-8
      {{}, "a@b"},
      {{}, "a/b"},
      {{}, "../a"},
      {{}, "none"},
      {{}, "null"},
      {{}, std::string(128, 'x')},
      {{}, std::string(254, 'x')},
      {{}, std::string(255, 'x')},
      {{}, std::string(256, 'x')},
      {{}, std::string(4096, 'x')},
      {{}, std::string(kNamespaceBytesMax, 'x')},
  };
  // Made to look like the encoding of others.
  tenants.push_back({{}, field("a")});
  tenants.push_back({field("a"), {}});
  tenants.push_back({"\0"s + field("a"), {}});
  tenants.push_back({{}, "\0"s + field("a")});
  tenants.push_back({"a", field("a")});
  tenants.push_back({"a" + field("a"), {}});
  tenants.push_back({{}, "sglang-cache-namespace-v1"s + field("a") + "\0"s});
  return tenants;
}

// Adapter and salt are fields of their own: what differs in one of them differs from the first page
// on, also where another field says the same.
TEST(Namespaces, K5_B051_EveryHostilePairHasAnEncodingASeedAndKeysOfItsOwn) {
  std::set<std::string> encodings;
  std::set<std::optional<PageKey>> seeds;
  std::set<PageKey> keys;
  const std::vector<std::int64_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const Tenant& tenant : hostile_tenants()) {
    encodings.insert(Namespace{tenant.adapter, tenant.salt}.encode());
    seeds.insert(namespace_seed(tenant.adapter, tenant.salt));
    PageHashOptions options;
    options.page_size = 4;
    if (tenant.adapter) options.extra_key = *tenant.adapter;
    if (tenant.salt) options.cache_salt = *tenant.salt;
    const auto hashes = page_hashes(tokens, options);
    ASSERT_TRUE(hashes.ok()) << hashes.status().to_string();
    for (const PageKey& key : *hashes) keys.insert(key);
  }
  EXPECT_EQ(encodings.size(), hostile_tenants().size());
  EXPECT_EQ(seeds.size(), hostile_tenants().size());
  EXPECT_EQ(keys.size(), 2 * hostile_tenants().size());
}

// Stored under each, asked under each; and each lets go of its own pages, and of no others.
TEST(Namespaces, K5_B049_B053_ATenantFindsItsOwnPagesInEveryTierAndNoOthers) {
  const std::vector<Tenant> tenants = hostile_tenants();
  WorldOptions options = small_world();
  options.core.host_pages = 400;
  const Tokens prompt = sequence_of(21);
  CoreWorld world(options);
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tenant " << i);
    EXPECT_EQ(world.run_as(tenants[i].adapter, tenants[i].salt, prompt)[2], 0u)
        << "nobody's pages are in storage under this name";
    EXPECT_EQ(world.last_explanation().served_tokens(), 0u);
    EXPECT_EQ(world.run_as(tenants[i].adapter, tenants[i].salt, prompt)[0], 20u);
    EXPECT_EQ(world.core().tree().pinned_pages(Tier::device), 0u);
    EXPECT_EQ(world.core().tree().pinned_pages(Tier::host), 0u);
  }
  EXPECT_EQ(world.stored_pages(), 5 * tenants.size());
  // From the host, where most are by now, and then from storage: the content tells whose they are.
  for (const Tenant& tenant : tenants) {
    world.run_as(tenant.adapter, tenant.salt, prompt);
    EXPECT_EQ(world.last_explanation().served_tokens(), 20u);
  }
  world.flush();
  for (const Tenant& tenant : tenants) {
    EXPECT_EQ(world.run_as(tenant.adapter, tenant.salt, prompt)[2], 20u);
  }
  EXPECT_WORLD_OK(world);
}

TEST(Namespaces, K5_B055_OneTenantsPagesCanGoWithoutAnothers) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(21);
  world.run_as({}, "a", prompt);
  const auto stored = world.take_storage();
  world.run_as({}, "b", prompt);
  world.flush();
  EXPECT_EQ(world.run_as({}, "a", prompt)[2], 0u);
  world.flush();
  world.take_storage();
  world.give_storage(stored);
  EXPECT_EQ(world.run_as({}, "b", prompt)[2], 0u);
  EXPECT_EQ(world.run_as({}, "a", prompt)[2], 20u);
  EXPECT_WORLD_OK(world);
}

TEST(Namespaces, AnEmptySaltIsNone) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(21);
  world.run_as({}, {}, prompt);
  EXPECT_EQ(world.run_as({}, "", prompt)[0], 20u);
  EXPECT_WORLD_OK(world);
}

TEST(Namespaces, K5_B057_WhatIsTooLongIsRefusedByName) {
  CoreWorld world(small_world());
  const Tokens prompt = sequence_of(21);
  const std::string text(kNamespaceBytesMax + 1, 'x');
  for (const bool salt : {false, true}) {
    PrefixRequest request;
    request.tokens = prompt;
    (salt ? request.cache_salt : request.extra_key) = text;
    Plan plan;
    const Status status = world.core().open(request, world.now(), plan).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(salt ? "cache_salt" : "extra_key"), std::string::npos);
    EXPECT_NE(status.message().find("8192"), std::string::npos) << status.to_string();
  }
  EXPECT_EQ(world.core().requests_open(), 0u);
}

// The keys of requests without a namespace are those of stores that were filled before there were
// any.
TEST(Namespaces, K5_B049_B055_NoNamespaceIsNoSeed) {
  EXPECT_FALSE(namespace_seed({}, {}).has_value());
  EXPECT_FALSE(namespace_seed({}, "").has_value());
  EXPECT_TRUE(namespace_seed("", {}).has_value());
}

}  // namespace
}  // namespace hitide
