// What a real Mooncake store, its owner, its master or our agent can do to a cache: every call ends
// in bounded time, no byte is wrong, and service comes back by itself.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/file.h"
#include "storage/mooncake/mooncake_store.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;

TimePoint now() { return SystemClock::instance().now(); }
TimePoint soon() { return now() + 60s; }

// Memory that an agent can map.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : fd_(::memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(base, MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(base), bytes};
  }
  ~SharedMemory() { ::munmap(bytes_.data(), bytes_.size()); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }
  MemoryRegion region() const { return {.bytes = bytes_, .fd = fd_.get()}; }

 private:
  const UniqueFd fd_;
  std::span<std::byte> bytes_;
};

class MooncakeFaultTest : public testing::Test {
 protected:
  explicit MooncakeFaultTest(MooncakeStack::Mode mode = MooncakeStack::Mode::embedded)
      : stack_(mooncake_stack().python(), 128, mode) {}

  void SetUp() override {
    ASSERT_TRUE(stack_.ready());
    options_ = stack_.options();
    options_.call_limit = 1s;
  }

  std::unique_ptr<MooncakeStore> open() { return open(options_); }
  static std::unique_ptr<MooncakeStore> open(const MooncakeOptions& options) {
    auto store = MooncakeStore::open(options);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(*store) : nullptr;
  }

  // Calls again until the store answers so, or the test's patience ends.
  template <typename Call>
  static StatusCode until(StatusCode wanted, const Call& call) {
    const TimePoint end = soon();
    StatusCode code = call();
    while (code != wanted && now() < end) {
      std::this_thread::yield();
      code = call();
    }
    return code;
  }

  // The bytes that the store has in all, once they are so many or patience ends.
  static std::uint64_t until_limit(const MooncakeStore& store, std::uint64_t wanted) {
    const TimePoint end = soon();
    while (store.stats().bytes_limit != wanted && now() < end) std::this_thread::yield();
    return store.stats().bytes_limit;
  }

  MooncakeStack stack_;
  MooncakeOptions options_;
};

