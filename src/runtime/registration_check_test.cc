#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <hitide/file_store.h>
#include <hitide/registration.h>

#include "base/log.h"
#include "storage/registry.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

RegistrationCheck draft_check() {
  RegistrationCheck check;
  check.model.weights_digest = "abc";
  PoolSpec kv;
  kv.page_bytes = 4096;
  PoolSpec draft = kv;
  draft.name = "draft";
  draft.index_source = "kv";
  draft.required = false;
  check.model.pools = {kv, draft};
  return check;
}

StorageOptions memory_store() {
  StorageOptions options;
  options.backend = "memory";
  return options;
}

TEST(RegistrationCheck, LocalStoresTakeAnyMemory) {
  RegistrationCheck check = draft_check();
  check.pool_allocators = {{.pool = "draft", .kind = AllocatorKind::mmap}};
  check.staging_allowed = false;
  const auto rows = check_registration(check, memory_store());
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  ASSERT_EQ(rows->size(), 2u);
  for (const PoolRegistration& row : *rows) {
    EXPECT_EQ(row.verdict, RegistrationVerdict::ok);
    EXPECT_EQ(row.path, RegistrationPath::zero_copy);
    EXPECT_GT(row.bytes, 0u);
  }
  EXPECT_EQ((*rows)[0].allocator, AllocatorKind::shm);
  EXPECT_EQ((*rows)[1].allocator, AllocatorKind::mmap);
  EXPECT_TRUE(storage_on(*rows));
}

// A trial in a full store would push out what it holds, and one with a smaller limit too.
TEST(RegistrationCheck, AFileStoreKeepsEverythingThatItHas) {
  TempDirectory folder;
  StorageOptions options;
  options.backend = "file";
  options.path = folder.path() + "/store";
  options.bytes_max = 8u << 20;
  options.segment_bytes = 1u << 20;
  const std::vector<std::byte> bytes(512u << 10);
  const std::span<const std::byte> buffer(bytes);
  {
    auto store = open_object_store(options);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    for (int i = 0; i < 12; ++i) {
      const std::string key = "model/" + std::to_string(i);
      const PutItem item{.key = key, .buffers = std::span(&buffer, 1)};
      ItemResult result;
      (*store)->put(std::span(&item, 1), std::span(&result, 1), {});
      ASSERT_EQ(result.code, StatusCode::ok);
    }
    ASSERT_TRUE((*store)->close(kNoDeadline).ok());
  }
  for (const std::uint64_t limit : {8u << 20, 2u << 20, 0u}) {
    options.bytes_max = limit;
    const auto rows = check_registration(draft_check(), options);
    ASSERT_TRUE(rows.ok()) << rows.status().to_string();
    const auto contents = inspect_file_store(options.path);
    ASSERT_TRUE(contents.ok()) << contents.status().to_string();
    EXPECT_EQ(contents->objects, 12u) << "limit " << limit;
    EXPECT_EQ(contents->dead_bytes, 0u);
    EXPECT_FALSE(std::filesystem::exists(options.path + "/trial"));
  }
}

TEST(RegistrationCheck, ALogicalAnchorIsMarkersOnly) {
  RegistrationCheck check = draft_check();
  check.model.pools[0].kind = PoolKind::logical;
  check.model.pools[0].page_bytes = 0;
  const auto rows = check_registration(check, memory_store());
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)[0].verdict, RegistrationVerdict::logical_no_buffer);
  EXPECT_EQ((*rows)[0].path, RegistrationPath::markers_only);
}

TEST(RegistrationCheck, AStoreThatCannotBeOpenedIsAVerdict) {
  set_log_sink([](LogLevel, std::string_view) {});
  StorageOptions options;
  options.backend = "file";
  options.path = "/proc/no/such/place";
  options.bytes_max = 64u << 20;
  const auto rows = check_registration(draft_check(), options);
  set_log_sink({});
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  for (const PoolRegistration& row : *rows) {
    EXPECT_EQ(row.verdict, RegistrationVerdict::client_down);
    EXPECT_EQ(row.path, RegistrationPath::off);
    EXPECT_FALSE(row.reason.empty());
  }
}

TEST(RegistrationCheck, RefusesWhatCannotBeTried) {
  RegistrationCheck check = draft_check();
  check.pool_allocators = {{.pool = "mamba", .kind = AllocatorKind::shm}};
  EXPECT_EQ(check_registration(check, memory_store()).status().code(),
            StatusCode::invalid_argument);
  check = draft_check();
  check.allocator = AllocatorKind::store;
  EXPECT_EQ(check_registration(check, memory_store()).status().code(),
            StatusCode::invalid_argument);
  StorageOptions none;
  none.backend = "none";
  EXPECT_EQ(check_registration(draft_check(), none).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace hitide
