#include "server/extra_config.h"

#include <gtest/gtest.h>

namespace hitide {
namespace {

TEST(StorageConfig, EveryKindOfValueIsTaken) {
  ServeOptions options;
  const Status status = apply_storage_config(
      R"({"path": "/a b", "max_size": "2GiB", "prefetch_threshold": 64,
          "prefetch_timeout_base": 0.5, "segment_size": 4194304})",
      options);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(options.cache.storage.path, "/a b");
  EXPECT_EQ(options.cache.storage.bytes_max, 2ull << 30);
  EXPECT_EQ(options.cache.storage.segment_bytes, 4u << 20);
  EXPECT_EQ(options.cache.policy.prefetch_threshold_tokens, 64u);
  EXPECT_EQ(options.cache.policy.prefetch_timeout_base_s, 0.5);
  ServeOptions other;
  EXPECT_TRUE(apply_storage_config(R"({"max_size": 1e9})", other).ok());
  EXPECT_EQ(other.cache.storage.bytes_max, 1'000'000'000u);
  EXPECT_TRUE(apply_storage_config("{}", other).ok());
}

TEST(StorageConfig, RefusalsNameTheFlagAndTheKey) {
  const auto message = [](std::string_view json) {
    ServeOptions options;
    const Status status = apply_storage_config(json, options);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << json;
    EXPECT_EQ(status.message().find("--hicache-storage-backend-extra-config"), 0u);
    return std::string(status.message());
  };
  const auto has = [&](std::string_view json, std::string_view part) {
    const std::string text = message(json);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has("", "not JSON");
  has("{\"path\": \"a\",}", "not JSON");
  has("\xef\xbb\xbf[]", "JSON object");
  has("[]", "JSON object");
  has("\"/dir\"", "JSON object");
  has(R"({"pathh": "x"})", "'pathh'");
  has(R"({"pathh": "x"})", "prefetch_threshold");
  has(R"({"path": 5})", "path: must be a string");
  has(R"({"path": null})", "path: must be a string");
  has(R"({"prefetch_threshold": "256"})", "prefetch_threshold: must be a number");
  has(R"({"prefetch_threshold": true})", "prefetch_threshold: must be a number");
  has(R"({"prefetch_threshold": 1.5})", "prefetch_threshold");
  has(R"({"prefetch_threshold": -1})", "prefetch_threshold");
  has(R"({"max_size": "much"})", "max_size");
  has(R"({"max_size": -5})", "max_size");
  has(R"({"threads": 65})", "1..64");
  has(R"({"path": "a", "path": "b"})", "twice");
}

TEST(StorageConfig, FileKeysNeedTheFileBackend) {
  ServeOptions options;
  options.cache.storage.backend = "memory";
  EXPECT_NE(apply_storage_config(R"({"path": "x"})", options).message().find("memory"),
            std::string::npos);
  EXPECT_TRUE(apply_storage_config(R"({"prefetch_threshold": 0})", options).ok());
}

}  // namespace
}  // namespace hitide
