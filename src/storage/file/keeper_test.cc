// The keeper: room ahead of the puts, compaction, checkpoints; and what readers notice of it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

using std::chrono::seconds;

// Deletions that wait until they are let go.
class SlowFiles final : public FileSystem {
 public:
  int unlink(const FileAt& file) override {
    {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !held_; });
      --waiting_;
    }
    return FileSystem::unlink(file);
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  bool wait_for_a_deletion() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(20), [this] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int waiting_ = 0;
};

class KeeperTest : public FileStoreTest {
 protected:
  KeeperTest() {
    options_.background = true;
    options_.compaction_bytes_per_s = 1ull << 40;
    options_.bytes_max = 16u << 20;
    options_.clock = nullptr;
  }
  // Until the condition holds, or long after it should have.
  static bool eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Removes what is not wanted of the first `count` objects.
  void remove_all_but(int count, const std::function<bool(int)>& wanted) {
    for (int n = 0; n < count; ++n) {
      if (wanted(n)) continue;
      ASSERT_EQ(remove_object(*store_, name(n)), kOk) << n;
    }
  }
  bool segment_exists(std::uint64_t number) {
    return std::filesystem::exists(segment_path(options_.path, number));
  }
  std::string checkpoint_path(std::uint64_t number) {
    return std::filesystem::path(segment_path(options_.path, number))
        .replace_extension(".idx")
        .string();
  }
};

// ---- room ---------------------------------------------------------------------------------------

TEST_F(KeeperTest, RoomIsMadeAheadOfThePuts) {
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 400; ++n) ASSERT_EQ(put(name(n), kSize), kOk) << n;
  EXPECT_TRUE(eventually(
      [&] { return store_->stats().bytes_used + options_.segment_bytes <= options_.bytes_max; }));
  EXPECT_EQ(store_->stats().failures, 0u);
  EXPECT_GT(store_->stats().evicted_segments, 10u);
  EXPECT_EQ(check(name(399), kSize), kOk);
  EXPECT_EQ(check(name(0), kSize), kMiss);
}

// A deletion that takes forever: gets go on, and so do puts while there is room ahead; after that
// they wait until their deadline, and the store goes on when the disk does.
TEST_F(KeeperTest, ADeletionThatHangsStallsNoRead) {
  SlowFiles slow;
  options_.files = &slow;
  ASSERT_TRUE(open().ok());
  int count = 0;
  while (store_->stats().bytes_used + 2 * options_.segment_bytes < options_.bytes_max) {
    ASSERT_EQ(put(name(count++), kSize), kOk);
  }
  slow.hold(true);
  bool waited = false;
  const std::string payload(kSize, 'x');
  const auto bytes = std::as_bytes(std::span(payload));
  int extra = 0;
  while (extra < 100) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    const StatusCode code =
        put_object(*store_, "extra/" + std::to_string(extra), bytes, {.deadline = deadline});
    if (code == StatusCode::deadline_exceeded) {
      waited = true;
      EXPECT_LT(std::chrono::steady_clock::now(), deadline + seconds(10));
      break;
    }
    ASSERT_EQ(code, kOk);
    ++extra;
  }
  EXPECT_TRUE(waited) << "the store would be larger than its limit";
  EXPECT_GE(extra, 8) << "what was free ahead";
  ASSERT_TRUE(slow.wait_for_a_deletion());
  EXPECT_EQ(held(count), count) << "what is being deleted is still served";
  EXPECT_EQ(exists_object(*store_, "nothing"), kMiss);
  EXPECT_EQ(store_->close(std::chrono::steady_clock::now() + std::chrono::milliseconds(50)).code(),
            StatusCode::deadline_exceeded)
      << "close() keeps to its deadline too";
  slow.hold(false);
  EXPECT_TRUE(store_->close(kNoDeadline).ok());
  options_.files = &files_;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(put("again", kSize), kOk);
  store_.reset();
}

TEST_F(KeeperTest, AKeeperSurvivesEverythingThatFails) {
  ASSERT_TRUE(open().ok());
  files_.open_error = EMFILE;
  files_.sync_error = EIO;
  for (int n = 0; n < 30; ++n) put(name(n), kSize);
  files_.open_error = 0;
  for (int n = 30; n < 200; ++n) put(name(n), kSize);
  files_.read_error = EIO;  // what would be compacted cannot be read
  for (int n = 100; n < 190; ++n) remove_object(*store_, name(n));
  files_.read_error = 0;
  files_.sync_error = 0;
  for (int n = 200; n < 600; ++n) ASSERT_EQ(put(name(n), kSize), kOk) << n;
  EXPECT_TRUE(eventually([&] { return store_->stats().checkpoints > 0; })) << log_;
  EXPECT_EQ(check(name(599), kSize), kOk);
}