CallOutcome get_into(ObjectStore& store, std::string_view key, std::span<std::byte> buffer,
                     StatusCode& code) {
  const GetItem item{.key = key, .buffers = std::span(&buffer, 1)};
  ItemResult result;
  CallOutcome outcome = store.get({&item, 1}, {&result, 1}, {});
  code = result.code;
  return outcome;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

TEST_F(MooncakeFaultTest, RegisteredMemoryIsNotCopiedAndOtherMemoryIs) {
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(1 << 20);
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  const auto value = bytes_of("k", 100'000);
  std::copy(value.begin(), value.end(), memory.bytes().begin() + 4096);
  EXPECT_EQ(put_object(*store, "k", memory.bytes().subspan(4096, 100'000)), kOk);
  EXPECT_EQ(store->counts().zero_copy_items, 1u);
  EXPECT_EQ(store->counts().staged_items, 0u);
  StatusCode code = StatusCode::internal;
  get_into(*store, "k", memory.bytes().subspan(500'000, 100'000), code).status.ignore();
  EXPECT_EQ(code, kOk);
  EXPECT_TRUE(same(memory.bytes().subspan(500'000, 100'000), value));
  EXPECT_EQ(store->counts().zero_copy_items, 2u);
  EXPECT_EQ(check_object(*store, "k", 100'000), kOk);
  EXPECT_EQ(store->counts().staged_items, 1u);
  EXPECT_TRUE(store->unregister_memory(memory.bytes()).ok());
  get_into(*store, "k", memory.bytes().subspan(0, 100'000), code).status.ignore();
  EXPECT_EQ(code, kOk);
  EXPECT_EQ(store->counts().staged_items, 2u);
}

// K14, B200: two clients on one machine share data.
TEST_F(MooncakeFaultTest, WhatOneClientPutsAnotherGets) {
  const auto a = open();
  const auto b = open();
  ASSERT_TRUE(a && b);
  for (int i = 0; i < 20; ++i) {
    const std::string key = "shared/" + std::to_string(i);
    EXPECT_EQ(put_object(*a, key, bytes_of(key, 70'000)), kOk);
    EXPECT_EQ(check_object(*b, key, 70'000), kOk);
  }
  EXPECT_EQ(put_object(*b, "shared/0", bytes_of("other", 10)), StatusCode::already_exists);
  // A key that vanishes between exists and get is a miss.
  EXPECT_EQ(exists_object(*b, "shared/3"), kOk);
  EXPECT_EQ(remove_object(*a, "shared/3"), kOk);
  EXPECT_EQ(check_object(*b, "shared/3", 70'000), kMiss);
  EXPECT_EQ(check_object(*b, "shared/4", 70'001), StatusCode::data_loss);
}

TEST_F(MooncakeFaultTest, TagsKeepNamespacesApart) {
  options_.extra_backend_tag = "one";
  const auto one = open();
  options_.extra_backend_tag = "two";
  const auto two = open();
  ASSERT_TRUE(one && two);
  EXPECT_EQ(put_object(*one, "key", bytes_of("key", 100)), kOk);
  EXPECT_EQ(exists_object(*two, "key"), kMiss);
  EXPECT_EQ(exists_object(*one, "key"), kOk);
}

TEST_F(MooncakeFaultTest, AKilledAgentIsReplacedAndKeepsItsRegions) {
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(1 << 20);
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 50'000)), kOk);
  const int first = store->agent_pid();
  ::kill(first, SIGKILL);
  StatusCode code = StatusCode::internal;
  EXPECT_EQ(until(kOk,
                  [&] {
                    get_into(*store, "k", memory.bytes().subspan(0, 50'000), code).status.ignore();
                    EXPECT_TRUE(code == kOk || code == StatusCode::unavailable) << to_string(code);
                    return code;
                  }),
            kOk);
  EXPECT_TRUE(same(memory.bytes().subspan(0, 50'000), bytes_of("k", 50'000)));
  EXPECT_NE(store->agent_pid(), first);
  EXPECT_EQ(::kill(first, 0), -1) << "no zombie stays";
  EXPECT_EQ(store->counts().zero_copy_items, 1u) << "the new agent has mapped the region";
}

TEST_F(MooncakeFaultTest, AgentsKilledUnderLoadCostMissesOnly) {
  const auto store = open();
  ASSERT_TRUE(store);
  for (int i = 0; i < 8; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_EQ(put_object(*store, key, bytes_of(key, 300'000)), kOk);
  }
  std::atomic<bool> stop = false;
  std::atomic<int> odd = 0;
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; !stop; ++round) {
        const StatusCode code = check_object(*store, std::to_string((round + t) % 8), 300'000);
        good += code == kOk ? 1 : 0;
        odd += code == kOk || code == StatusCode::unavailable ? 0 : 1;
      }
    });
  }
  for (int round = 0; round < 3; ++round) {
    const int before = good;
    EXPECT_TRUE(store->wait_until_ready(soon()).ok());
    while (good < before + 5) std::this_thread::yield();
    const int pid = store->agent_pid();
    if (pid > 0) ::kill(pid, SIGKILL);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(odd, 0);
  EXPECT_GE(store->counts().agent_starts, 3u);
}

TEST_F(MooncakeFaultTest, AStoppedAgentIsKilledAtTheLimitAndReplaced) {
  const auto store = open();
  ASSERT_TRUE(store);
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 1000)), kOk);
  const int pid = store->agent_pid();
  ::kill(pid, SIGSTOP);
  const TimePoint start = now();
  const std::string_view key = "k";
  ItemResult result;
  const CallOutcome outcome = store->exists({&key, 1}, {&result, 1}, {});
  const double seconds = to_seconds(now() - start);
  EXPECT_EQ(outcome.status.code(), StatusCode::deadline_exceeded) << outcome.status.to_string();
  EXPECT_EQ(result.code, StatusCode::deadline_exceeded);
  EXPECT_GE(seconds, 0.99);
  EXPECT_LT(seconds, 10.0);
  EXPECT_EQ(::kill(pid, 0), -1) << "killed and waited for before the call returned";
  EXPECT_TRUE(store->wait_until_ready(soon()).ok());
  EXPECT_EQ(check_object(*store, "k", 1000), kOk);
}

// A caller's deadline that is shorter than the call's limit does not kill the agent.
TEST_F(MooncakeFaultTest, ACallersDeadlineKillsNobody) {
  const auto store = open();
  ASSERT_TRUE(store);
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 1000)), kOk);
  const int pid = store->agent_pid();
  for (int i = 0; i < 50; ++i) {
    StatusCode code = kOk;
    get_object(*store, "k", 1000, code, {.deadline = now() + 20us});
    EXPECT_TRUE(code == kOk || code == StatusCode::deadline_exceeded) << to_string(code);
  }
  EXPECT_EQ(store->agent_pid(), pid);
}

// A hung call: existence queries go on beside it; the agent is killed at the limit, nothing is
// written to the call's buffer after it returned, and the owner's objects survive.
TEST_F(MooncakeFaultTest, AHungCallIsEndedAndTheOwnersObjectsSurvive) {
  options_.agent_environment = {{"MC_TCP_PROGRESS_TIMEOUT_SEC", "30"}};
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(8 << 20);
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  const auto value = bytes_of("k", 4 << 20);
  ASSERT_EQ(put_object(*store, "k", value), kOk);
  stack_.tell("stop-owner");
  std::atomic<bool> hung = true;
  std::atomic<int> queries = 0;
  std::thread asker([&] {
    while (hung) {
      if (exists_object(*store, "nothing") == kMiss) ++queries;
    }
  });
  const auto buffer = memory.bytes().subspan(0, 4 << 20);
  std::fill(buffer.begin(), buffer.end(), std::byte{0xaa});
  StatusCode code = kOk;
  const TimePoint start = now();
  const CallOutcome outcome = get_into(*store, "k", buffer, code);
  const double seconds = to_seconds(now() - start);
  hung = false;
  asker.join();
  EXPECT_EQ(code, StatusCode::deadline_exceeded) << outcome.status.to_string();
  EXPECT_GE(seconds, 0.99);
  EXPECT_LT(seconds, 10.0);
  EXPECT_GT(queries, 100) << "queries went on while the get hung";
  EXPECT_LE(outcome.buffers_busy_until, now()) << "a real client is gone with its agent";

  std::fill(buffer.begin(), buffer.end(), std::byte{0xbb});
  stack_.tell("continue-owner");
  ASSERT_TRUE(store->wait_until_ready(soon()).ok());
  EXPECT_EQ(until(kOk, [&] { return check_object(*store, "k", 4 << 20); }), kOk);
  EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](std::byte byte) {
    return byte == std::byte{0xbb};
  })) << "written to after the call had returned";
}

TEST_F(MooncakeFaultTest, AKilledOwnerIsMissesUntilThereIsAnother) {
  const auto store = open();
  ASSERT_TRUE(store);
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 1000)), kOk);
  stack_.tell("kill-owner");
  const StatusCode code = check_object(*store, "k", 1000);
  EXPECT_TRUE(code == kMiss || code == StatusCode::unavailable ||
              code == StatusCode::deadline_exceeded)
      << to_string(code);
  stack_.tell("start-owner");
  int round = 0;
  EXPECT_EQ(until(kOk,
                  [&] {
                    const std::string key = "new/" + std::to_string(round++);
                    const StatusCode put = put_object(*store, key, bytes_of(key, 1000));
                    return put == kOk ? check_object(*store, key, 1000) : put;
                  }),
            kOk);
}

TEST_F(MooncakeFaultTest, AKilledMasterIsUnavailableAndFoundAgain) {
  const auto store = open();
  ASSERT_TRUE(store);
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 1000)), kOk);
  stack_.tell("kill-master");
  for (int i = 0; i < 3; ++i) {
    const TimePoint start = now();
    const StatusCode code = exists_object(*store, "k");
    EXPECT_TRUE(code == StatusCode::unavailable || code == StatusCode::deadline_exceeded)
        << to_string(code);
    EXPECT_LT(to_seconds(now() - start), 10.0);
  }
  stack_.tell("start-master");
  EXPECT_EQ(until(kOk, [&] { return put_object(*store, "k2", bytes_of("k2", 1000)); }), kOk);
  EXPECT_EQ(check_object(*store, "k2", 1000), kOk);
}

TEST_F(MooncakeFaultTest, AStoreThatIsDownAtFirstIsAttachedWhenItComes) {
  stack_.tell("kill-master");
  const auto store = open();
  ASSERT_TRUE(store);
  const TimePoint start = now();
  EXPECT_EQ(exists_object(*store, "k"), StatusCode::unavailable);
  EXPECT_EQ(put_object(*store, "k", bytes_of("k", 10)), StatusCode::unavailable);
  EXPECT_LT(to_seconds(now() - start), 0.5) << "nothing waits for a store that is down";
  const SharedMemory memory(1 << 20);
  const TimePoint asked = now();
  EXPECT_EQ(store->register_memory(memory.region()).code(), StatusCode::unavailable);
  EXPECT_LT(to_seconds(now() - asked), 5.0) << "it waits for call_limit";
  stack_.tell("start-master");
  ASSERT_TRUE(store->wait_until_ready(soon()).ok());
  EXPECT_EQ(until(kOk, [&] { return put_object(*store, "k", memory.bytes().subspan(0, 100)); }),
            kOk);
  EXPECT_EQ(store->counts().zero_copy_items, 0u) << "what was refused is not registered";
  EXPECT_TRUE(store->register_memory(memory.region()).ok());
  EXPECT_EQ(put_object(*store, "k2", memory.bytes().subspan(0, 100)), kOk);
  EXPECT_EQ(store->counts().zero_copy_items, 1u);
}

// Memory that this machine gives: held by an owner of ours, which outlives agents and unmounts.
TEST_F(MooncakeFaultTest, OurOwnersObjectsOutliveAgentsAndItUnmounts) {
  stack_.tell("kill-owner");
  const auto watcher = open();
  ASSERT_TRUE(watcher);
  ASSERT_EQ(until_limit(*watcher, 0), 0u) << "the dead owner's segment is dropped";
  options_.global_segment_size = 32u << 20;
  const auto store = open();
  ASSERT_TRUE(store);
  EXPECT_EQ(until_limit(*watcher, 32u << 20), 32u << 20);
  const int owner = store->owner_pid();
  ASSERT_GT(owner, 0);
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 100'000)), kOk);
  ::kill(store->agent_pid(), SIGKILL);
  EXPECT_EQ(until(kOk, [&] { return check_object(*store, "k", 100'000); }), kOk);
  EXPECT_EQ(store->owner_pid(), owner);
  EXPECT_TRUE(store->owner_mounted());
  EXPECT_TRUE(store->close(soon()).ok());
  EXPECT_EQ(::kill(owner, 0), -1);
  EXPECT_EQ(watcher->stats().bytes_limit, 0u) << "it unmounted, and did not just die";
  EXPECT_EQ(check_object(*watcher, "k", 100'000), kMiss);
}

// The owner's disk behind its memory, and set-up that waits for the master's HTTP service: both
// reach the real client.
TEST_F(MooncakeFaultTest, AnOwnerWithADiskMountsOnceTheServerIsChecked) {
  const std::string folder = testing::TempDir() + "hitide_ssd_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  options_.global_segment_size = 32u << 20;
  options_.enable_ssd_offload = true;
  options_.ssd_offload_path = folder;
  options_.check_server = true;
  const auto store = open();
  ASSERT_TRUE(store);
  ASSERT_TRUE(store->wait_until_ready(soon()).ok());
  EXPECT_EQ(until_limit(*store, (128u + 32u) << 20), (128u + 32u) << 20);
  EXPECT_EQ(put_object(*store, "k", bytes_of("k", 100'000)), kOk);
  EXPECT_EQ(check_object(*store, "k", 100'000), kOk);
  EXPECT_TRUE(store->close(soon()).ok());
  std::error_code error;
  std::filesystem::remove_all(folder, error);
}

// A check that is asked for and cannot succeed keeps L3 off, and never the start.
TEST_F(MooncakeFaultTest, AServerCheckThatFailsKeepsTheStoreAwayOnly) {
  options_.check_server = true;
  options_.master_metrics_port = 1;
  const TimePoint start = now();
  const auto store = open();
  ASSERT_TRUE(store);
  EXPECT_LT(to_seconds(now() - start), 5.0);
  EXPECT_EQ(exists_object(*store, "k"), StatusCode::unavailable);
}

TEST_F(MooncakeFaultTest, AClosedStoreLeavesNoProcess) {
  const auto store = open();
  ASSERT_TRUE(store);
  const int pid = store->agent_pid();
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(store->close(soon()).ok());
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(store->wait_until_ready(soon()).code(), StatusCode::failed_precondition);
}

// ---- a thin client of a daemon ----------------------------------------------------------------

class MooncakeStandaloneTest : public MooncakeFaultTest {
 protected:
  MooncakeStandaloneTest() : MooncakeFaultTest(MooncakeStack::Mode::standalone) {}
};

TEST_F(MooncakeStandaloneTest, OurMemoryIsAdoptedAndKeepsItsBytes) {
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(2 << 20);
  const auto before = bytes_of("before", 2 << 20);
  std::copy(before.begin(), before.end(), memory.bytes().begin());
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  EXPECT_TRUE(same(memory.bytes(), before));
  EXPECT_EQ(put_object(*store, "k", memory.bytes().subspan(10'000, 300'000)), kOk);
  StatusCode code = StatusCode::internal;
  const auto target = memory.bytes().subspan(1 << 20, 300'000);
  get_into(*store, "k", target, code).status.ignore();
  EXPECT_EQ(code, kOk);
  EXPECT_TRUE(same(target, std::span(before).subspan(10'000, 300'000)));
  EXPECT_EQ(store->counts().zero_copy_items, 2u);
  EXPECT_EQ(store->counts().staged_items, 0u);
}

TEST_F(MooncakeStandaloneTest, ANewAgentAdoptsAgainWithTheBytesIntact) {
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(2 << 20);
  const auto before = bytes_of("before", 2 << 20);
  std::copy(before.begin(), before.end(), memory.bytes().begin());
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  EXPECT_EQ(put_object(*store, "k", memory.bytes().subspan(0, 300'000)), kOk);
  ::kill(store->agent_pid(), SIGKILL);
  StatusCode code = StatusCode::internal;
  const auto target = memory.bytes().subspan(1 << 20, 300'000);
  EXPECT_EQ(until(kOk,
                  [&] {
                    get_into(*store, "k", target, code).status.ignore();
                    return code;
                  }),
            kOk);
  EXPECT_TRUE(same(target, std::span(before).subspan(0, 300'000)));
  EXPECT_TRUE(same(memory.bytes().first(1 << 20), std::span(before).first(1 << 20)));
  EXPECT_EQ(store->counts().staged_items, 0u);
}

// Memory that the thin client hands out: it needs no adoption, and outlives the agent.
TEST_F(MooncakeStandaloneTest, MemoryThatTheClientHandsOutIsUsedAsItIs) {
  options_.agent_environment = {{"HITIDE_TEST_ADOPTIONS_MAX", "1"}};  // bounce memory's
  const auto store = open();
  ASSERT_TRUE(store);
  constexpr std::uint64_t kBytes = 3 << 20;
  const auto region = store->allocate_memory("kv", kBytes);
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  ASSERT_EQ(region->bytes.size(), kBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->bytes.data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(region->bytes.begin(), region->bytes.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  ASSERT_TRUE(store->register_memory(*region).ok());
  const auto value = bytes_of("k", 300'000);
  std::copy(value.begin(), value.end(), region->bytes.begin() + 5'000);
  EXPECT_EQ(put_object(*store, "k", region->bytes.subspan(5'000, 300'000)), kOk);
  StatusCode code = StatusCode::internal;
  get_into(*store, "k", region->bytes.subspan(1 << 20, 300'000), code).status.ignore();
  EXPECT_EQ(code, kOk);
  EXPECT_TRUE(same(region->bytes.subspan(1 << 20, 300'000), value));
  EXPECT_EQ(store->counts().zero_copy_items, 2u);
  EXPECT_TRUE(store->unregister_memory(region->bytes).ok());
  const std::span<std::byte> bytes = region->bytes;
  store->release_memory(bytes);
  std::array<unsigned char, 1> resident{};
  EXPECT_EQ(::mincore(bytes.data(), 4096, resident.data()), -1) << "unmapped";
}

TEST_F(MooncakeStandaloneTest, HandedOutMemoryOutlivesItsAgent) {
  const auto store = open();
  ASSERT_TRUE(store);
  const auto region = store->allocate_memory("kv", 2 << 20);
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  ASSERT_TRUE(store->register_memory(*region).ok());
  const auto value = bytes_of("k", 2 << 20);
  std::copy(value.begin(), value.end(), region->bytes.begin());
  ::kill(store->agent_pid(), SIGKILL);
  EXPECT_EQ(until(kOk, [&] { return put_object(*store, "k", region->bytes.first(300'000)); }), kOk);
  EXPECT_TRUE(same(region->bytes, value));
  EXPECT_EQ(check_object(*store, "k", 300'000), kOk);
  EXPECT_EQ(store->counts().zero_copy_items, 1u) << "adopted by the new agent";
  EXPECT_TRUE(store->unregister_memory(region->bytes).ok());
  store->release_memory(region->bytes);
}

TEST_F(MooncakeFaultTest, ARealClientsStoreHandsOutMemoryToo) {
  const auto store = open();
  ASSERT_TRUE(store);
  const auto region = store->allocate_memory("kv", 1 << 20);
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  ASSERT_TRUE(store->register_memory(*region).ok());
  EXPECT_EQ(put_object(*store, "k", region->bytes.first(100'000)), kOk);
  EXPECT_EQ(store->counts().zero_copy_items, 1u);
  EXPECT_TRUE(store->unregister_memory(region->bytes).ok());
  store->release_memory(region->bytes);
  EXPECT_EQ(store->allocate_memory("kv", 0).status().code(), StatusCode::invalid_argument);
}

// An adoption without effect: the daemon goes on showing the client's own file.
TEST_F(MooncakeStandaloneTest, AnAdoptionThatFailsItsTestIsToldAndUndone) {
  options_.agent_environment = {{"HITIDE_TEST_ADOPTIONS_MAX", "2"}};
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory good(1 << 20);
  const SharedMemory bad(1 << 20);  // all zeros, as a segment's own file is
  EXPECT_TRUE(store->register_memory(good.region()).ok());
  const Status status = store->register_memory(bad.region());
  EXPECT_EQ(status.code(), StatusCode::data_loss) << status.to_string();
  EXPECT_EQ(store->unregister_memory(bad.bytes()).code(), StatusCode::invalid_argument);
  // Its bytes go through bounce memory, and are right.
  const auto value = bytes_of("k", 100'000);
  std::copy(value.begin(), value.end(), bad.bytes().begin());
  EXPECT_EQ(put_object(*store, "k", bad.bytes().first(100'000)), kOk);
  EXPECT_EQ(check_object(*store, "k", 100'000), kOk);
  EXPECT_EQ(store->counts().zero_copy_items, 0u);
  EXPECT_EQ(store->counts().regions_refused, 0u) << "it is not registered";
  // Memory of the client's own is what helps.
  const auto region = store->allocate_memory("kv", 1 << 20);
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(store->register_memory(*region).ok());
}

TEST_F(MooncakeStandaloneTest, TooLittleFreeMemoryToAdoptIsSeenBefore) {
  options_.bounce_bytes = 4u << 20;
  options_.agent_environment = {{"HITIDE_TEST_AVAILABLE_BYTES", std::to_string(70u << 20)}};
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(8 << 20);
  Status status = store->register_memory(memory.region());
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
  EXPECT_EQ(store->allocate_memory("kv", 8 << 20).status().code(), StatusCode::resource_exhausted);
  const SharedMemory small(1 << 20);
  EXPECT_TRUE(store->register_memory(small.region()).ok());
}

// What was adopted once and cannot be any more is copied, as long as that agent lives.
TEST_F(MooncakeStandaloneTest, WhatALaterAgentCannotAdoptIsCopied) {
  options_.agent_environment = {{"HITIDE_TEST_ADOPTIONS_MAX", "2"}};
  const auto store = open();
  ASSERT_TRUE(store);
  const auto region = store->allocate_memory("kv", 1 << 20);
  ASSERT_TRUE(region.ok());
  const SharedMemory memory(1 << 20);
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  ASSERT_TRUE(store->register_memory(*region).ok()) << "this one needs no adoption yet";
  EXPECT_EQ(store->counts().regions_refused, 0u);
  ::kill(store->agent_pid(), SIGKILL);
  const auto value = bytes_of("k", 100'000);
  for (const std::span<std::byte> bytes : {memory.bytes(), region->bytes}) {
    std::copy(value.begin(), value.end(), bytes.begin());
  }
  EXPECT_EQ(until(kOk, [&] { return put_object(*store, "k", region->bytes.first(100'000)); }), kOk);
  EXPECT_EQ(check_object(*store, "k", 100'000), kOk);
  EXPECT_EQ(store->counts().regions_refused, 1u);
  EXPECT_EQ(store->counts().agent_starts, 2u) << "it is not tried again and again";
}

TEST_F(MooncakeStandaloneTest, PartsOfAFileAreStaged) {
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(2 << 20);
  MemoryRegion part = memory.region();
  part.bytes = memory.bytes().subspan(1 << 20);
  part.fd_offset = 1 << 20;
  EXPECT_EQ(store->register_memory(part).code(), StatusCode::invalid_argument);
  EXPECT_EQ(put_object(*store, "k", part.bytes.first(100'000)), kOk);
  EXPECT_EQ(store->counts().staged_items, 1u);
}

// The daemon may still write to the buffers of a call whose agent was killed.
TEST_F(MooncakeStandaloneTest, BuffersOfAbandonedCallsAreBusyForAWhile) {
  const auto store = open();
  ASSERT_TRUE(store);
  const SharedMemory memory(2 << 20);
  ASSERT_TRUE(store->register_memory(memory.region()).ok());
  ASSERT_EQ(put_object(*store, "k", bytes_of("k", 300'000)), kOk);
  stack_.tell("stop-owner");
  StatusCode code = kOk;
  const CallOutcome outcome = get_into(*store, "k", memory.bytes().first(300'000), code);
  EXPECT_EQ(code, StatusCode::deadline_exceeded) << outcome.status.to_string();
  EXPECT_GT(outcome.buffers_busy_until, now() + 10s);
  EXPECT_LT(outcome.buffers_busy_until, now() + 13s);
  stack_.tell("continue-owner");
  ASSERT_EQ(until(kOk, [&] { return check_object(*store, "k", 300'000); }), kOk);
  // Bytes that were copied on the way are in bounce memory: the caller's are free at once.
  stack_.tell("stop-owner");
  std::vector<std::byte> own(300'000);
  EXPECT_LE(get_into(*store, "k", own, code).buffers_busy_until, now());
  EXPECT_NE(code, kOk);
  stack_.tell("continue-owner");
  EXPECT_EQ(until(kOk, [&] { return check_object(*store, "k", 300'000); }), kOk);
}

TEST(MooncakePackageTest, WithoutThePackageTheLineThatInstallsItIsSaid) {
  MooncakeOptions options = mooncake_stack().options();
  options.agent_environment = {{"PYTHONNOUSERSITE", "1"}};
  options.python = "python3";
  std::string why_not;
  if (can_import_mooncake(options.python)) GTEST_SKIP() << "the system's Python has the package";
  const auto store = MooncakeStore::open(options);
  EXPECT_EQ(store.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(store.status().message().find("python3 -m pip install mooncake"), std::string::npos)
      << store.status().to_string();
}

}  // namespace
}  // namespace hitide
