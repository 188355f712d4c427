// Reading a store that another process owns.
#include "storage/file/file_follower.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

class FollowerTest : public FileStoreTest {
 protected:
  void follow(std::uint32_t interval_ms = 0) {
    auto opened = FileFollower::open({.path = options_.path, .refresh_interval_ms = interval_ms});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    follower_ = std::move(*opened);
  }
  StatusCode seen(const std::string& key, std::size_t size) {
    return check_object(*follower_, key, size);
  }
  // By what the follower knows after it has looked.
  StatusCode seen_now(const std::string& key, std::size_t size) {
    EXPECT_TRUE(follower_->refresh().ok());
    return seen(key, size);
  }

  std::unique_ptr<FileFollower> follower_;
};

TEST_F(FollowerTest, SeesWhatTheOwnerWrites) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 5000), kOk);
  follow();
  EXPECT_EQ(seen("a", 5000), kOk);
  ASSERT_EQ(put("b", 700), kOk);
  EXPECT_EQ(seen("b", 700), kMiss) << "no call looks at the directory";
  EXPECT_EQ(seen_now("b", 700), kOk);
  const int count = fill_segments(4);
  ASSERT_TRUE(follower_->refresh().ok());
  for (int n = 0; n < count; ++n) ASSERT_EQ(seen(name(n), kSize), kOk) << n;
  EXPECT_EQ(follower_->stats().objects, store_->stats().objects);
  EXPECT_EQ(exists_object(*follower_, "a"), kOk);
  EXPECT_EQ(seen("a", 4999), StatusCode::data_loss) << "the length is not the one asked for";
}

TEST_F(FollowerTest, SeesWhatHasGone) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 5000), kOk);
  const int count = fill_segments(3);
  follow();
  ASSERT_EQ(remove_object(*store_, "a"), kOk);
  EXPECT_EQ(seen("a", 5000), kMiss) << "at once, as each record says what it is";
  EXPECT_EQ(exists_object(*follower_, "a"), kMiss);
  ASSERT_EQ(put("a", 5000), kOk);
  EXPECT_EQ(seen_now("a", 5000), kOk);
  ASSERT_TRUE(store_->set_bytes_limit(1u << 20).ok());
  int held = 0;
  for (int n = 0; n < count; ++n) held += seen(name(n), kSize) == kOk ? 1 : 0;
  EXPECT_EQ(held, count) << "evicted files can be read until the next look";
  ASSERT_TRUE(follower_->refresh().ok());
  EXPECT_EQ(follower_->stats().objects, store_->stats().objects);
  EXPECT_EQ(seen(name(0), kSize), kMiss);
}

TEST_F(FollowerTest, ReadsOnlyAndTakesNoLock) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  store_.reset();
  follow();
  const auto before = std::filesystem::last_write_time(options_.path);
  EXPECT_EQ(put_object(*follower_, "b", bytes_of("b", 100)), StatusCode::unimplemented);
  EXPECT_EQ(remove_object(*follower_, "a"), StatusCode::unimplemented);
  EXPECT_EQ(seen("a", 100), kOk);
  EXPECT_EQ(std::filesystem::last_write_time(options_.path), before);
  EXPECT_TRUE(open().ok()) << "it is free for an owner";
  EXPECT_EQ(FileStore::open(options_).status().code(), StatusCode::failed_precondition)
      << "for one";
  EXPECT_EQ(put("b", 100), kOk);
  EXPECT_EQ(seen_now("b", 100), kOk);
  ASSERT_TRUE(follower_->close(kNoDeadline).ok());
  EXPECT_TRUE(follower_->close(kNoDeadline).ok());
  EXPECT_EQ(seen("a", 100), StatusCode::failed_precondition);
}

TEST_F(FollowerTest, AStoreThatIsNotThereIsEmpty) {
  follow();
  EXPECT_EQ(seen("a", 100), kMiss);
  EXPECT_FALSE(std::filesystem::exists(options_.path));
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  EXPECT_EQ(seen_now("a", 100), kOk);
  store_.reset();
  std::filesystem::remove_all(options_.path);
  EXPECT_EQ(seen_now("a", 100), kMiss);
  // The same names, and maybe the same inodes.
  options_.seed = 77;
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("b", 100), kOk);
  EXPECT_EQ(seen_now("b", 100), kOk);
  EXPECT_EQ(seen("a", 100), kMiss);
}

TEST_F(FollowerTest, NewerAndForeignStoresAreRefused) {
  ASSERT_TRUE(open().ok());
  store_.reset();
  write_bytes(options_.path + "/FORMAT", {'x', '\n'});
  EXPECT_EQ(FileFollower::open({.path = options_.path}).status().code(),
            StatusCode::failed_precondition);
  EXPECT_EQ(FileFollower::open({}).status().code(), StatusCode::invalid_argument);
}

