// Directories as other people leave them: things of other kinds in the store's places, files that
// went missing or were cut, and a directory that was taken away from a store that is in use.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

using HostileDirectoryTest = FileStoreTest;

// Puts something at `path` that is no plain file.
void plant(const std::string& kind, const std::string& path) {
  std::filesystem::remove_all(path);
  if (kind == "pipe") {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  } else if (kind == "directory") {
    std::filesystem::create_directory(path);
  } else if (kind == "link") {
    std::filesystem::create_symlink("/dev/null", path);
  } else {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
}

const char* const kKinds[] = {"pipe", "directory", "link", "socket"};

TEST_F(HostileDirectoryTest, WhatIsNoPlainFileIsRefusedByName) {
  for (const char* place : {"LOCK", "FORMAT"}) {
    for (const char* kind : kKinds) {
      SCOPED_TRACE(std::string(kind) + " as " + place);
      options_.path = directory_ / (std::string(place) + kind);
      ASSERT_TRUE(open().ok());
      store_.reset();
      const std::string path = options_.path + "/" + place;
      plant(kind, path);
      const Status status = open();
      EXPECT_EQ(status.code(), StatusCode::failed_precondition);
      EXPECT_NE(status.message().find(path + " is not a plain file"), std::string::npos)
          << status.to_string();
      std::filesystem::remove_all(path);
      EXPECT_TRUE(open().ok()) << "as soon as it is gone";
    }
  }
}

TEST_F(HostileDirectoryTest, WhatIsNoPlainFileIsNoSegment) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  store_.reset();
  int number = 10;
  for (const char* kind : kKinds) plant(kind, segment_path(options_.path, ++number));
  // Not even where it leads to a segment.
  std::filesystem::rename(segment_path(options_.path, 1), directory_ / "elsewhere");
  std::filesystem::create_symlink(directory_ / "elsewhere", segment_path(options_.path, 1));
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("a", 100), kMiss);
  EXPECT_EQ(store_->stats().bytes_used, 0u);
  EXPECT_EQ(put("b", 100), kOk);
  EXPECT_EQ(check("b", 100), kOk);
}

TEST_F(HostileDirectoryTest, ThingsInPlaceOfTheSegmentsDirectoryAreRefused) {
  for (const char* kind : {"pipe", "link", "socket"}) {
    options_.path = directory_ / (std::string("s") + kind);
    std::filesystem::create_directory(options_.path);
    plant(kind, segments_directory(options_.path));
    const Status status = open();
    EXPECT_FALSE(status.ok()) << kind;
    EXPECT_NE(status.message().find(segments_directory(options_.path)), std::string::npos);
  }
}

// ---- numbers ------------------------------------------------------------------------------------

TEST_F(HostileDirectoryTest, NumbersBeyondAllBoundsAreIgnored) {
  ASSERT_TRUE(open().ok());
  int count = fill_segments(3);
  store_.reset();
  std::vector<std::string> planted;
  for (const char* name : {"1000000000000", "18446744073709551614", "18446744073709551615",
                           "18446744073709551616", "99999999999999999999999999"}) {
    planted.push_back(segments_directory(options_.path) + "/" + name + ".seg");
    write_bytes(planted.back(), {'x'});
  }
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said("file_store_segments_ignored"), 1);
  count = fill_segments(6, count);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(count), count);
  EXPECT_EQ(list_segments(options_.path).back().number, 6u);
  for (const std::string& path : planted) EXPECT_EQ(read_bytes(path), std::vector<char>{'x'});
}

// A name within the bounds makes no difference either, and is stepped over.
TEST_F(HostileDirectoryTest, FilesThatAreNoSegmentsDoNotMoveTheNumbers) {
  ASSERT_TRUE(open().ok());
  int count = fill_segments(3);
  store_.reset();
  for (const std::uint64_t number : {4ul, 5ul, 1000ul, kSegmentNumberMax}) {
    write_bytes(segment_path(options_.path, number), {'x'});
  }
  ASSERT_TRUE(open().ok());
  count = fill_segments(10, count);
  EXPECT_TRUE(std::filesystem::exists(segment_path(options_.path, 8)));
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(count), count);
}