// However old what is alive is: a segment in which everything is dead goes before it.
TEST_F(KeeperTest, DeadSegmentsGoBeforeOldOnes) {
  options_.background = false;
  ASSERT_TRUE(open().ok());
  const int first = fill_segments(2);
  const int second = fill_segments(3, first);
  int count = fill_segments(4, second);
  // The object that did not fit in the first is the first of the second.
  remove_all_but(second - 1, [&](int n) { return n < first - 1; });
  while (segment_exists(2)) ASSERT_EQ(put(name(count++), kSize), kOk);
  EXPECT_EQ(held(first - 1), first - 1) << "of the oldest segment";
  EXPECT_TRUE(segment_exists(1));
}

// ---- the limit ----------------------------------------------------------------------------------

TEST_F(KeeperTest, TheLimitGrowsAndShrinksWhileServing) {
  ASSERT_TRUE(open().ok());
  int count = 0;
  while (count < 130) ASSERT_EQ(put(name(count++), kSize), kOk);
  const int before = held(count);
  ASSERT_TRUE(store_->set_bytes_limit(64u << 20).ok());
  EXPECT_EQ(store_->stats().bytes_limit, 64u << 20);
  while (count < 430) ASSERT_EQ(put(name(count++), kSize), kOk);
  EXPECT_GE(held(count), before + 300) << "nothing had to go";

  ASSERT_TRUE(store_->set_bytes_limit(4u << 20).ok());
  EXPECT_TRUE(eventually([&] { return store_->stats().bytes_used <= 4u << 20; }));
  const int kept = held(count);
  EXPECT_GE(kept, 20);
  EXPECT_EQ(check(name(count - 1), kSize), kOk) << "the newest stay";
  while (count < 530) ASSERT_EQ(put(name(count++), kSize), kOk);
  EXPECT_LE(store_->stats().bytes_used, 4u << 20);
  EXPECT_EQ(put("large", 3u << 20), StatusCode::invalid_argument);
  EXPECT_EQ(store_->set_bytes_limit(1000).code(), StatusCode::invalid_argument);
  ASSERT_TRUE(store_->close(kNoDeadline).ok());
  EXPECT_EQ(store_->set_bytes_limit(8u << 20).code(), StatusCode::failed_precondition);
}

TEST_F(KeeperTest, WithoutAKeeperTheLimitShrinksAtOnce) {
  options_.background = false;
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 130; ++n) ASSERT_EQ(put(name(n), kSize), kOk);
  ASSERT_TRUE(store_->set_bytes_limit(4u << 20).ok());
  EXPECT_LE(store_->stats().bytes_used, 4u << 20);
  EXPECT_GE(held(130), 20);
}

// ---- compaction ---------------------------------------------------------------------------------

TEST_F(KeeperTest, SegmentsThatAreMostlyDeadAreWrittenAnew) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(5);
  const auto wanted = [](int n) { return n % 5 == 0; };
  remove_all_but(count, wanted);
  ASSERT_TRUE(eventually([&] { return store_->stats().compactions >= 4; })) << log_;
  EXPECT_TRUE(eventually([&] { return !segment_exists(1) && !segment_exists(4); }));
  const StoreStats stats = store_->stats();
  EXPECT_LE(stats.bytes_used, 3 * options_.segment_bytes) << "five segments had one fifth alive";
  EXPECT_GT(stats.compacted_bytes, 0u);
  EXPECT_EQ(stats.evicted_objects, 0u);
  EXPECT_EQ(stats.put_bytes, static_cast<std::uint64_t>(count) * kSize) << "a copy is no put";
  for (int round = 0; round < 2; ++round) {
    for (int n = 0; n < count; ++n) {
      ASSERT_EQ(check(name(n), kSize), wanted(n) ? kOk : kMiss) << n << " round " << round;
    }
    ASSERT_TRUE(open().ok());
  }
}

