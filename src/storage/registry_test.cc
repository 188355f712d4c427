#include "storage/registry.h"

#include <gtest/gtest.h>

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
}

}  // namespace
}  // namespace hitide