TEST_F(HostileDirectoryTest, TheLastNumberEndsWritingOnly) {
  std::filesystem::create_directories(segments_directory(options_.path));
  const Block header = encode_segment({.number = kSegmentNumberMax, .id = 7});
  const auto* bytes = reinterpret_cast<const char*>(header.data());
  write_bytes(segment_path(options_.path, kSegmentNumberMax), {bytes, bytes + header.size()});
  ASSERT_TRUE(open().ok());
  int count = 0;
  while (put(name(count), kSize) == kOk) ++count;
  EXPECT_GT(count, 5);
  EXPECT_EQ(put("more", kSize), StatusCode::unavailable);
  EXPECT_EQ(held(count), count);
  EXPECT_EQ(list_segments(options_.path).size(), 1u);
}

// ---- segments that were cut ---------------------------------------------------------------------

class CutSegmentTest : public FileStoreTest {
 protected:
  CutSegmentTest() {
    EXPECT_TRUE(open().ok());
    count_ = fill_segments(4);
    store_.reset();
    EXPECT_EQ(said("file_store_records_dropped"), 0);
  }
  void cut(std::uint64_t number, std::uint64_t bytes) {
    std::filesystem::resize_file(segment_path(options_.path, number), bytes);
  }
  static std::uint64_t record(std::uint64_t n) { return kBlockBytes + n * record_bytes(kSize); }
  int count_ = 0;
};

TEST_F(CutSegmentTest, HalvesAreMissedOnce) {
  const std::uint64_t size = std::filesystem::file_size(segment_path(options_.path, 1));
  cut(1, size / 2);
  cut(2, size / 2);
  ASSERT_TRUE(open().ok());
  const int lost = count_ - held(count_);
  EXPECT_GE(lost, 8);
  EXPECT_EQ(said("file_store_records_dropped"), 1) << log_;
  EXPECT_EQ(said("segments=2"), 1) << log_;
  EXPECT_EQ(said("first=" + segment_path(options_.path, 1)), 1) << log_;
  EXPECT_EQ(said("objects_at_least=" + std::to_string(lost)), 1) << lost << log_;
}

TEST_F(CutSegmentTest, ACutBetweenTwoRecordsIsSeenToo) {
  cut(2, record(3));
  ASSERT_TRUE(open().ok());
  const int lost = count_ - held(count_);
  EXPECT_EQ(said("objects_at_least=" + std::to_string(lost)), 1) << log_;
  EXPECT_EQ(said("bytes_left_of_them=0"), 1) << log_;
}

TEST_F(CutSegmentTest, ACutInTheNewestIsSeenWithinARecord) {
  ASSERT_TRUE(open().ok());
  count_ = fill_segments(4, count_) + 2;
  for (int n = count_ - 2; n < count_; ++n) ASSERT_EQ(put(name(n), kSize), kOk);
  store_.reset();
  cut(4, record(1) + kBlockBytes + 5000);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said("objects_at_least=1 bytes_left_of_them=9096"), 1) << log_;
}

// What a store does by itself leaves nothing to miss.
TEST_F(CutSegmentTest, EvictionRemovalAndFailedWritesAreNoLoss) {
  options_.bytes_max = 8u << 20;
  ASSERT_TRUE(open().ok());
  for (int n = count_; n < 200; ++n) {
    if (n % 3 == 0) {
      files_.write_error = n % 2 == 0 ? EIO : ENOSPC;
      files_.write_errors = 1;
      put(name(n), kSize);
      clock_.advance(std::chrono::minutes(2));
    }
    put(name(n), kSize);
    if (n % 7 == 0) remove_object(*store_, name(n));
  }
  EXPECT_GT(store_->stats().evicted_objects, 0u);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said("file_store_records_dropped"), 0) << log_;
}

// ---- a directory that is taken away from a store in use -----------------------------------------

