#include "storage/registry.h"

#include <gtest/gtest.h>

#include <hitide/file_store.h>

#include "base/log.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

TEST(Registry, OpensWhatIsAskedFor) {
  set_log_sink([](LogLevel, std::string_view) {});
  const TempDirectory directory;
  for (const char* backend : {"file", "memory", "null"}) {
    StorageOptions options;
    options.backend = backend;
    options.path = directory / "a/b/store";
    auto store = open_object_store(options);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    EXPECT_EQ((*store)->capabilities().name, backend);
    EXPECT_EQ(put_object(**store, "key", bytes_of("key", 100)), StatusCode::ok);
  }
  set_log_sink({});
}

TEST(Registry, EachRankHasADirectoryOfItsOwn) {
  set_log_sink([](LogLevel, std::string_view) {});
  const TempDirectory directory;
  EXPECT_EQ(rank_directory("/s", {}), "/s");
  EXPECT_EQ(rank_directory("/s", {.tp_rank = 1, .tp_size = 2}), "/s/rank1");
  EXPECT_EQ(rank_directory("/s", {.tp_rank = 1, .tp_size = 2, .pp_rank = 2, .pp_size = 4}),
            "/s/rank5");
  EXPECT_EQ(rank_directory("/s", {.tp_size = 2, .dp_rank = 1, .dp_size = 2}), "/s/rank2");
  StorageOptions options;
  options.path = directory / "store";
  auto first = open_object_store(options, {.tp_rank = 0, .tp_size = 2});
  auto second = open_object_store(options, {.tp_rank = 1, .tp_size = 2});
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  ASSERT_TRUE(second.ok()) << "one does not keep the other out: " << second.status().to_string();
  EXPECT_EQ(put_object(**first, "key", bytes_of("key", 100)), StatusCode::ok);
  EXPECT_EQ(exists_object(**second, "key"), StatusCode::not_found);
  EXPECT_EQ(file_store_directories(options.path).size(), 2u);
  EXPECT_EQ(open_object_store(options, {.tp_rank = 1, .tp_size = 2}).status().code(),
            StatusCode::failed_precondition);
  set_log_sink({});
}

TEST(Registry, RefusesWhatItDoesNotKnow) {
  StorageOptions options;
  for (const char* backend : {"none", "", "floppy"}) {
    options.backend = backend;
    EXPECT_EQ(open_object_store(options).status().code(), StatusCode::invalid_argument);
  }
  options.backend = "file";
  options.path = "";
  EXPECT_EQ(open_object_store(options).status().code(), StatusCode::invalid_argument);
}

// The store's own bytes count as free: its limit does not shrink from run to run.
TEST(Registry, TheDefaultLimitIsAShareOfTheDisk) {
  EXPECT_EQ(default_bytes_max(100u << 20, 0), 10u << 20);
  EXPECT_EQ(default_bytes_max(90u << 20, 10u << 20), 10u << 20);
  EXPECT_EQ(default_bytes_max(100ull << 40, 0), 64ull << 30);
  EXPECT_EQ(default_bytes_max(100u << 20, 0, 4), 10u << 18);
  // Nothing goes for it, however full others have made the disk.
  EXPECT_EQ(default_bytes_max(1u << 20, 30u << 20), 30u << 20);
}

}  // namespace
}  // namespace hitide
