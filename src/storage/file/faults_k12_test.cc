// faults.md K12: files and disks. Elsewhere: files that cannot be removed (B153), files of earlier
// runs (B157) and rescans (B161) in file_store_test.cc, objects at the limit (B163) in the suite of
// all stores, a slow disk under a cache (B159) in runtime/slow_disk_test.cc, numbers of registered
// regions (B167) in storage/mooncake/parts_test.cc, a real Mooncake with a disk (B163, B165) in
// tests/integration/mooncake_disk_test.cc.
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <sys/resource.h>

#include <hitide/page_hash.h>

#include "storage/page_store.h"
#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

using std::chrono::seconds;

// Writes that wait until they are let go; of those, some may then fail.
class LatchedFiles final : public FileSystem {
 public:
  std::int64_t pwritev(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    bool fails = false;
    {
      std::unique_lock lock(mutex_);
      if (pass_ > 0) {
        --pass_;
      } else {
        ++waiting_;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !held_; });
        --waiting_;
        fails = failing_ > 0;
        if (fails) --failing_;
      }
    }
    if (!fails) return FileSystem::pwritev(fd, buffers, offset);
    const iovec half = {.iov_base = buffers[0].iov_base, .iov_len = buffers[0].iov_len / 2};
    FileSystem::pwritev(fd, {&half, 1}, offset);  // torn
    return -EIO;
  }
  // So many writes pass; those after them wait.
  void hold_after(int pass) {
    const std::lock_guard lock(mutex_);
    held_ = true;
    pass_ = pass;
  }
  // Lets all go; so many of them fail.
  void let_go(int failing = 0) {
    const std::lock_guard lock(mutex_);
    held_ = false;
    failing_ = failing;
    changed_.notify_all();
  }
  bool wait_for_a_write() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(20), [this] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int pass_ = 0;
  int failing_ = 0;
  int waiting_ = 0;
};

class FaultsK12 : public FileStoreTest {
 protected:
  ~FaultsK12() override { store_.reset(); }  // it writes by latched_

  static constexpr const char* kKey = "one";
  static constexpr std::size_t kBytes = 64 << 10;
  void use_latched() {
    options_.files = &latched_;
    ASSERT_TRUE(open().ok());
    // The segment's own header is no part of the races.
    ASSERT_EQ(put("before", 100), kOk);
  }
  StatusCode put_until(TimePoint deadline) {
    return put_object(*store_, kKey, bytes_of(kKey, kBytes), {.deadline = deadline});
  }
  // As a process leaves the directory that was killed: what is in it is told by its headers alone.
  void forget_checkpoints() {
    store_.reset();
    std::vector<std::filesystem::path> checkpoints;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.path)) {
      if (entry.path().extension() == ".idx") checkpoints.push_back(entry.path());
    }
    for (const auto& path : checkpoints) std::filesystem::remove(path);
  }
  LatchedFiles latched_;
};

// Two writers of one key: A is held before its payload, or before the header that makes it an
// object; B comes meanwhile. Nobody sees a half, and no failure of one harms the other's object.
TEST_F(FaultsK12, B155TwoWritersOfOneKeyHarmNeither) {
  for (const int held_at : {0, 1}) {
    for (const bool a_fails : {false, true}) {
      SCOPED_TRACE(testing::Message() << "held at write " << held_at << ", A fails " << a_fails);
      options_.path = directory_ / ("store" + std::to_string(held_at) + std::to_string(a_fails));
      latched_.hold_after(1000);
      use_latched();
      latched_.hold_after(held_at);
      StatusCode a = StatusCode::internal;
      StatusCode b = StatusCode::internal;
      std::thread writer_a([&] { a = put_until(kNoDeadline); });
      ASSERT_TRUE(latched_.wait_for_a_write());
      EXPECT_EQ(exists_object(*store_, kKey), kMiss) << "not before it is whole";
      EXPECT_EQ(check(kKey, kBytes), kMiss);
      const TimePoint short_deadline =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      EXPECT_EQ(put_until(short_deadline), StatusCode::deadline_exceeded) << "it writes nowhere";
      std::thread writer_b([&] { b = put_until(kNoDeadline); });
      latched_.let_go(a_fails ? 1 : 0);
      writer_a.join();
      writer_b.join();
      // B may have come before or after A has ended; where A failed, B has written itself.
      EXPECT_EQ(a == kOk, !a_fails) << to_string(a);
      EXPECT_EQ(b, a_fails ? kOk : StatusCode::already_exists);
      EXPECT_EQ(check(kKey, kBytes), kOk);
      ASSERT_TRUE(open().ok());
      EXPECT_EQ(check(kKey, kBytes), kOk);
      EXPECT_EQ(check("before", 100), kOk);
    }
  }
}

