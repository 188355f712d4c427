// The power fails after every single step, and any unsynced sector and name may be lost: what a
// sync has covered is there, nothing that was removed comes back, and no byte is wrong.
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/support/file_store_fixture.h"
#include "tests/support/power_loss_files.h"

namespace hitide {
namespace {

using Loss = PowerLossFiles::Loss;

// After a crash nothing is lost any more.
class NoSyncs final : public FileSystem {
 public:
  int fdatasync(int) override { return 0; }
};

constexpr std::uint64_t kSeed = 20261201;

class PowerLossTest : public FileStoreTest {
 protected:
  PowerLossTest() {
    options_.files = &disk_;
    options_.bytes_max = 1u << 20;
    options_.segment_bytes = 40u << 10;  // four or five records
    options_.clock = nullptr;
    options_.compaction_bytes_per_s = 1ull << 40;
    disk_.observer = [this](const std::string& what) { fail_power(what); };
  }
  // Not before the store, which uses it.
  ~PowerLossTest() override { store_.reset(); }

  static std::size_t length_of(const std::string& key) { return 200 + key.size() * 400; }
  // What has been acknowledged lasts, where puts wait for their sync.
  void put_it(const std::string& key) {
    begin(key);
    ASSERT_EQ(put(key, length_of(key)), kOk);
    acknowledge(key, true);
  }
  void remove_it(const std::string& key) {
    begin(key);
    ASSERT_EQ(remove_object(*store_, key), kOk);
    acknowledge(key, false);
  }

  // Every loss that is tried at one step.
  void fail_power(const std::string& what) {
    if (HasFatalFailure()) return;
    ++steps_;
    SCOPED_TRACE("step " + std::to_string(steps_) + ": " + what);
    const auto every = [](std::uint64_t, std::size_t, std::size_t) { return true; };
    const auto none = [](std::uint64_t, std::size_t, std::size_t) { return false; };
    const auto names_kept = [](const std::string&) { return true; };
    const auto names_lost = [](const std::string&) { return false; };
    restart({every, names_kept, true}, "all kept");
    restart({none, names_lost, false}, "all lost");
    restart({none, names_kept, true}, "names and sizes kept, bytes lost");
    restart({every, names_lost, true}, "names lost");
    // Each write is torn at each sector, from both ends, at the step that makes it and the next
    // one; the others are there.
    disk_.for_each_pending(2, [&](std::uint64_t file, std::size_t write, std::size_t sectors) {
      for (std::size_t torn = 0; torn < sectors; ++torn) {
        for (const bool head : {true, false}) {
          const auto keeps = [&](std::uint64_t f, std::size_t w, std::size_t sector) {
            return f != file || w != write || (sector < torn) == head;
          };
          restart({keeps, names_kept, true}, (head ? "head until " : "tail from ") +
                                                 std::to_string(torn) + " of write " +
                                                 std::to_string(write));
        }
      }
    });
    for (int round = 0; round < 4; ++round) {
      const std::uint64_t seed = kSeed + steps_ * 10 + static_cast<std::uint64_t>(round);
      Random random(seed);
      const auto some = [&](std::uint64_t, std::size_t, std::size_t) {
        return random.below(2) == 0;
      };
      const auto some_names = [&](const std::string&) { return random.below(2) == 0; };
      restart({some, some_names, round % 2 == 0}, "seed " + std::to_string(seed));
    }
  }

  void restart(const Loss& loss, const std::string& how) {
    if (HasFatalFailure()) return;
    ++losses_;
    SCOPED_TRACE(how);
    const std::string path = directory_ / "after";
    std::filesystem::remove_all(path);
    disk_.write_image(segments_directory(path), loss);
    FileStoreOptions options = options_;
    options.path = path;
    options.files = &after_;
    options.background = false;
    options.sync_puts = false;
    const auto store = FileStore::open(options);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    std::map<std::string, bool> acknowledged;
    std::set<std::string> open;
    {
      const std::lock_guard lock(mutex_);
      acknowledged = acknowledged_;
      open = open_;
    }
    for (const auto& [key, there] : acknowledged) {
      const StatusCode code = check_object(**store, key, length_of(key));
      ASSERT_NE(code, StatusCode::internal) << key << ": wrong bytes";
      if (open.contains(key) || !lasting_) continue;
      ASSERT_EQ(code, there ? kOk : kMiss) << key;
    }
    // What was under way is right or not there, and can be stored.
    for (const std::string& key : open) {
      const StatusCode code = check_object(**store, key, length_of(key));
      ASSERT_NE(code, StatusCode::internal) << key << ": wrong bytes";
      if (code == kOk) continue;
      ASSERT_EQ(put_object(**store, key, bytes_of(key, length_of(key))), kOk) << key;
      ASSERT_EQ(check_object(**store, key, length_of(key)), kOk) << key;
    }
    ASSERT_EQ(put_object(**store, "new", bytes_of("new", 700)), kOk);
    ASSERT_EQ(check_object(**store, "new", 700), kOk);
    ASSERT_TRUE((*store)->close(kNoDeadline).ok());
  }

  void begin(const std::string& key) {
    const std::lock_guard lock(mutex_);
    open_.insert(key);
    acknowledged_.try_emplace(key, false);
  }
  void acknowledge(const std::string& key, bool there) {
    const std::lock_guard lock(mutex_);
    open_.erase(key);
    acknowledged_[key] = there;
  }

  PowerLossFiles disk_;
  NoSyncs after_;
  bool lasting_ = true;  // puts wait for their sync
  std::uint64_t steps_ = 0;
  std::uint64_t losses_ = 0;
  std::mutex mutex_;
  std::map<std::string, bool> acknowledged_;  // guarded by mutex_
  std::set<std::string> open_;                // guarded by mutex_
};

TEST_F(PowerLossTest, WhatASyncHasCoveredIsThereAfterEveryStep) {
  options_.sync_puts = true;
  ASSERT_TRUE(open().ok());
  for (const char* key : {"a", "bb", "ccc", "dddd", "eeeee"}) put_it(key);
  remove_it("bb");
  put_it("bb");
  remove_it("a");
  ASSERT_TRUE(open().ok()) << "checkpoints are written";
  for (const char* key : {"f", "gg"}) put_it(key);
  remove_it("ccc");
  remove_it("f");
  ASSERT_TRUE(open().ok());
  put_it("f");
  store_.reset();
  RecordProperty("losses", std::to_string(losses_));
  EXPECT_GT(steps_, 40u);
  EXPECT_GT(losses_, 500u);
}

TEST_F(PowerLossTest, WithoutSyncsNoByteIsWrong) {
  lasting_ = false;
  ASSERT_TRUE(open().ok());
  for (const char* key : {"a", "bb", "ccc", "dddd", "eeeee"}) put_it(key);
  remove_it("bb");
  put_it("bb");
  store_.reset();
  EXPECT_GT(steps_, 15u);
}

// Copies are on the disk before their originals go, and what is removed afterwards stays away.
TEST_F(PowerLossTest, CompactionLosesNothingAndBringsNothingBack) {
  options_.sync_puts = true;
  options_.background = true;
  ASSERT_TRUE(open().ok());
  const std::string keys[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
  for (const std::string& key : keys) put_it(key);
  for (const char* key : {"a", "c", "d"}) remove_it(key);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (store_->stats().compactions == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GE(store_->stats().compactions, 1u);
  remove_it("b");
  put_it("i");
  put_it("a");
  store_.reset();
}

}  // namespace
}  // namespace hitide
