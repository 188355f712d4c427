// An owner with a disk behind its memory (enable_ssd_offload): what its memory has no room for
// comes back from the disk, whole, or is a miss, also at the sizes at which its client was known to
// die. faults.md K12 B163, B165.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "storage/mooncake/mooncake_store.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;
constexpr std::uint64_t kMemory = 48u << 20;

struct Object {
  std::string key;
  std::size_t size = 0;
};

class MooncakeDiskTest : public testing::Test {
 protected:
  MooncakeDiskTest() : stack_(mooncake_stack().python(), 16, MooncakeStack::Mode::disks) {}

  // A store whose memory is that of one owner, which has a disk; the stack's own owner has none.
  void SetUp() override {
    ASSERT_TRUE(stack_.ready());
    stack_.tell("kill-owner");
    MooncakeOptions options = stack_.options();
    options.global_segment_size = kMemory;
    options.enable_ssd_offload = true;
    options.ssd_offload_path = folder_.path();
    options.object_bytes_max = 32u << 20;
    options.bounce_bytes = 64u << 20;
    // Objects go to the disk as they come, not by the bucket and every ten seconds.
    options.agent_environment = {
        {"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1"},
        {"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "file_per_key_storage_backend"}};
    auto store = MooncakeStore::open(options);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    store_ = std::move(*store);
    ASSERT_TRUE(store_->wait_until_ready(soon()).ok());
    ASSERT_TRUE(in_time([this] { return store_->stats().bytes_limit == kMemory; }));
  }
  static TimePoint now() { return SystemClock::instance().now(); }
  static TimePoint soon() { return now() + 60s; }
  template <typename Condition>
  static bool in_time(const Condition& condition) {
    const TimePoint end = soon();
    while (!condition()) {
      if (now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Eviction makes room in the background, once leases are over.
  bool put_in_time(const Object& object) {
    const auto bytes = bytes_of(object.key, object.size);
    return in_time([&] {
      const StatusCode code = put_object(*store_, object.key, bytes);
      EXPECT_TRUE(code == kOk || code == StatusCode::resource_exhausted) << to_string(code);
      return code == kOk;
    });
  }
  // How many of the objects come back whole. What does not is a miss, and nothing else.
  std::size_t held(const std::vector<Object>& objects) {
    std::size_t count = 0;
    for (const Object& object : objects) {
      const StatusCode code = check_object(*store_, object.key, object.size);
      EXPECT_TRUE(code == kOk || code == kMiss) << object.key << ": " << to_string(code);
      if (code == kOk) ++count;
    }
    return count;
  }

  const TempDirectory folder_;
  MooncakeStack stack_;
  std::unique_ptr<MooncakeStore> store_;
};

// 16 MiB - 16 is the most that one of its client's slices holds. Memory has room for three of them.
TEST_F(MooncakeDiskTest, K12_B163_B165_WhatMemoryHasNoRoomForComesBackFromTheDisk) {
  constexpr std::size_t kSlice = (16u << 20) - 16;
  std::vector<Object> objects;
  for (int round = 0; round < 2; ++round) {
    for (const std::size_t size : {kSlice - 1, kSlice, kSlice + 1}) {
      objects.push_back({std::to_string(size) + "/" + std::to_string(round), size});
      ASSERT_TRUE(put_in_time(objects.back()));
    }
  }
  EXPECT_TRUE(in_time([&] { return held(objects) > 3; })) << "nothing came back from the disk";
  EXPECT_TRUE(store_->owner_mounted());
  const Object small{"after", 1000};
  ASSERT_TRUE(put_in_time(small));
  EXPECT_EQ(held({small}), 1u);
}

}  // namespace
}  // namespace hitide