// A writer fails in the middle, with another's object behind its place already, so that the place
// is nobody's any more: there is nothing, now and after a restart, and the key can be stored anew.
TEST_F(FaultsK12, B155AFailedStoreIsInvisible) {
  for (const int held_at : {0, 1}) {
    SCOPED_TRACE(testing::Message() << "fails at write " << held_at);
    options_.path = directory_ / ("store" + std::to_string(held_at));
    latched_.hold_after(1000);
    use_latched();
    for (int failures = 0; failures < 2; ++failures) {
      latched_.hold_after(held_at);
      StatusCode code = StatusCode::internal;
      std::thread writer([&] { code = put_until(kNoDeadline); });
      ASSERT_TRUE(latched_.wait_for_a_write());
      latched_.hold_after(2);  // the other's payload and header
      const std::string behind = "behind/" + std::to_string(failures);
      EXPECT_EQ(put(behind, 5000), kOk);
      latched_.let_go(1);
      writer.join();
      EXPECT_NE(code, kOk);
      EXPECT_EQ(exists_object(*store_, kKey), kMiss);
      EXPECT_EQ(check(kKey, kBytes), kMiss);
      forget_checkpoints();
      ASSERT_TRUE(open().ok());
      EXPECT_EQ(check(kKey, kBytes), kMiss) << "nor after a restart";
      EXPECT_EQ(check(behind, 5000), kOk);
    }
    latched_.hold_after(1000);
    EXPECT_EQ(put_until(kNoDeadline), kOk);
    EXPECT_EQ(check(kKey, kBytes), kOk);
  }
}

// 64 descriptors; batches over batches whose opens and transfers fail.
TEST_F(FaultsK12, B167DescriptorsAreNotUsedUpByFailures) {
  in_a_process_with(RLIMIT_NOFILE, 64, [this] {
    // Beside those of the segments, which are open while they are there.
    const auto count_open = [this] {
      const auto all = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                     std::filesystem::directory_iterator());
      return all - static_cast<std::ptrdiff_t>(list_segments(options_.path).size());
    };
    const int count = fill_segments(2);
    const auto before = count_open();
    for (int batch = 0; batch < 1000; ++batch) {
      switch (batch % 4) {
        case 0:
          files_.read_error = EIO;
          break;
        case 1:
          files_.write_error = EIO;
          files_.write_errors = 2;
          break;
        case 2:
          files_.open_error = EMFILE;
          break;
        default:
          break;  // and one that succeeds
      }
      const std::string mine = "batch/" + std::to_string(batch);
      put(mine, 1000);
      check(name(batch % count), kSize);
      check(mine, 1000);
      remove_object(*store_, mine);
      if (batch % 100 == 2) {
        open().ignore();  // with no descriptor to be had
        files_.open_error = 0;
        ASSERT_TRUE(open().ok());
      }
      files_.read_error = 0;
      files_.write_errors = 0;
      files_.open_error = 0;
      clock_.advance(seconds(60));
      ASSERT_LE(count_open(), before) << "batch " << batch;
    }
    EXPECT_EQ(held(count), count) << "and nothing was lost by it";
    EXPECT_EQ(put("last", 1000), kOk);
    EXPECT_EQ(check("last", 1000), kOk);
  });
}

// Model path, salt and tokens are behind digests: however long they are, a name is not.
TEST_F(FaultsK12, B169NamesAreBoundedWhateverTheyStandFor) {
  ASSERT_TRUE(open().ok());
  std::set<std::string> names;
  for (const std::size_t path : {1u, 134u, 4096u}) {
    for (const std::size_t salt : {1u, 64u, 118u, 119u, 120u, 121u, 122u, 8192u}) {
      SCOPED_TRACE(testing::Message() << "path of " << path << ", salt of " << salt);
      ModelSpec model;
      model.model_name = std::string(path, 'm');
      model.weights_digest = std::string(path, 'w');
      PoolSpec pool;
      pool.name = "fifteen_letters";
      pool.page_size = 4;
      pool.page_bytes = 1000;
      model.pools = {pool};
      model.ranks = {.tp_rank = 999, .tp_size = 1000, .pp_rank = 99, .pp_size = 100};
      ASSERT_TRUE(validate(model).ok());
      const std::string text(salt, 's');
      PageHashOptions options;
      options.page_size = 4;
      options.cache_salt = text;
      const std::vector<std::int64_t> tokens = {1, 2, 3, 4};
      const PageKey key = page_hashes(tokens, options).value().front();
      PageStore pages(*store_, model);
      const std::string object_key = pages.keys().object_key(key, pool.name);
      EXPECT_LE(object_key.size(), kObjectKeyBytesMax);
      EXPECT_TRUE(names.insert(object_key).second) << "it was another one's name";
      std::vector<std::byte> memory(page_layout(pool).object_bytes(), std::byte{7});
      const PageSlot page{.key = key, .slot = memory};
      StatusCode code = StatusCode::internal;
      EXPECT_TRUE(pages.store({&page, 1}, {&code, 1}, {}).status.ok());
      EXPECT_EQ(code, kOk);
      EXPECT_TRUE(pages.load({&page, 1}, {&code, 1}, {}).status.ok());
      EXPECT_EQ(code, kOk);
    }
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.path)) {
    EXPECT_LE(entry.path().filename().string().size(), 32u) << entry.path();
  }
}

}  // namespace
}  // namespace hitide
