// What the tools see of a store: hitide/file_store.h.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <hitide/file_store.h>

#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

std::uint32_t g_seconds = 0;  // what the store's clock says

const FileStoreNamespace* find(const FileStoreContents& contents, std::string_view name) {
  for (const FileStoreNamespace& space : contents.namespaces) {
    if (space.name == name) return &space;
  }
  return nullptr;
}

class InspectTest : public FileStoreTest {
 protected:
  InspectTest() {
    options_.unix_seconds = [] { return g_seconds; };
    g_seconds = 1'700'000'000;
  }
  void overwrite(std::uint64_t segment, std::uint64_t offset, char value) {
    const UniqueFd fd(::open(segment_path(options_.path, segment).c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    ASSERT_EQ(::pwrite(fd.get(), &value, 1, static_cast<off_t>(offset)), 1);
  }
  FileStoreContents inspect() {
    auto contents = inspect_file_store(options_.path);
    EXPECT_TRUE(contents.ok()) << contents.status().to_string();
    return contents.ok() ? *std::move(contents) : FileStoreContents();
  }
  FileStoreVerification verify(bool drop) {
    auto found = verify_file_store({.path = options_.path, .drop_damaged = drop});
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *std::move(found) : FileStoreVerification();
  }
};

TEST_F(InspectTest, TellsNamespacesPagesBytesAndAges) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("alpha/page1/kv", 5000), kOk);
  g_seconds += 60;
  ASSERT_EQ(put("alpha/page1/swa", 100), kOk);
  ASSERT_EQ(put("beta/page1/kv", 3000), kOk);
  g_seconds += 60;
  ASSERT_EQ(put("alpha/page2/kv", 5000), kOk);
  ASSERT_EQ(put("bare", 10), kOk);
  const FileStoreContents contents = inspect();  // while the store is open
  EXPECT_EQ(contents.owner, ::getpid());
  EXPECT_EQ(contents.objects, 5u);
  EXPECT_EQ(contents.pages, 4u);
  ASSERT_EQ(contents.namespaces.size(), 3u);
  EXPECT_EQ(contents.namespaces[0].name, "alpha") << "the largest first";
  EXPECT_EQ(contents.namespaces[0].objects, 3u);
  EXPECT_EQ(contents.namespaces[0].pages, 2u);
  EXPECT_EQ(contents.namespaces[0].bytes, 10'100u);
  EXPECT_EQ(contents.namespaces[0].oldest_s, 1'700'000'000u);
  EXPECT_EQ(contents.namespaces[0].newest_s, 1'700'000'120u);
  ASSERT_NE(find(contents, "beta"), nullptr);
  EXPECT_EQ(find(contents, "beta")->newest_s, 1'700'000'060u);
  ASSERT_NE(find(contents, ""), nullptr) << "a key without a slash";
  ASSERT_EQ(contents.segments.size(), 1u);
  EXPECT_EQ(contents.live_bytes, 2 * record_bytes(5000) + 3 * record_bytes(100));
  EXPECT_EQ(contents.dead_bytes, 0u);
  store_.reset();
  EXPECT_EQ(inspect().owner, 0);
}

TEST_F(InspectTest, RemovedObjectsAreDeadBytes) {
  ASSERT_TRUE(open().ok());
  for (const char* key : {"a/1/kv", "a/2/kv", "b/1/kv"}) ASSERT_EQ(put(key, 5000), kOk);
  ASSERT_EQ(remove_object(*store_, "a/1/kv"), kOk);
  const FileStoreContents contents = inspect();
  EXPECT_EQ(contents.objects, 2u);
  EXPECT_EQ(contents.dead_bytes, record_bytes(5000));
  EXPECT_EQ(contents.live_bytes, 2 * record_bytes(5000));
  EXPECT_EQ(round_up_to_block(contents.file_bytes), store_->stats().bytes_used);
}

TEST_F(InspectTest, WhatCannotBeReadIsNamedAndTheRestIsTold) {
  ASSERT_TRUE(open().ok());
  fill_segments(3);
  store_.reset();
  const std::string bad = segment_path(options_.path, 2);
  write_bytes(bad, {'x'});
  const FileStoreContents contents = inspect();
  ASSERT_EQ(contents.segments.size(), 3u);
  EXPECT_NE(contents.segments[1].error.find(bad), std::string::npos);
  EXPECT_TRUE(contents.segments[0].error.empty());
  EXPECT_GT(contents.objects, 0u);
}

TEST_F(InspectTest, LooksWithoutTouchingAnything) {
  EXPECT_EQ(inspect_file_store(options_.path).status().code(), StatusCode::not_found);
  EXPECT_FALSE(std::filesystem::exists(options_.path));
  std::filesystem::create_directory(options_.path);
  EXPECT_EQ(inspect_file_store(options_.path).status().code(), StatusCode::not_found);
  EXPECT_TRUE(std::filesystem::is_empty(options_.path));
  ASSERT_TRUE(open().ok());
  store_.reset();
  write_bytes(options_.path + "/FORMAT", {'x'});
  EXPECT_EQ(inspect_file_store(options_.path).status().code(), StatusCode::failed_precondition);
}

TEST_F(InspectTest, DeadlinesHold) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 10), kOk);
  EXPECT_EQ(inspect_file_store(options_.path, TimePoint::min()).status().code(),
            StatusCode::deadline_exceeded);
  const auto found = verify_file_store({.path = options_.path, .deadline = TimePoint::min()});
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->complete);
}

