#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <hitide/registration.h>

#include "base/log.h"

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
