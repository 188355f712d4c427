#include "prefix/page_hasher.h"

#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/random.h"

namespace hitide {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json json = [] {
    std::ifstream file(std::string(HITIDE_SOURCE_DIR) + "/tests/golden/sglang/page_keys.json");
    return Json::parse(file);
  }();
  return json;
}

std::vector<std::int64_t> token_list(const std::string& reference) {
  const std::size_t bracket = reference.find('[');
  std::vector<std::int64_t> tokens =
      golden()["token_lists"][reference.substr(0, bracket)].get<std::vector<std::int64_t>>();
  if (bracket != std::string::npos) {  // name[n:]
    const std::size_t from = std::stoul(reference.substr(bracket + 1));
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(from));
  }
  return tokens;
}

PageKey key_of(const std::string& hex) {
  PageKey key;
  EXPECT_TRUE(from_hex(hex, key.bytes)) << hex;
  return key;
}

std::optional<std::string> text_field(const Json& entry, const char* name) {
  if (!entry.contains(name) || entry[name].is_null()) return std::nullopt;
  return entry[name].get<std::string>();
}

TEST(PageHasherGolden, ChainsAreThoseOfSglang) {
  ASSERT_EQ(golden()["page_hashes"].size(), 14u);
  for (const Json& entry : golden()["page_hashes"]) {
    SCOPED_TRACE(entry.dump().substr(0, 120));
    std::vector<std::int64_t> tokens = token_list(entry["tokens"].get<std::string>());
    if (entry.contains("n_tokens")) tokens.resize(entry["n_tokens"].get<std::size_t>());
    PageHashOptions options;
    options.page_size = entry["page_size"].get<std::uint32_t>();
    const auto extra_key = text_field(entry, "extra_key");
    const auto cache_salt = text_field(entry, "cache_salt");
    options.extra_key = extra_key;
    options.cache_salt = cache_salt;
    if (entry.contains("prior_hash")) options.parent = key_of(entry["prior_hash"]);
    if (entry.value("bigram", false)) {
      options.bigram = true;
      tokens.resize(entry["logical_len"].get<std::size_t>() + 1);
    }
    if (entry.contains("seed")) {
      const PageKey digest = namespace_digest(options.extra_key, options.cache_salt);
      EXPECT_EQ(digest.to_hex(), entry["seed"].get<std::string>());
    }
    const auto keys = page_hashes(tokens, options);
    ASSERT_TRUE(keys.ok()) << keys.status().to_string();
    const auto expected = entry["hashes"].get<std::vector<std::string>>();
    ASSERT_GE(keys->size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ((*keys)[i].to_hex(), expected[i]) << "page " << i;
    }
  }
}

TEST(PageHasherGolden, WholeRunsAreThoseOfSglang) {
  ASSERT_EQ(golden()["whole_run_hash"].size(), 6u);
  for (const auto& [name, hash] : golden()["whole_run_hash"].items()) {
    const auto key = whole_run_hash(token_list(name));
    ASSERT_TRUE(key.ok()) << name;
    EXPECT_EQ(key->to_hex(), hash.get<std::string>()) << name;
  }
}

TEST(PageHasherGolden, EventIdsAreThoseOfSglang) {
  ASSERT_EQ(golden()["event_ids"].size(), 4u);
  for (const Json& entry : golden()["event_ids"]) {
    EXPECT_EQ(event_id(key_of(entry[0])), entry[1].get<std::int64_t>());
  }
}

TEST(PageHasher, EmptyRunHashesToTheDigestOfNothing) {
  const auto key = whole_run_hash({});
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(PageHasher, RefusesWhatHasNoKey) {
  const auto code = [](std::vector<std::int64_t> tokens, const PageHashOptions& options) {
    return page_hashes(tokens, options).status().code();
  };
  PageHashOptions options;
  options.page_size = 1;
  EXPECT_EQ(code({4294967295}, options), StatusCode::ok);
  EXPECT_EQ(code({-1}, options), StatusCode::invalid_argument);
  EXPECT_EQ(code({7, 4294967296}, options), StatusCode::invalid_argument);
  const auto wrong = page_hashes(std::vector<std::int64_t>{7, 4294967296}, options);
  EXPECT_NE(wrong.status().message().find("4294967296"), std::string_view::npos);
  EXPECT_NE(wrong.status().message().find("position 1"), std::string_view::npos);
  EXPECT_FALSE(whole_run_hash(std::vector<std::int64_t>{-5}).ok());
  options.page_size = 0;
  EXPECT_EQ(code({1}, options), StatusCode::invalid_argument);
  options.page_size = 1;
  options.parent = PageKey{};
  EXPECT_EQ(code({1}, options), StatusCode::ok);
  options.cache_salt = "";
  EXPECT_EQ(code({1}, options), StatusCode::invalid_argument);
}

TEST(PageHasher, PartialPagesHaveNoKey) {
  PageHasher hasher(4);
  std::vector<PageKey> keys;
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7};
  for (const std::size_t count : {0, 1, 3}) {
    hasher.extend(nullptr, std::span(tokens).first(count), keys);
    EXPECT_TRUE(keys.empty()) << count;
  }
  hasher.extend(nullptr, std::span(tokens), keys);
  EXPECT_EQ(keys.size(), 1u);
  // Pairs: 5 ids make 4 places.
  std::vector<PageKey> pairs;
  hasher.extend_bigram(nullptr, std::span(tokens).first(4), pairs);
  EXPECT_TRUE(pairs.empty());
  hasher.extend_bigram(nullptr, std::span(tokens).first(5), pairs);
  EXPECT_EQ(pairs.size(), 1u);
  EXPECT_NE(pairs, keys);
}