TEST_F(FollowerTest, FollowsByItself) {
  ASSERT_TRUE(open().ok());
  follow(1);
  ASSERT_EQ(put("a", 100), kOk);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  StatusCode code = kMiss;
  while (code == kMiss && std::chrono::steady_clock::now() < deadline) {
    code = seen("a", 100);
    std::this_thread::yield();
  }
  EXPECT_EQ(code, kOk);
}

// Writers fill their records in any order; one whose header is not there yet hides nothing, and is
// found once it is.
TEST_F(FollowerTest, RecordsThatAreBeingWrittenAreFoundLater) {
  ASSERT_TRUE(open().ok());
  store_.reset();
  FileSystem& files = FileSystem::real();
  const FileAt at{.directory = AT_FDCWD,
                  .name = segment_path(options_.path, 1),
                  .path = segment_path(options_.path, 1)};
  follow();
  int error = 0;
  const auto segment = SegmentFile::create(files, at, {.number = 1, .id = 5}, error);
  ASSERT_NE(segment, nullptr) << error;
  const auto write = [&](std::uint64_t place, const std::string& key) {
    const auto bytes = bytes_of(key, 5000);
    const std::span<const std::byte> buffer(bytes);
    ASSERT_EQ(
        segment->write(
            {.offset = kBlockBytes + place * record_bytes(5000), .sequence = place + 1, .key = key},
            std::span(&buffer, 1)),
        0);
  };
  write(2, "third");
  EXPECT_EQ(seen_now("third", 5000), kOk);
  EXPECT_EQ(seen_now("first", 5000), kMiss);
  write(3, "fourth");
  write(0, "first");
  EXPECT_EQ(seen_now("first", 5000), kOk);
  EXPECT_EQ(seen("fourth", 5000), kOk);
  write(1, "second");
  EXPECT_EQ(seen_now("second", 5000), kOk);
}

// ---- another process ----------------------------------------------------------------------------

std::size_t length_of(int n) { return 1 + static_cast<std::size_t>(n) * 7919 % 40'000; }
std::string key_of(int n) { return "churn/" + std::to_string(n); }

// Puts and removes for ever, so that segments are compacted and evicted all the time; each number
// down the pipe is an object that was put.
[[noreturn]] void churn(const FileStoreOptions& options, int pipe) {
  auto store = FileStore::open(options);
  if (!store.ok()) ::_exit(2);
  for (int n = 1;; ++n) {
    if (put_object(**store, key_of(n), bytes_of(key_of(n), length_of(n))) != kOk) ::_exit(3);
    if (::write(pipe, &n, sizeof n) != sizeof n) ::_exit(4);
    if (n > 10 && n % 4 != 0 && remove_object(**store, key_of(n - 10)) != kOk) ::_exit(5);
  }
}

TEST_F(FollowerTest, NeverReadsATornRecordWhileAnotherProcessWritesAndCompacts) {
  options_.files = nullptr;
  options_.clock = nullptr;
  options_.background = true;
  options_.compaction_bytes_per_s = 1ull << 40;
  options_.bytes_max = 12u << 20;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[0]);
    churn(options_, ends[1]);
  }
  ::close(ends[1]);
  constexpr std::uint64_t kSeed = 5;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  int newest = 0;
  ASSERT_EQ(::read(ends[0], &newest, sizeof newest), static_cast<ssize_t>(sizeof newest));
  follow(2);
  int hits = 0;
  int fresh_hits = 0;
  while (newest < 4000) {
    ASSERT_EQ(::read(ends[0], &newest, sizeof newest), static_cast<ssize_t>(sizeof newest));
    const int back = static_cast<int>(random.below(400));
    const int n = std::max(1, newest - back);
    const StatusCode code = seen(key_of(n), length_of(n));
    ASSERT_TRUE(code == kOk || code == kMiss) << n << " " << to_string(code) << log_;
    hits += code == kOk ? 1 : 0;
    if (newest % 200 == 0) {
      // A multiple of four, so that it stays until it is evicted.
      const int kept = newest - 2 - (newest - 12) % 4;
      ASSERT_TRUE(follower_->refresh().ok());
      fresh_hits += seen(key_of(kept), length_of(kept)) == kOk ? 1 : 0;
    }
  }
  EXPECT_GT(hits, 200);
  EXPECT_GE(fresh_hits, 10);
  EXPECT_GT(list_segments(options_.path).front().number, 1u) << "segments have gone";
  ::kill(child, SIGKILL);
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);
}

}  // namespace
}  // namespace hitide
