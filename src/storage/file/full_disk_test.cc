// Disks without space: which bound was hit, what the store gives up for it, and when it goes on.
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

constexpr auto kFull = StatusCode::resource_exhausted;
constexpr std::int64_t kMiB = 1 << 20;

class FullDiskTest : public FileStoreTest {
 protected:
  FullDiskTest() { options_.disk_free_bytes_min = 16 * kMiB; }
  std::size_t segments() { return list_segments(options_.path).size(); }
  // Puts for a while, some time between one and the next.
  void expect_refused(int puts, Duration between, std::size_t size = 3000) {
    for (int n = 0; n < puts; ++n) {
      EXPECT_EQ(put("refused/" + std::to_string(n), size), kFull) << n;
      clock_.advance(between);
    }
  }
};

TEST_F(FullDiskTest, AFullDiskCostsTheOldestSegment) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(3);
  files_.write_errors = 1;
  EXPECT_EQ(put("more", 3000), kOk) << "one segment went, then it fitted";
  EXPECT_EQ(list_segments(options_.path).size(), 2u);
  EXPECT_EQ(check("more", 3000), kOk);
  EXPECT_EQ(check(name(0), kSize), kMiss);
  EXPECT_GT(held(count), 0);
}

TEST_F(FullDiskTest, EvictsAsMuchAsTheReserveNeeds) {
  ASSERT_TRUE(open().ok());
  fill_segments(6);
  files_.free_answer = 14 * kMiB;
  files_.freed_by_unlink = kMiB;
  EXPECT_EQ(put("more", 3000), kOk);
  EXPECT_EQ(segments(), 3u) << "14 MiB free, 16 to keep, and the record: three segments";
  EXPECT_EQ(said("file_store_writes_paused"), 0);
}

// Deleting everything would not be enough.
TEST_F(FullDiskTest, EvictsNothingWhereThatCannotHelp) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(6);
  files_.free_answer = kMiB;
  files_.freed_by_unlink = kMiB;
  expect_refused(100, std::chrono::seconds(3));
  EXPECT_EQ(files_.unlinks, 0);
  EXPECT_EQ(held(count), count);
}

// What is deleted is taken by others at once.
TEST_F(FullDiskTest, StopsEvictingWhenItDoesNotHelp) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(9);
  files_.free_answer = 15 * kMiB;
  expect_refused(1000, std::chrono::milliseconds(50));
  EXPECT_EQ(files_.unlinks, 1) << "within 50 s";
  EXPECT_GE(held(count), count * 7 / 9);
  files_.free_answer = 100 * kMiB;
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(put("more", 3000), kOk) << "by itself, when there is space";
  EXPECT_EQ(check("more", 3000), kOk);
  EXPECT_EQ(said("file_store_writes_resumed"), 1);
}

TEST_F(FullDiskTest, StopsEvictingForAWriteThatFailsAnyway) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(9);
  files_.write_errors = 1 << 30;
  expect_refused(100, std::chrono::milliseconds(500));
  EXPECT_EQ(files_.unlinks, 1) << "within 50 s";
  EXPECT_GE(held(count), count * 7 / 9);
  expect_refused(50, std::chrono::hours(1));
  EXPECT_LE(files_.unlinks, 52) << "one for each hour, at most";
  files_.write_errors = 0;
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(put("more", 3000), kOk);
}

// Nothing is written, and nobody is told twice, while the pause lasts.
TEST_F(FullDiskTest, APauseCostsNothing) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 3000), kOk);
  constexpr int kErrors = 1000;
  files_.write_errors = kErrors;
  expect_refused(100, {});
  EXPECT_EQ(files_.write_errors, kErrors - 1);
  EXPECT_EQ(said("file_store_writes_paused"), 1);
  EXPECT_EQ(said("file_store_failure"), 0);
  EXPECT_EQ(store_->stats().failures, 100u);
  EXPECT_EQ(check("a", 3000), kOk);
  clock_.advance(std::chrono::seconds(1));
  expect_refused(100, {});
  EXPECT_EQ(files_.write_errors, kErrors - 2) << "tried again after the pause";
  EXPECT_EQ(said("file_store_writes_paused"), 1);
}