std::vector<TokenId> random_tokens(Random& random, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(1u << 31));
  return tokens;
}

// A chain built in any steps is the chain built at once; the int32, uint32 and int64 entries agree.
TEST(PageHasher, IncrementalChainsEqualWholeOnes) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto page_size = static_cast<std::uint32_t>(1 + random.below(200));
    const std::vector<TokenId> tokens = random_tokens(random, random.below(3000));
    const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
    PageHashOptions options;
    options.page_size = page_size;
    if (random.chance(0.5)) options.cache_salt = "tenant";
    options.bigram = random.chance(0.5);
    const auto whole = page_hashes(wide, options);
    ASSERT_TRUE(whole.ok());

    PageHasher hasher(page_size);
    const auto root = namespace_seed(options.extra_key, options.cache_salt);
    std::vector<PageKey> keys;
    std::size_t done = 0;  // places
    while (keys.size() < whole->size()) {
      const PageKey* parent = keys.empty() ? (root ? &*root : nullptr) : &keys.back();
      const std::size_t pages = 1 + random.below(whole->size() - keys.size());
      const std::size_t places = pages * page_size;
      if (options.bigram) {
        hasher.extend_bigram(parent, std::span(tokens).subspan(done, places + 1), keys);
      } else {
        hasher.extend(parent, std::span(tokens).subspan(done, places), keys);
      }
      done += places;
    }
    EXPECT_EQ(keys, *whole);
  }
}

TEST(PageHasher, KeysDependOnEveryTokenBefore) {
  Random random(11);
  std::vector<TokenId> tokens = random_tokens(random, 64);
  PageHasher hasher(16);
  std::vector<PageKey> keys;
  hasher.extend(nullptr, std::span<const TokenId>(tokens), keys);
  for (std::size_t changed = 0; changed < tokens.size(); ++changed) {
    tokens[changed] ^= 1;
    std::vector<PageKey> other;
    hasher.extend(nullptr, std::span<const TokenId>(tokens), other);
    for (std::size_t page = 0; page < keys.size(); ++page) {
      EXPECT_EQ(keys[page] == other[page], page < changed / 16) << changed << " " << page;
    }
    tokens[changed] ^= 1;
  }
}

TEST(PageHasher, NamespacesAreInjective) {
  const std::vector<std::optional<std::string>> fields = {std::nullopt,
                                                          "",
                                                          "a",
                                                          "b",
                                                          "ab",
                                                          "ba",
                                                          std::string("\0", 1),
                                                          std::string("\x01", 1),
                                                          std::string("\x01\0\0\0\0\0\0\0\0", 9)};
  std::set<PageKey> digests;
  for (const auto& extra_key : fields) {
    for (const auto& cache_salt : fields) digests.insert(namespace_digest(extra_key, cache_salt));
  }
  EXPECT_EQ(digests.size(), fields.size() * fields.size());
}

TEST(PageHasher, AnEmptySaltIsNoSaltAndAnEmptyExtraKeyIsOne) {
  EXPECT_FALSE(namespace_seed(std::nullopt, std::nullopt).has_value());
  EXPECT_FALSE(namespace_seed(std::nullopt, "").has_value());
  EXPECT_EQ(namespace_seed("lora", ""), namespace_seed("lora", std::nullopt));
  EXPECT_EQ(namespace_seed("", std::nullopt), namespace_digest("", std::nullopt));
  EXPECT_EQ(namespace_seed("lora", "salt"), namespace_digest("lora", "salt"));
}

TEST(PageHasher, PageSizeIsPartOfTheChain) {
  const std::vector<TokenId> tokens(64, 3);
  std::set<PageKey> keys;
  for (const std::uint32_t page_size : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
    PageHasher hasher(page_size);
    std::vector<PageKey> chain;
    hasher.extend(nullptr, std::span(tokens), chain);
    EXPECT_EQ(chain.size(), 64 / page_size);
    for (const PageKey& key : chain) EXPECT_TRUE(keys.insert(key).second) << page_size;
  }
}

}  // namespace
}  // namespace hitide