TEST_F(InspectTest, RankFoldersAreFound) {
  const std::string root = directory_ / "ranks";
  for (const char* rank : {"rank10", "rank2", "rank0"}) {
    options_.path = root + "/" + rank;
    ASSERT_TRUE(open().ok());
  }
  for (const char* other : {"rank01", "rankx", "rank3"}) {
    std::filesystem::create_directory(root + "/" + other);
  }
  EXPECT_EQ(file_store_directories(root),
            (std::vector<std::string>{root + "/rank0", root + "/rank2", root + "/rank10"}));
  EXPECT_EQ(file_store_directories(root + "/rank2"), std::vector<std::string>{root + "/rank2"});
  EXPECT_TRUE(file_store_directories(directory_ / "nowhere").empty());
}

// ---- verify -------------------------------------------------------------------------------------

TEST_F(InspectTest, AStoreInUseVerifies) {
  ASSERT_TRUE(open().ok());
  fill_segments(2);
  ASSERT_EQ(put("large", 3u << 20), kOk);
  ASSERT_EQ(put("gone", 100), kOk);
  ASSERT_EQ(remove_object(*store_, "gone"), kOk);
  const FileStoreVerification found = verify(false);
  EXPECT_TRUE(found.complete);
  EXPECT_EQ(found.objects, store_->stats().objects);
  EXPECT_EQ(found.bytes, store_->stats().put_bytes - 100);
  EXPECT_TRUE(found.damage.empty());
}

TEST_F(InspectTest, EveryDamageIsFoundAndNamed) {
  ASSERT_TRUE(open().ok());
  for (const char* key : {"a", "b", "c"}) ASSERT_EQ(put(key, 5000), kOk);
  store_.reset();
  overwrite(1, 2 * kBlockBytes + 4999, 'x');                // the last byte of a's payload
  overwrite(1, kBlockBytes + record_bytes(5000) + 8, 'x');  // b's header
  const FileStoreVerification found = verify(false);
  EXPECT_EQ(found.objects_damaged, 1u);
  EXPECT_EQ(found.objects_dropped, 0u);
  ASSERT_EQ(found.damage.size(), 2u);
  EXPECT_EQ(found.damage[0].bytes, record_bytes(5000)) << "b: its key is not known any more";
  EXPECT_EQ(found.damage[1].key, "a");
  EXPECT_EQ(found.damage[1].offset, kBlockBytes);
  EXPECT_EQ(found.damage[1].path, segment_path(options_.path, 1));
  EXPECT_NE(found.damage[1].reason.find("checksum"), std::string::npos);
}

TEST_F(InspectTest, DamagedObjectsAreDroppedOnDemandOnly) {
  ASSERT_TRUE(open().ok());
  for (const char* key : {"a", "b", "c"}) ASSERT_EQ(put(key, 5000), kOk);
  store_.reset();
  overwrite(1, 2 * kBlockBytes + 77, 'x');
  verify(false);
  const FileStoreVerification dropped = verify(true);
  EXPECT_EQ(dropped.objects_dropped, 1u);
  ASSERT_EQ(dropped.damage.size(), 1u);
  EXPECT_TRUE(dropped.damage[0].dropped);
  EXPECT_TRUE(verify(false).damage.empty());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(exists_object(*store_, "a"), kMiss);
  EXPECT_EQ(check("b", 5000), kOk);
  EXPECT_EQ(put("a", 5000), kOk);
  EXPECT_EQ(check("a", 5000), kOk);
}

TEST_F(InspectTest, NothingIsDroppedUnderAWriter) {
  ASSERT_TRUE(open().ok());
  const auto refused = verify_file_store({.path = options_.path, .drop_damaged = true});
  EXPECT_EQ(refused.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(refused.status().message().find("process " + std::to_string(::getpid())),
            std::string::npos);
}

TEST_F(InspectTest, VerifyingCanBeStopped) {
  ASSERT_TRUE(open().ok());
  fill_segments(3);
  std::uint64_t last = 0;
  int calls = 0;
  const auto found = verify_file_store(
      {.path = options_.path, .progress = [&](std::uint64_t done, std::uint64_t total) {
         EXPECT_GE(done, last);
         EXPECT_LE(done, total);
         last = done;
         return ++calls < 5;
       }});
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->complete);
  EXPECT_EQ(calls, 5);
  EXPECT_GT(found->objects, 0u);
}

TEST_F(InspectTest, AListOfDamageHasAnEnd) {
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 5; ++n) ASSERT_EQ(put(name(n), 100), kOk);
  store_.reset();
  for (std::uint64_t n = 0; n < 5; ++n) overwrite(1, kBlockBytes * (2 + 2 * n), 'x');
  const auto found = verify_file_store({.path = options_.path, .damage_max = 2});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->objects_damaged + found->objects, 10u);
  EXPECT_EQ(found->damage.size(), 2u);
}

}  // namespace
}  // namespace hitide
