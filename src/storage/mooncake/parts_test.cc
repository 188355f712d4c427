// The parts of the Mooncake backend that need no store: keys in use, bounce memory, regions,
// options, the helper process.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/memory_file.h"
#include "base/random.h"
#include "spec/mooncake_options.h"
#include "storage/mooncake/bounce.h"
#include "storage/mooncake/child_process.h"
#include "storage/mooncake/client_memory.h"
#include "storage/mooncake/codes.h"
#include "storage/mooncake/key_guard.h"
#include "storage/mooncake/mooncake_store.h"
#include "storage/mooncake/region_table.h"

namespace hitide {
namespace {

TimePoint now() { return SystemClock::instance().now(); }
TimePoint soon() { return now() + std::chrono::seconds(20); }
using Use = KeyGuard::Use;

// ---- KeyGuard ---------------------------------------------------------------------------------

TEST(KeyGuardTest, ReadersShareAndWritersDoNot) {
  KeyGuard guard;
  {
    const auto first = guard.take({"a", "b", "a"}, Use::shared, soon());
    const auto second = guard.take({"b", "c"}, Use::shared, soon());
    EXPECT_TRUE(first);
    EXPECT_TRUE(second);
    EXPECT_FALSE(guard.take({"x", "a"}, Use::exclusive, now()));
    EXPECT_TRUE(guard.take({"x"}, Use::exclusive, now())) << "a refused call must hold nothing";
  }
  const auto writer = guard.take({"a", "b"}, Use::exclusive, now());
  EXPECT_TRUE(writer);
  EXPECT_FALSE(guard.take({"b"}, Use::shared, now()));
  EXPECT_FALSE(guard.take({"b"}, Use::exclusive, now()));
  EXPECT_TRUE(guard.take({"c"}, Use::shared, now()));
}

TEST(KeyGuardTest, OverlappingBatchesInAnyOrderDoNotLockEachOtherOut) {
  KeyGuard guard;
  std::array<int, 4> counted{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 500; ++round) {
        const int a = (round + t) % 4;
        const int b = (round * 3 + t + 1) % 4;
        const auto hold =
            guard.take({std::to_string(a), std::to_string(b)}, Use::exclusive, kNoDeadline);
        ++counted[a];  // unguarded on purpose: ThreadSanitizer and the sum see a second holder
        if (a != b) ++counted[b];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int expected = 0;
  for (int t = 0; t < 4; ++t) {
    for (int round = 0; round < 500; ++round) {
      expected += (round + t) % 4 == (round * 3 + t + 1) % 4 ? 1 : 2;
    }
  }
  EXPECT_EQ(counted[0] + counted[1] + counted[2] + counted[3], expected);
}

// ---- BounceMemory -----------------------------------------------------------------------------

TEST(BounceTest, PiecesNeverOverlapAndComeBack) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  const auto memory = BounceMemory::create(64 << 10);
  ASSERT_TRUE(memory.ok());
  std::atomic<int> spoiled = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(kSeed + t);
      for (int round = 0; round < 300; ++round) {
        const auto piece = (*memory)->take(1 + random.below(40 << 10), kNoDeadline);
        const auto mine = static_cast<std::byte>(t + 1);
        for (std::byte& byte : piece.bytes()) byte = mine;
        for (const std::byte byte : piece.bytes()) spoiled += byte == mine ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(spoiled, 0);
  EXPECT_TRUE((*memory)->take(64 << 10, now())) << "everything came back";
}

TEST(BounceTest, WaitsUntilTheDeadlineOnly) {
  const auto memory = BounceMemory::create(8 << 10);
  ASSERT_TRUE(memory.ok());
  const auto all = (*memory)->take(8 << 10, now());
  ASSERT_TRUE(all);
  EXPECT_FALSE((*memory)->take(1, now() + std::chrono::milliseconds(5)));
}

TEST(BounceTest, WhatMayStillBeWrittenToIsKeptForItsTime) {
  const auto memory = BounceMemory::create(8 << 10);
  ASSERT_TRUE(memory.ok());
  const TimePoint free_at = now() + std::chrono::milliseconds(500);
  {
    auto piece = (*memory)->take(4 << 10, now());
    ASSERT_TRUE(piece);
    piece.keep_until(free_at);
  }
  EXPECT_FALSE((*memory)->take(8 << 10, now()));
  EXPECT_TRUE((*memory)->take(4 << 10, now())) << "the rest is free";
  EXPECT_TRUE((*memory)->take(8 << 10, soon())) << "and so is the piece when its time is over";
  EXPECT_GE(now(), free_at);
}

// ---- RegionTable ------------------------------------------------------------------------------

class RegionTableTest : public testing::Test {
 protected:
  Status add(std::size_t from, std::size_t bytes, int fd = 5) {
    return table_.add({.bytes = span(from, bytes), .fd = fd}, [this](const auto& region) {
      ++maps_;
      last_ = region.number;
      return answer_;
    });
  }
  Status remove(std::size_t from, std::size_t bytes) {
    return table_.remove(span(from, bytes), [this](std::uint32_t) {
      ++unmaps_;
      return Status();
    });
  }
  std::span<std::byte> span(std::size_t from, std::size_t bytes) {
    return std::span(memory_).subspan(from, bytes);
  }
  bool found(std::size_t from, std::size_t bytes) { return table_.find(span(from, bytes), place_); }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64 << 10);
  RegionTable table_{1};
  RegionTable::Place place_;
  Status answer_;
  int maps_ = 0;
  int unmaps_ = 0;
  std::uint32_t last_ = 0;
};

// K1, B003: the same again is counted, overlaps are refused, the surplus unregister changes
// nothing.
TEST_F(RegionTableTest, TheSameRegionAgainIsCounted) {
  ASSERT_TRUE(add(4096, 8192).ok());
  EXPECT_TRUE(add(4096, 8192).ok());
  EXPECT_EQ(maps_, 1);
  EXPECT_EQ(add(4096, 4096).code(), StatusCode::invalid_argument);
  EXPECT_EQ(add(8192, 4096).code(), StatusCode::invalid_argument);
  EXPECT_EQ(add(0, 4097).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(add(0, 4096).ok());
  EXPECT_TRUE(remove(4096, 8192).ok());
  EXPECT_TRUE(found(5000, 100));
  EXPECT_TRUE(remove(4096, 8192).ok());
  EXPECT_EQ(unmaps_, 1);
  EXPECT_FALSE(found(5000, 100));
  EXPECT_EQ(remove(4096, 8192).code(), StatusCode::invalid_argument);
  EXPECT_EQ(unmaps_, 1);
}

TEST_F(RegionTableTest, OnlyWhollyMappedBytesAreFound) {
  ASSERT_TRUE(add(4096, 8192).ok());
  EXPECT_TRUE(found(4096, 8192));
  EXPECT_EQ(place_.region, last_);
  EXPECT_EQ(place_.offset, 0u);
  EXPECT_TRUE(found(12287, 1));
  EXPECT_EQ(place_.offset, 8191u);
  EXPECT_FALSE(found(4095, 2));
  EXPECT_FALSE(found(12287, 2));
  EXPECT_FALSE(found(20000, 1));
}

TEST_F(RegionTableTest, PrivateOrRefusedMemoryIsNotKept) {
  EXPECT_EQ(add(0, 4096, -1).code(), StatusCode::failed_precondition);
  EXPECT_EQ(maps_, 0);
  for (const StatusCode code : {StatusCode::unavailable, StatusCode::data_loss}) {
    answer_ = Status(code, "why not");
    EXPECT_EQ(add(8192, 4096).code(), code);
    EXPECT_FALSE(found(8192, 1));
    EXPECT_EQ(table_.size(), 0u);
    EXPECT_EQ(remove(8192, 4096).code(), StatusCode::invalid_argument);
  }
  answer_ = {};
  EXPECT_TRUE(add(8192, 4096).ok()) << "asked again";
  EXPECT_TRUE(found(8192, 1));
}

TEST_F(RegionTableTest, WhatALaterAgentRefusesIsKeptButNotFound) {
  ASSERT_TRUE(add(0, 4096).ok());
  ASSERT_TRUE(add(8192, 4096).ok());
  table_.unmap_all();
  EXPECT_FALSE(found(0, 1));
  const auto refuse_last = [this](const RegionTable::Region& region) {
    return region.number == last_ ? Status(StatusCode::data_loss, "spoiled") : Status();
  };
  table_.map_all(refuse_last);
  EXPECT_TRUE(found(0, 1));
  EXPECT_FALSE(found(8192, 1));
  EXPECT_EQ(table_.refused(), 1u);
  EXPECT_TRUE(add(8192, 4096).ok()) << "it is registered";
  EXPECT_TRUE(remove(8192, 4096).ok());
  EXPECT_TRUE(remove(8192, 4096).ok());
  EXPECT_EQ(unmaps_, 0) << "the agent does not have it";
  table_.map_all([](const auto&) { return Status(); });
  EXPECT_EQ(table_.refused(), 0u);
}

// K12 B167: two threads register and unregister, one within the other; no two regions that live
// have one number, and every number is given back.
TEST_F(RegionTableTest, K12_B167_NumbersAreUniqueAmongWhatLives) {
  std::mutex mutex;
  std::multiset<std::uint32_t> live;
  std::size_t doubled = 0;
  const auto map = [&](const RegionTable::Region& region) {
    const std::lock_guard lock(mutex);
    live.insert(region.number);
    if (live.count(region.number) > 1) ++doubled;
    return Status();
  };
  const auto unmap = [&](std::uint32_t number) {
    const std::lock_guard lock(mutex);
    live.erase(live.find(number));
    return Status();
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, base = thread * (32 << 10)] {
      for (int round = 0; round < 1000; ++round) {
        for (const std::size_t from : {base, base + 8192}) {
          EXPECT_TRUE(table_.add({.bytes = span(from, 4096), .fd = 5}, map).ok());
        }
        for (const std::size_t from : {base + 8192, base}) {
          EXPECT_TRUE(table_.remove(span(from, 4096), unmap).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(doubled, 0u);
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(table_.size(), 0u);
}

// Adopting a pool takes seconds a gigabyte; calls for other pools go on meanwhile.
TEST_F(RegionTableTest, ALongMappingHoldsUpNoLookUp) {
  ASSERT_TRUE(add(0, 4096).ok());
  std::promise<void> mapping;
  std::promise<void> go_on;
  std::thread mapper([&] {
    const MemoryRegion region{.bytes = span(8192, 4096), .fd = 5};
    table_
        .add(region,
             [&](const auto&) {
               mapping.set_value();
               go_on.get_future().wait();
               return Status();
             })
        .ignore();
  });
  mapping.get_future().wait();
  EXPECT_TRUE(found(0, 1));
  EXPECT_FALSE(found(8192, 1)) << "not before it is mapped";
  go_on.set_value();
  mapper.join();
  EXPECT_TRUE(found(8192, 1));
}

TEST_F(RegionTableTest, BadRegionsAreRefused) {
  EXPECT_EQ(add(0, 0).code(), StatusCode::invalid_argument);
  const MemoryRegion odd{.bytes = span(0, 4096), .fd = 5, .fd_offset = 100};
  EXPECT_EQ(table_.add(odd, [](const auto&) { return Status(); }).code(),
            StatusCode::invalid_argument);
  EXPECT_EQ(table_.size(), 0u);
}

// ---- options ----------------------------------------------------------------------------------

// K14, B199.
TEST(MooncakeOptionsTest, HostAndPortAreReadOrRefused) {
  const auto master = parse_host_port("master.local:50051");
  ASSERT_TRUE(master.ok());
  EXPECT_EQ(master->host, "master.local");
  EXPECT_EQ(master->port, 50051);
  const auto v6 = parse_host_port("[::1]:1");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_TRUE(parse_host_port("0.0.0.0:65535").ok());
  for (const char* bad : {"h", "::1", "h:", ":1", "h:99999", "h:0", "h: 1", "h :1", "h:1x", "[::1",
                          "[]:1", "h:-1", "http://h:1", ""}) {
    const auto parsed = parse_host_port(bad);
    EXPECT_EQ(parsed.status().code(), StatusCode::invalid_argument) << bad;
    EXPECT_NE(parsed.status().message().find(std::string("'") + bad + "'"), std::string::npos);
  }
}

MooncakeOptions good_options() {
  MooncakeOptions options;
  options.protocol = "tcp";
  options.master_server_address = "127.0.0.1:1";
  return options;
}

TEST(MooncakeOptionsTest, BadValuesAreNamed) {
  EXPECT_TRUE(validate(good_options()).ok());
  const auto names = [](const char* name, auto change) {
    MooncakeOptions options = good_options();
    change(options);
    const Status status = validate(options);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    EXPECT_NE(status.message().find(name), std::string_view::npos) << status.to_string();
  };
  names("client_server_address", [](auto& o) { o.standalone_storage = true; });
  names("protocol", [](auto& o) { o.protocol = "udp"; });
  names("master_server_address", [](auto& o) { o.master_server_address = ""; });
  names("local_hostname", [](auto& o) { o.local_hostname = ""; });
  names("tenant_id", [](auto& o) { o.tenant_id = "a\nb"; });
  names("read_lanes", [](auto& o) { o.read_lanes = 0; });
  names("write_lanes", [](auto& o) { o.write_lanes = 17; });
  names("call_limit", [](auto& o) { o.call_limit = Duration::zero(); });
  names("bounce_bytes", [](auto& o) { o.bounce_bytes = 5000; });
  names("object_bytes_max", [](auto& o) { o.object_bytes_max = o.bounce_bytes + 1; });
  names("extra_backend_tag", [](auto& o) { o.extra_backend_tag = std::string(900, 't'); });
}

TEST(MooncakeStoreTest, RdmaWithoutADeviceSaysWhatToSet) {
  MooncakeOptions options = good_options();
  options.protocol = "rdma";
  options.device_name = "no_such_device_0";
  const auto store = MooncakeStore::open(options);
  EXPECT_EQ(store.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(store.status().message().find("MOONCAKE_PROTOCOL=tcp"), std::string_view::npos);
}

// ---- ClientMemory -----------------------------------------------------------------------------

TEST(ClientMemoryTest, FilesAreZeroSealedAndReleased) {
  ClientMemory memory;
  auto file = create_memory_file("pool", 3 * 4096);
  ASSERT_TRUE(file.ok());
  const std::uint32_t segment = memory.next_segment();
  EXPECT_NE(memory.next_segment(), segment);
  const auto region = memory.keep(segment, std::move(*file), 3 * 4096);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->bytes.data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(region->bytes.begin(), region->bytes.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_NE(::ftruncate(region->fd, 4096), 0) << "a mapping of it could fault";
  region->bytes[5] = std::byte{7};
  char seen = 0;
  EXPECT_EQ(::pread(region->fd, &seen, 1, 5), 1);
  EXPECT_EQ(seen, 7);
  EXPECT_FALSE(memory.release(region->bytes.first(4096)));
  EXPECT_EQ(memory.release(region->bytes), segment);
  EXPECT_FALSE(memory.release(region->bytes));
}

TEST(MooncakeStoreTest, AMissingInterpreterSaysHowToInstall) {
  MooncakeOptions options = good_options();
  options.python = "/nonexistent/python";
  const auto store = MooncakeStore::open(options);
  EXPECT_EQ(store.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(store.status().message().find("pip install"), std::string_view::npos);
  EXPECT_NE(store.status().message().find("/nonexistent/python"), std::string_view::npos);
}

TEST(MooncakeStoreTest, AnInterpreterThatSaysNothingSaysHowToInstall) {
  MooncakeOptions options = good_options();
  options.python = "/bin/false";
  const auto store = MooncakeStore::open(options);
  EXPECT_EQ(store.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(store.status().message().find("pip install"), std::string_view::npos);
}

TEST(MooncakeCodesTest, MissesAreMissesAndTheRestIsNot) {
  for (const std::int64_t miss : {-704, -703, -710, -712}) {
    EXPECT_EQ(status_of_code(miss), StatusCode::not_found) << miss;
  }
  EXPECT_EQ(status_of_code(-200), StatusCode::resource_exhausted);
  EXPECT_EQ(status_of_code(-707), StatusCode::unavailable);
  EXPECT_EQ(status_of_code(-801), StatusCode::data_loss);
  EXPECT_EQ(status_of_code(-987654), StatusCode::unavailable);
  EXPECT_TRUE(means_store_down(-900));
  EXPECT_FALSE(means_store_down(-704));
  EXPECT_EQ(name_of_code(-900), "RPC_FAIL");
}

// ---- ChildProcess -----------------------------------------------------------------------------

ChildCommand shell(const std::string& script) {
  return {.program = "/bin/sh", .arguments = {"-c", script, "sh"}};
}

TEST(ChildProcessTest, ItsErrorsAreKeptAndItIsWaitedFor) {
  const auto child = ChildProcess::start(shell("echo first >&2; echo what went wrong >&2; exit 3"));
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE((*child)->wait(soon()));
  (*child)->drain_errors();
  EXPECT_EQ((*child)->error_tail(), "what went wrong");
  EXPECT_TRUE((*child)->wait(now())) << "waiting again is harmless";
  EXPECT_EQ(::kill((*child)->pid(), 0), -1) << "no zombie stays";
}

TEST(ChildProcessTest, KillingEndsItAndTheSocketCloses) {
  const auto child = ChildProcess::start(shell("read line <&3; echo unreachable >&2"));
  ASSERT_TRUE(child.ok());
  const UniqueFd socket = (*child)->take_socket();
  EXPECT_FALSE((*child)->wait(now()));
  (*child)->signal(SIGKILL);
  EXPECT_TRUE((*child)->wait(soon()));
  char byte = 0;
  EXPECT_EQ(::read(socket.get(), &byte, 1), 0);
}

TEST(ChildProcessTest, OnlyItsOwnDescriptorsAreHandedDown) {
  const UniqueFd leaked(::memfd_create("leak", 0));  // without close-on-exec
  const auto child = ChildProcess::start(shell("ls /proc/self/fd | tr '\\n' ' ' >&2"));
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE((*child)->wait(soon()));
  (*child)->drain_errors();
  // 4: the folder that ls lists.
  EXPECT_EQ((*child)->error_tail(), "0 1 2 3 4 ");
}

TEST(ChildProcessTest, TheEnvironmentIsSetAndDefaultsGiveWay) {
  ChildCommand command = shell("echo $HITIDE_A-$HITIDE_B-${HOME:+home} >&2");
  command.environment = {{"HITIDE_A", "one"}};
  command.environment_defaults = {{"HITIDE_A", "two"}, {"HITIDE_B", "three"}, {"PATH", "nowhere"}};
  const auto child = ChildProcess::start(command);
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE((*child)->wait(soon()));
  (*child)->drain_errors();
  EXPECT_TRUE((*child)->error_tail().starts_with("one-three-")) << (*child)->error_tail();
}

TEST(ChildProcessTest, AProgramThatIsNotThereIsAFailedPrecondition) {
  EXPECT_EQ(ChildProcess::start({.program = "/nonexistent/program"}).status().code(),
            StatusCode::failed_precondition);
}

}  // namespace
}  // namespace hitide