TEST_F(KeeperTest, CompactionKeepsWhenARecordWasWritten) {
  options_.unix_seconds = [] { return std::uint32_t{1'600'000'000}; };
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(3);
  remove_all_but(count, [](int n) { return n == 0; });
  ASSERT_TRUE(eventually([&] { return !segment_exists(1); }));
  EXPECT_EQ(check(name(0), kSize), kOk);
  const auto spaces = store_->namespaces();
  ASSERT_EQ(spaces.size(), 1u);
  EXPECT_EQ(spaces[0].name, "object");
  EXPECT_EQ(spaces[0].objects, 1u);
  EXPECT_EQ(spaces[0].bytes, kSize);
  EXPECT_EQ(spaces[0].oldest_s, 1'600'000'000u);
}

TEST_F(KeeperTest, DamagedRecordsAreLeftBehind) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(2);
  const auto damage = [&](std::uint64_t record) {
    auto bytes = read_bytes(segment_path(options_.path, 1));
    bytes[kBlockBytes + record * record_bytes(kSize) + kBlockBytes + 100] ^= 1;
    return bytes;
  };
  store_.reset();
  write_bytes(segment_path(options_.path, 1), damage(1));
  ASSERT_TRUE(open().ok());
  remove_all_but(count, [](int n) { return n == 0 || n == 1; });
  ASSERT_TRUE(eventually([&] { return !segment_exists(1); })) << log_;
  EXPECT_EQ(check(name(0), kSize), kOk);
  EXPECT_EQ(check(name(1), kSize), kMiss);
}

// Readers, writers, removers and the keeper at once; every byte right, every removal final.
TEST_F(KeeperTest, NobodyNoticesACompaction) {
  options_.sync_interval_ms = 1;
  ASSERT_TRUE(open().ok());
  constexpr int kObjects = 60;  // rewritten again and again
  constexpr std::size_t kLength = 30'000;
  std::atomic<int> wrong = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int n = 1000; n < 1010; ++n) ASSERT_EQ(put(name(n), kLength), kOk);  // stay
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; !stop; ++round) {
        const int n = (round * 2 + t) % kObjects;
        if (put(name(n), kLength) != kOk) ++wrong;
        if (check(name(n), kLength) != kOk) ++wrong;
        if (remove_object(*store_, name(n)) != kOk) ++wrong;
        if (check(name(n), kLength) != kMiss) ++wrong;
      }
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; !stop; ++round) {
      if (check(name(1000 + round % 10), kLength) != kOk) ++wrong;
      const StatusCode code = check(name(round % kObjects), kLength);
      if (code != kOk && code != kMiss) ++wrong;
    }
  });
  EXPECT_TRUE(eventually([&] { return store_->stats().compactions >= 20; })) << log_;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0) << log_;
  ASSERT_TRUE(open().ok());
  for (int n = 1000; n < 1010; ++n) EXPECT_EQ(check(name(n), kLength), kOk) << n;
  for (int n = 0; n < kObjects; ++n) EXPECT_EQ(check(name(n), kLength), kMiss) << n;
}

// ---- checkpoints --------------------------------------------------------------------------------

// Counts the reads of a start.
class CountingFiles final : public FileSystem {
 public:
  std::int64_t preadv(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    ++reads;
    return FileSystem::preadv(fd, buffers, offset);
  }
  std::atomic<int> reads = 0;
};

TEST_F(KeeperTest, AStartReadsCheckpointsInsteadOfRecords) {
  CountingFiles counting;
  options_.files = &counting;
  ASSERT_TRUE(open().ok());
  int count = 0;
  while (list_segments(options_.path).size() < 4) ASSERT_EQ(put(name(count++), 3000), kOk);
  ASSERT_TRUE(store_->close(kNoDeadline).ok());
  counting.reads = 0;
  ASSERT_TRUE(open().ok());
  EXPECT_LE(counting.reads, 2 * 4 + 2) << "a header and a checkpoint for each segment";
  EXPECT_EQ(store_->stats().objects, static_cast<std::uint64_t>(count));
  for (int n = 0; n < count; ++n) ASSERT_EQ(check(name(n), 3000), kOk);
  EXPECT_EQ(store_->namespaces().front().objects, static_cast<std::uint64_t>(count));
  store_.reset();
  options_.files = &files_;
}

TEST_F(KeeperTest, SealedSegmentsGetTheirCheckpointWhileServing) {
  ASSERT_TRUE(open().ok());
  fill_segments(4);
  EXPECT_TRUE(eventually([&] {
    return std::filesystem::exists(checkpoint_path(1)) &&
           std::filesystem::exists(checkpoint_path(2)) &&
           std::filesystem::exists(checkpoint_path(3));
  }));
  EXPECT_FALSE(std::filesystem::exists(checkpoint_path(4))) << "it grows";
}

