// The public Cache over a real Mooncake: every tier, both modes, a store that is down at first or
// dies later.
#include <chrono>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/integration/mooncake_environment.h"
#include "tests/support/cache_rig.h"

namespace hitide {
namespace {

using Mode = MooncakeStack::Mode;

CacheOptions mooncake_cache(const MooncakeStack& stack) {
  CacheOptions options = small_options();
  options.storage.backend = "mooncake";
  options.storage.mooncake = stack.options();
  options.policy.prefetch_policy = PrefetchPolicy::wait_complete;
  return options;
}

bool wait_for_status(Rig& rig, StorageStatus wanted) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (rig.cache().stats().storage_status == wanted) return true;
    std::this_thread::yield();
  }
  return false;
}

bool wait_for_path(Rig& rig, RegistrationPath wanted) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (rig.cache().stats().registration.front().path == wanted) return true;
    std::this_thread::yield();
  }
  return false;
}

void expect_served_from_storage(Rig& rig, TokenId start) {
  const Tokens prompt = sequence_of(50, start);
  rig.run(prompt);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  EXPECT_EQ(rig.run(prompt).served_tokens(Tier::storage), 48u);
  EXPECT_TRUE(rig.cache().check().ok());
}

class MooncakeCacheTest : public testing::TestWithParam<Mode> {
 protected:
  MooncakeCacheTest() : stack_(mooncake_stack().python(), 64, GetParam()) {}
  void SetUp() override { ASSERT_TRUE(stack_.ready()); }
  // What thin clients talk to, and real clients as well.
  std::string store_part() const { return GetParam() == Mode::standalone ? "owner" : "master"; }

  MooncakeStack stack_;
};

TEST_P(MooncakeCacheTest, TwoCachesShareWhatOneHasComputed) {
  Rig first(mooncake_cache(stack_));
  ASSERT_EQ(first.cache().stats().storage_status, StorageStatus::on)
      << first.cache().stats().storage_detail;
  ASSERT_EQ(first.cache().stats().registration.size(), 1u);
  EXPECT_EQ(first.cache().stats().registration.front().path, RegistrationPath::zero_copy);
  const Tokens prompt = sequence_of(50);
  first.run(prompt);
  first.settle();
  Rig second(mooncake_cache(stack_));
  EXPECT_EQ(second.run(prompt).served_tokens(Tier::storage), 48u);
  expect_served_from_storage(first, 1000);
}

TEST_P(MooncakeCacheTest, EveryAllocatorServesFromStorage) {
  for (const char* allocator : {"shm", "mmap", "store"}) {
    SCOPED_TRACE(allocator);
    CacheOptions options = mooncake_cache(stack_);
    options.host.allocator = allocator;
    Rig rig(options);
    const CacheStats stats = rig.cache().stats();
    ASSERT_EQ(stats.storage_status, StorageStatus::on) << stats.storage_detail;
    EXPECT_EQ(stats.registration.front().path, std::string(allocator) == "mmap"
                                                   ? RegistrationPath::staged
                                                   : RegistrationPath::zero_copy)
        << stats.registration.front().reason;
    expect_served_from_storage(rig, 10'000 + allocator[1]);
  }
}

TEST_P(MooncakeCacheTest, AStoreThatIsDownAtStartIsAttachedByItself) {
  stack_.tell("kill-" + store_part());
  CacheOptions options = mooncake_cache(stack_);
  options.storage.mooncake.start_limit = std::chrono::seconds(2);
  Rig rig(options);
  const CacheStats stats = rig.cache().stats();
  EXPECT_EQ(stats.storage_status, StorageStatus::waiting);
  ASSERT_EQ(stats.registration.size(), 1u);
  EXPECT_EQ(stats.registration.front().verdict, RegistrationVerdict::client_down);
  EXPECT_EQ(stats.registration.front().path, RegistrationPath::off);
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  EXPECT_EQ(rig.run(prompt).served_tokens(), 48u) << "device and host go on";
  stack_.tell("start-" + store_part());
  ASSERT_TRUE(wait_for_status(rig, StorageStatus::on)) << rig.cache().stats().storage_detail;
  // A new master knows of the owner's segment a moment later; an old one sends puts to the dead
  // daemon's until it forgets it. Each try is computed once and has to come back.
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::uint32_t served = 0;
  for (TokenId start = 2000; served < 48; start += 1000) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "storage never served";
    const Tokens again = sequence_of(50, start);
    rig.run(again);
    rig.settle();
    ASSERT_TRUE(rig.cache().flush().ok());
    served = rig.run(again).served_tokens(Tier::storage);
  }
  EXPECT_TRUE(wait_for_path(rig, RegistrationPath::zero_copy));
}

TEST_P(MooncakeCacheTest, ADeadOwnerIsAMissWithItsReason) {
  Rig rig(mooncake_cache(stack_));
  ASSERT_EQ(rig.cache().stats().storage_status, StorageStatus::on);
  const Tokens prompt = sequence_of(50);
  rig.run(prompt);
  rig.settle();
  stack_.tell("kill-owner");
  ASSERT_TRUE(rig.cache().flush().ok());
  const Explanation lost = rig.run(prompt);
  EXPECT_EQ(lost.served_tokens(), 0u);
  const MissReason reason = lost.missed.front().reason;
  EXPECT_TRUE(reason == MissReason::storage_failed || reason == MissReason::storage_miss ||
              reason == MissReason::evicted_host)
      << to_string(reason);
  EXPECT_LT(lost.storage_wait, std::chrono::seconds(10));
}

INSTANTIATE_TEST_SUITE_P(Modes, MooncakeCacheTest,
                         testing::Values(Mode::embedded, Mode::standalone), [](const auto& at) {
                           return at.param == Mode::embedded ? "embedded" : "standalone";
                         });

}  // namespace
}  // namespace hitide
