// A file store on a slow disk under a cache that is too small for what it serves: pages go down to
// the disk, are evicted from it, and come back while others do the same.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <hitide/cache.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/file/file_store.h"
#include "tests/support/cache_rig.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

// Each transfer takes its time, and never the same: whoever is later started may be first.
class SlowFiles final : public FileSystem {
 public:
  std::int64_t preadv(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    linger();
    const std::int64_t got = FileSystem::preadv(fd, buffers, offset);
    linger();
    return got;
  }
  std::int64_t pwritev(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    linger();
    return FileSystem::pwritev(fd, buffers, offset);
  }

 private:
  void linger() {
    const std::uint64_t number = calls_.fetch_add(1) * 0x9e3779b97f4a7c15ull;
    const TimePoint end =
        std::chrono::steady_clock::now() + std::chrono::microseconds((number >> 40) % 400);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  std::atomic<std::uint64_t> calls_ = 0;
};

// Conversations that share beginnings: a prompt is some turns of one of them.
Tokens turns_of(std::uint64_t conversation, std::uint32_t pages) {
  Tokens tokens = sequence_of(2 * kPageSize, static_cast<TokenId>(conversation % 3) * 1000);
  const Tokens own =
      sequence_of(pages * kPageSize + 1, 10'000 + static_cast<TokenId>(conversation) * 1000);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

std::uint64_t writes_under_way(Rig& rig) {
  const PoolStats host = rig.cache().stats().host;
  return host.pages_in_flight + host.pages_pinned;
}

// A page's bytes are a function of its namespace and of all tokens up to its end (Rig), so that a
// page of another conversation is seen as what it is. faults.md K12 B159.
TEST(SlowDisk, K12_B159_EveryPageThatComesBackIsItsOwn) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 60;
  constexpr std::uint64_t kConversations = 40;
  const std::uint64_t seed = 4711;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  set_log_level(LogLevel::error);
  const TempDirectory directory;
  SlowFiles files;
  FileStoreOptions store_options;
  store_options.path = directory / "store";
  store_options.bytes_max = 2u << 20;
  store_options.segment_bytes = 1u << 17;
  store_options.disk_free_bytes_min = 0;
  store_options.files = &files;
  auto store = FileStore::open(store_options);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  CacheOptions options = small_options();
  options.host.bytes = 48 * 4096;
  std::atomic<std::uint64_t> from_storage = 0;
  {
    Rig rig(options, std::move(*store), {48, kPageSize, kPageBytes, 12});
    std::vector<std::jthread> threads;
    for (std::uint64_t worker = 0; worker < kThreads; ++worker) {
      threads.emplace_back([&, worker] {
        Random random(seed + worker);
        for (int i = 0; i < kRequests; ++i) {
          const Tokens prompt = turns_of(random.below(kConversations),
                                         2 + static_cast<std::uint32_t>(random.below(6)));
          const std::string salt = random.below(4) == 0 ? "tenant" : "";
          Result<PrefixHandle> handle = rig.open(prompt, salt);
          ASSERT_TRUE(handle.ok()) << handle.status().to_string();
          ASSERT_TRUE(rig.wait_while(*handle, PrefixState::waiting));
          ASSERT_TRUE(rig.admit_in_time(*handle));
          ASSERT_TRUE(rig.wait_while(*handle, PrefixState::loading));
          rig.verify_and_compute(*handle, prompt, salt);
          const std::string id = handle->explanation_id();
          ASSERT_TRUE(handle->finish(prompt).ok());
          from_storage += rig.cache().explain(id).value().served_tokens(Tier::storage);
          // Backups that come faster than the disk writes are dropped: an engine computes
          // meanwhile.
          const TimePoint patience = soon();
          while (writes_under_way(rig) > 8 && std::chrono::steady_clock::now() < patience) {
            std::this_thread::yield();
          }
        }
      });
    }
    threads.clear();
    rig.settle();
    const CacheStats stats = rig.cache().stats();
    EXPECT_GT(stats.storage.evicted_objects, 0u) << "the disk was large enough for all";
    EXPECT_EQ(stats.verification_failures, 0u);
    EXPECT_TRUE(rig.cache().check().ok()) << rig.cache().check().to_string();
  }
  EXPECT_GT(from_storage, 0u) << "nothing came back from the disk";
  set_log_level(LogLevel::info);
}

}  // namespace
}  // namespace hitide