// A removed object must not come back by way of a checkpoint, whenever the process ends.
TEST_F(KeeperTest, CheckpointsOfSegmentsWithRemovedObjectsAreVoidFirst) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(3);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(checkpoint_path(1)); }));
  options_.compaction_bytes_per_s = 0;
  ASSERT_TRUE(open().ok());
  files_.sync_error = EIO;  // no new checkpoints
  ASSERT_EQ(remove_object(*store_, name(0)), kOk);
  EXPECT_FALSE(std::filesystem::exists(checkpoint_path(1)));
  EXPECT_TRUE(std::filesystem::exists(checkpoint_path(2)));
  // As after a crash: the directory is copied as it is now.
  const std::string copy = directory_ / "copy";
  std::filesystem::copy(options_.path, copy, std::filesystem::copy_options::recursive);
  store_->close(kNoDeadline).ignore();
  files_.sync_error = 0;
  options_.path = copy;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(exists_object(*store_, name(0)), kMiss);
  EXPECT_EQ(held(count), count - 1);
}

// ---- sync_puts ----------------------------------------------------------------------------------

TEST_F(KeeperTest, PutsThatMustLastShareTheirSyncs) {
  options_.sync_puts = true;
  ASSERT_TRUE(open().ok());
  files_.syncs = 0;
  ASSERT_EQ(put("a", 100), kOk);
  EXPECT_GE(files_.syncs, 1);
  constexpr int kThreads = 8;
  constexpr int kEach = 20;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < kEach; ++n) {
        if (put(name(t * kEach + n), 100) != kOk) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LT(store_->stats().syncs, kThreads * kEach) << "fewer syncs than puts";
  ASSERT_EQ(remove_object(*store_, "a"), kOk);
}

TEST_F(KeeperTest, APutWhoseSyncFailsIsNotAcknowledged) {
  options_.sync_puts = true;
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("before", 100), kOk);
  files_.sync_error = EIO;
  EXPECT_EQ(put("a", 100), StatusCode::unavailable);
  files_.sync_error = 0;
  EXPECT_EQ(put("b", 100), kOk) << "in a new segment";
  EXPECT_TRUE(segment_exists(2));
  EXPECT_EQ(check("before", 100), kOk);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("b", 100), kOk);
}

// ---- kill -9 in the middle of a compaction ------------------------------------------------------

std::size_t length_of(int n) { return 1 + static_cast<std::size_t>(n) * 7919 % 40'000; }

// Removes and rewrites so that segments are compacted all the time. Each line down the pipe is an
// acknowledged step: n > 0: object n is there; n < 0: it has been removed.
[[noreturn]] void churn(const FileStoreOptions& options, int first, int pipe) {
  auto store = FileStore::open(options);
  if (!store.ok()) ::_exit(2);
  for (int n = first;; ++n) {
    const std::string key = "churn/" + std::to_string(n);
    if (put_object(**store, key, bytes_of(key, length_of(n))) != kOk) ::_exit(3);
    if (::write(pipe, &n, sizeof n) != sizeof n) ::_exit(4);
    const int gone = -(n - 10);
    if (n - first < 10 || gone % 4 == 0) continue;
    if (remove_object(**store, "churn/" + std::to_string(-gone)) != kOk) ::_exit(5);
    if (::write(pipe, &gone, sizeof gone) != sizeof gone) ::_exit(6);
  }
}

TEST_F(KeeperTest, KilledWhileCompactingNothingIsLostAndNothingComesBack) {
  options_.files = nullptr;
  options_.bytes_max = 256u << 20;
  options_.segment_bytes = 1u << 20;
  options_.sync_interval_ms = 1;
  std::map<int, bool> there;
  int next = 1;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::uint64_t kill_after = 200 + Random(seed).below(300);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      churn(options_, next, ends[1]);
    }
    ::close(ends[1]);
    std::uint64_t heard = 0;
    int step = 0;
    while (::read(ends[0], &step, sizeof step) == sizeof step) {
      there[std::abs(step)] = step > 0;
      next = std::max(next, std::abs(step) + 1);
      if (++heard == kill_after) ::kill(child, SIGKILL);
    }
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    ASSERT_TRUE(open().ok());
    for (const auto& [n, present] : there) {
      const StatusCode code = check("churn/" + std::to_string(n), length_of(n));
      // The removal that was under way may have been done and not been heard of.
      const bool under_way = n >= next - 13 && code == kMiss;
      ASSERT_TRUE(code == (present ? kOk : kMiss) || under_way) << n << " " << to_string(code);
      if (present && code == kMiss) there[n] = false;
    }
    store_.reset();
    next += 2;
  }
  EXPECT_TRUE(list_segments(options_.path).front().number > 1) << "segments were compacted";
}

}  // namespace
}  // namespace hitide
