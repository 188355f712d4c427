// faults.md K17 B217: what a store says that it holds is what it holds, after every step that adds
// or takes something away.
#include <map>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include <hitide/file_store.h>

#include "base/random.h"
#include "storage/file/file_store.h"
#include "storage/file/record.h"
#include "storage/memory/memory_store.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

constexpr auto kOk = StatusCode::ok;
constexpr int kKeys = 60;

std::string key_of(std::uint64_t number) {
  return (number % 2 == 0 ? "even/" : "odd/") + std::to_string(number);
}
std::size_t size_of(std::uint64_t number) { return 11 + number % 7 * 9000; }

// What can be read, counted anew.
struct Held {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;   // of keys and payloads
  std::uint64_t blocks = 0;  // of records in files
};
Held held_by(ObjectStore& store) {
  Held held;
  for (std::uint64_t number = 0; number < kKeys; ++number) {
    const std::string key = key_of(number);
    const StatusCode code = check_object(store, key, size_of(number));
    EXPECT_TRUE(code == kOk || code == StatusCode::not_found) << to_string(code);
    if (code != kOk) continue;
    ++held.objects;
    held.bytes += key.size() + size_of(number);
    held.blocks += record_bytes(size_of(number));
  }
  return held;
}

// One step: mostly puts, so that the store is full most of the time.
void step(ObjectStore& store, Random& random) {
  const std::uint64_t number = random.below(kKeys);
  const std::uint64_t kind = random.below(20);
  if (kind < 14) {
    put_object(store, key_of(number), bytes_of(key_of(number), size_of(number)));
  } else if (kind < 19) {
    EXPECT_EQ(remove_object(store, key_of(number)), kOk);
  } else {
    EXPECT_TRUE(store.remove_prefix(random.chance(0.5) ? "even/" : "odd/", {}).ok());
  }
}

TEST(FaultsK17, B217TheGaugesOfAMemoryStoreAreWhatItHolds) {
  Random random(1);
  MemoryStore store(300'000);
  for (int i = 0; i < 1500; ++i) {
    step(store, random);
    const StoreStats stats = store.stats();
    const Held held = held_by(store);
    ASSERT_EQ(stats.objects, held.objects) << "step " << i;
    ASSERT_EQ(stats.bytes_used, held.bytes) << "step " << i;
    ASSERT_LE(stats.bytes_used, stats.bytes_limit);
  }
  EXPECT_GT(store.stats().evicted_objects, 0u);
  EXPECT_TRUE(store.close(kNoDeadline).ok());
  EXPECT_EQ(store.stats().objects, 0u);
  EXPECT_EQ(store.stats().bytes_used, 0u);
}

TEST(FaultsK17, B217RemovingEverythingTwiceLeavesZero) {
  const TempDirectory directory;
  FileStoreOptions options;
  options.path = directory / "store";
  options.bytes_max = 1u << 20;
  options.disk_free_bytes_min = 0;
  auto file = FileStore::open(options);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  MemoryStore memory(1u << 20);
  for (ObjectStore* store :
       {static_cast<ObjectStore*>(&memory), static_cast<ObjectStore*>(file->get())}) {
    EXPECT_EQ(put_object(*store, "all/one", bytes_of("all/one", 11)), kOk);
    EXPECT_EQ(remove_object(*store, "all/one"), kOk);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(*store->remove_prefix("all/", {}), 0u);
      EXPECT_EQ(remove_object(*store, "all/one"), kOk);
      EXPECT_EQ(store->stats().objects, 0u);
      EXPECT_EQ(store->stats().live_bytes, 0u);
    }
  }
  EXPECT_EQ(memory.stats().bytes_used, 0u);
}

// Beside every step the store is opened anew now and then, and its limit is changed.
TEST(FaultsK17, B217TheGaugesOfAFileStoreAreWhatItHolds) {
  Random random(2);
  const TempDirectory directory;
  FileStoreOptions options;
  options.path = directory / "store";
  options.bytes_max = 1u << 20;
  options.disk_free_bytes_min = 0;
  options.background = false;
  options.sync_interval_ms = 0;
  auto store = FileStore::open(options);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  std::uint64_t evicted = 0;
  for (int i = 0; i < 600; ++i) {
    if (random.chance(0.02)) {
      evicted += (*store)->stats().evicted_objects;
      ASSERT_TRUE((*store)->close(kNoDeadline).ok());
      EXPECT_EQ((*store)->stats().objects, 0u) << "closed";
      store->reset();
      options.bytes_max = random.chance(0.5) ? 1u << 20 : 2u << 20;
      store = FileStore::open(options);
      ASSERT_TRUE(store.ok()) << store.status().to_string();
    } else if (random.chance(0.02)) {
      ASSERT_TRUE((*store)->set_bytes_limit(random.chance(0.5) ? 1u << 20 : 2u << 20).ok());
    } else {
      step(**store, random);
    }
    const StoreStats stats = (*store)->stats();
    const Held held = held_by(**store);
    ASSERT_EQ(stats.objects, held.objects) << "step " << i;
    ASSERT_EQ(stats.live_bytes, held.blocks) << "step " << i;
    ASSERT_LE(stats.live_bytes, stats.bytes_used);
    ASSERT_LE(stats.bytes_used, stats.bytes_limit);
    const auto contents = inspect_file_store(options.path);
    ASSERT_TRUE(contents.ok()) << contents.status().to_string();
    ASSERT_EQ(contents->objects, held.objects) << "step " << i;
    ASSERT_EQ(contents->segments.size(), stats.segments) << "step " << i;
    std::uint64_t files = 0;
    for (const FileStoreSegment& segment : contents->segments) {
      files += round_up_to_block(segment.file_bytes);
    }
    ASSERT_EQ(round_up_to_block(stats.bytes_used), files) << "step " << i;
  }
  EXPECT_GT(evicted + (*store)->stats().evicted_objects, 0u);
}

}  // namespace
}  // namespace hitide