TEST_F(FullDiskTest, TheReserveIsNamed) {
  ASSERT_TRUE(open().ok());
  files_.free_answer = 6'000'000;
  EXPECT_EQ(put("more", 3000), kFull);
  EXPECT_EQ(said("bound=\"the space that the disk keeps free\""), 1) << log_;
  EXPECT_EQ(said("disk_free_bytes=6000000 disk_free_bytes_min=16777216"), 1) << log_;
  EXPECT_EQ(said("bytes_max=67108864"), 2) << "at the start, and here";
  EXPECT_EQ(said("limit"), 0) << "raising the limit would not help";
}

TEST_F(FullDiskTest, TheFullDiskIsNamed) {
  ASSERT_TRUE(open().ok());
  files_.free_answer = 100 * kMiB;
  for (const int error : {ENOSPC, EDQUOT}) {
    files_.write_error = error;
    files_.write_errors = 1000;
    clock_.advance(std::chrono::minutes(2));
    EXPECT_EQ(put("more", 3000), kFull);
    files_.write_errors = 0;
    clock_.advance(std::chrono::minutes(2));
    EXPECT_EQ(put(std::to_string(error), 3000), kOk);
  }
  EXPECT_EQ(said("bound=\"the disk is full\""), 2) << log_;
}

// That is no matter of the disk.
TEST_F(FullDiskTest, TheStoresOwnLimitPausesNothing) {
  options_.bytes_max = 8 * kMiB;
  files_.free_answer = 100 * kMiB;
  files_.unremovable = ".seg";
  ASSERT_TRUE(open().ok());
  int n = 0;
  while (put(name(n), kSize) == kOk) ++n;
  EXPECT_EQ(put("more", kSize), kFull);
  EXPECT_EQ(said("file_store_writes_paused"), 0);
  files_.unremovable = "";
  clock_.advance(std::chrono::seconds(30));
  EXPECT_EQ(put("more", kSize), kOk);
}

// ---- files that may not grow --------------------------------------------------------------------

class FileSizeTest : public FullDiskTest {
 protected:
  FileSizeTest() {
    options_.bytes_max = 8 * kMiB;
    files_.free_answer = 100 * kMiB;
  }
  template <typename Body>
  void with_files_of_at_most(std::uint64_t bytes, const Body& body) {
    in_a_process_with(RLIMIT_FSIZE, bytes, body);
  }
  std::uint64_t bytes_on_disk() {
    std::uint64_t bytes = 0;
    for (const auto& segment : list_segments(options_.path)) bytes += segment.bytes;
    return bytes;
  }
};

TEST_F(FileSizeTest, SegmentsEndWhereFilesMayNotGrow) {
  with_files_of_at_most(512 << 10, [&] {
    for (int n = 0; n < 200; ++n) {
      ASSERT_EQ(put(name(n), kSize), kOk) << n;
      ASSERT_LE(bytes_on_disk(), options_.bytes_max);
    }
    EXPECT_GE(held(200), 60) << "as many as the limit allows, about";
    EXPECT_EQ(check(name(199), kSize), kOk);
    EXPECT_EQ(store_->stats().failures, 0u);
    ASSERT_TRUE(open().ok());
    EXPECT_GE(held(200), 60);
  });
}

TEST_F(FileSizeTest, WhatFitsInNoFileIsRefusedAndTheRestGoesOn) {
  with_files_of_at_most(512 << 10, [&] {
    ASSERT_EQ(put("small", 3000), kOk);
    expect_refused(20, std::chrono::milliseconds(300), 600 << 10);
    EXPECT_EQ(said("bound=\"the largest size of a file\""), 1) << log_;
    EXPECT_EQ(said("file_store_writes_paused"), 1);
    EXPECT_EQ(files_.unlinks, 0) << "nothing has to go for that";
    clock_.advance(std::chrono::seconds(1));
    EXPECT_EQ(put("other", 3000), kOk);
    EXPECT_EQ(check("small", 3000), kOk);
    EXPECT_EQ(check("other", 3000), kOk);
  });
}

// Each is open: small files must not use up the descriptors.
TEST_F(FileSizeTest, ManySmallSegmentsAreNotTooMany) {
  with_files_of_at_most(16 << 10, [&] {
    for (int n = 0; n < 700; ++n) ASSERT_EQ(put(name(n), 3000), kOk) << n;
    EXPECT_LE(segments(), 512u);
    EXPECT_EQ(check(name(699), 3000), kOk);
  });
}

TEST_F(FileSizeTest, FilesThatHoldNothingAreAFullStore) {
  with_files_of_at_most(1000, [&] { expect_refused(20, std::chrono::seconds(2)); });
}

}  // namespace
}  // namespace hitide