// What is under a path, with the content.
std::vector<std::string> tree(const std::string& path) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    std::string line = entry.path().string();
    if (entry.is_regular_file()) {
      const auto bytes = read_bytes(line);
      line.append(":").append(bytes.begin(), bytes.end());
    }
    found.push_back(std::move(line));
  }
  std::sort(found.begin(), found.end());
  return found;
}

class TakenDirectoryTest : public FileStoreTest {
 protected:
  TakenDirectoryTest() {
    options_.bytes_max = 8u << 20;
    EXPECT_TRUE(open().ok());
    count_ = fill_segments(3);
  }
  // The store has lost its directory: it changes nothing there, says so once, and reads on.
  void expect_detached() {
    const auto before = tree(options_.path);
    // Enough for new segments, and for eviction.
    for (int n = 1000; n < 1150; ++n) ASSERT_EQ(put(name(n), kSize), StatusCode::unavailable);
    EXPECT_EQ(remove_object(*store_, name(0)), StatusCode::unavailable);
    EXPECT_EQ(held(count_), count_ - 1) << "what was open is still read";
    EXPECT_EQ(said("file_store_detached"), 1);
    EXPECT_EQ(said("file_store_failure"), 0) << "once is enough";
    store_->close(kNoDeadline).ignore();
    EXPECT_EQ(tree(options_.path), before);
  }
  int count_ = 0;
};

TEST_F(TakenDirectoryTest, ASecondStoreInItsPlaceIsLeftAlone) {
  std::filesystem::remove_all(options_.path);
  auto second = FileStore::open(options_);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  for (int n = 0; n < 30; ++n)
    ASSERT_EQ(put_object(**second, name(n), bytes_of(name(n), kSize)), kOk);
  expect_detached();
  for (int n = 0; n < 30; ++n) EXPECT_EQ(check_object(**second, name(n), kSize), kOk);
}

TEST_F(TakenDirectoryTest, NothingIsMadeWhereNothingIs) {
  std::filesystem::remove_all(options_.path);
  EXPECT_EQ(put("more", kSize), StatusCode::unavailable);
  EXPECT_EQ(held(count_), count_);
  store_->close(kNoDeadline).ignore();
  EXPECT_FALSE(std::filesystem::exists(options_.path));
}

TEST_F(TakenDirectoryTest, AMovedDirectoryIsLeftAsItWas) {
  const std::string moved = directory_ / "moved";
  std::filesystem::rename(options_.path, moved);
  const auto before = tree(moved);
  std::filesystem::create_directory(options_.path);
  expect_detached();
  EXPECT_EQ(tree(moved), before);
  options_.path = moved;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(count_), count_);
}

TEST_F(TakenDirectoryTest, ADeletedSegmentsDirectoryEndsWriting) {
  std::filesystem::remove_all(segments_directory(options_.path));
  std::filesystem::create_directory(segments_directory(options_.path));
  expect_detached();
}

// Two writers in one directory would write over each other.
TEST_F(TakenDirectoryTest, ADeletedLockLetsNobodyIn) {
  std::filesystem::remove(options_.path + "/LOCK");
  EXPECT_EQ(FileStore::open(options_).status().code(), StatusCode::failed_precondition);
  expect_detached();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(count_), count_);
}

TEST_F(TakenDirectoryTest, TheSyncNoticesToo) {
  options_.sync_interval_ms = 1;
  options_.path = directory_ / "other";
  ASSERT_TRUE(open().ok());
  std::filesystem::remove_all(options_.path);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (said("file_store_detached") == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(said("file_store_detached"), 1);
}

TEST_F(TakenDirectoryTest, ADirectoryThatIsNamedRelativelyStaysTheSame) {
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::path(options_.path).parent_path());
  options_.path = "relative";
  ASSERT_TRUE(open().ok());
  std::filesystem::current_path(here);
  EXPECT_EQ(put("a", 100), kOk);
  EXPECT_EQ(check("a", 100), kOk);
}

}  // namespace
}  // namespace hitide
