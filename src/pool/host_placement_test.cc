// Placement of host memory: nodes, huge pages, pre-faulting. What a machine of several nodes would
// do is seen through a system of the test's.
#include "pool/host_placement.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/log.h"
#include "pool/host_memory.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

using namespace host_placement_internal;
using Nodes = std::vector<std::uint32_t>;

constexpr std::uint64_t kPiece = std::uint64_t{64} << 20;

// Remembers what it is told; touches nothing.
struct FakeSystem {
  Nodes nodes = {0};
  int bind_error = 0, touch_error = 0;
  std::string against;
  std::mutex mutex;
  std::vector<std::string> order;
  std::vector<std::span<std::byte>> touched;
  Nodes bound;

  PlacementSystem system() {
    PlacementSystem system;
    system.numa_nodes = [this] { return nodes; };
    system.bind = [this](std::span<std::byte>, std::span<const std::uint32_t> to) {
      order.emplace_back("bind");
      bound.assign(to.begin(), to.end());
      return bind_error;
    };
    system.touch = [this](std::span<std::byte> bytes) {
      const std::lock_guard lock(mutex);
      order.emplace_back("touch");
      touched.push_back(bytes);
      return touch_error;
    };
    system.no_huge_pages = [this](AllocatorKind) { return against; };
    system.threads = 3;
    return system;
  }
};

HostOptions prefaulted() {
  HostOptions options;
  options.prefault = true;
  return options;
}

// Bytes of the mapping that have memory.
std::uint64_t resident(std::span<const std::byte> bytes) {
  std::vector<unsigned char> pages((bytes.size() + 4095) / 4096);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()), 0);
  return 4096 *
         static_cast<std::uint64_t>(std::count_if(
             pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(HostPlacement, ReadsListsOfNodes) {
  EXPECT_EQ(parse_nodes("0\n"), Nodes{0});
  EXPECT_EQ(parse_nodes("0-2,5"), (Nodes{0, 1, 2, 5}));
  EXPECT_EQ(parse_nodes(""), Nodes{});
  EXPECT_EQ(parse_nodes("x"), Nodes{});
  EXPECT_EQ(parse_nodes("1,99999999"), Nodes{1});
  EXPECT_EQ(chosen_word("always [madvise] never\n"), "madvise");
  EXPECT_EQ(chosen_word("always"), "");
}

TEST(HostPlacement, NodesWithMemoryThatThisProcessMayUse) {
  TempDirectory directory;
  const std::string nodes = directory / "node";
  const std::string status = directory / "status";
  std::filesystem::create_directories(nodes);
  EXPECT_EQ(usable_nodes(nodes, status), Nodes{});
  std::ofstream(nodes + "/online") << "0-3\n";
  EXPECT_EQ(usable_nodes(nodes, status), (Nodes{0, 1, 2, 3}));
  std::ofstream(nodes + "/has_memory") << "0-2\n";
  EXPECT_EQ(usable_nodes(nodes, status), (Nodes{0, 1, 2}));
  std::ofstream(status) << "Name:\tx\nMems_allowed_list:\t1-2\nMore: 1\n";
  EXPECT_EQ(usable_nodes(nodes, status), (Nodes{1, 2}));
}

TEST(HostPlacement, OneNodeIsNothingToPlace) {
  const Nodes one = {0};
  const Nodes two = {0, 4};
  EXPECT_EQ(*chosen_nodes("auto", one), Nodes{});
  EXPECT_EQ(*chosen_nodes("auto", {}), Nodes{});
  EXPECT_EQ(*chosen_nodes("auto", two), two);
  EXPECT_EQ(*chosen_nodes("off", two), Nodes{});
  EXPECT_EQ(*chosen_nodes("4", two), Nodes{4});
  for (const char* choice : {"1", "near", "", "4x"}) {
    const auto refused = chosen_nodes(choice, two);
    EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument) << choice;
    EXPECT_NE(refused.status().message().find("--host-numa"), std::string_view::npos);
    EXPECT_NE(refused.status().message().find("0, 4"), std::string_view::npos);
  }
}

TEST(HostPlacement, NodesAreGivenBeforeAnythingIsTouched) {
  FakeSystem fake;
  fake.nodes = {0, 2};
  const auto allocator = placed_allocator(mmap_allocator(), prefaulted(), fake.system()).value();
  HostSegment segment = allocator->allocate("t", 4096).value();
  EXPECT_EQ(fake.order, (std::vector<std::string>{"bind", "touch"}));
  EXPECT_EQ(fake.bound, (Nodes{0, 2}));
  EXPECT_EQ(segment.placement.numa, "0,2");
  allocator->release(std::move(segment));

  FakeSystem single;
  const auto other = placed_allocator(mmap_allocator(), prefaulted(), single.system()).value();
  segment = other->allocate("t", 4096).value();
  EXPECT_EQ(single.order, std::vector<std::string>{"touch"});
  EXPECT_EQ(segment.placement.numa, "");
  other->release(std::move(segment));
}

TEST(HostPlacement, EveryByteIsTouchedOnceBySeveralThreads) {
  for (const std::uint64_t bytes : {std::uint64_t{4096}, kPiece, 5 * kPiece + 8192}) {
    FakeSystem fake;
    HostOptions options = prefaulted();
    options.huge_pages = "off";
    const auto allocator = placed_allocator(shm_allocator(), options, fake.system()).value();
    HostSegment segment = allocator->allocate("t", bytes).value();
    std::sort(fake.touched.begin(), fake.touched.end(),
              [](auto a, auto b) { return a.data() < b.data(); });
    const std::byte* next = segment.bytes.data();
    for (const auto piece : fake.touched) {
      EXPECT_EQ(piece.data(), next);
      next += piece.size();
    }
    EXPECT_EQ(next, segment.bytes.data() + bytes);
    EXPECT_EQ(fake.touched.size(), (bytes + kPiece - 1) / kPiece);
    EXPECT_EQ(segment.placement.prefaulted, "yes");
    allocator->release(std::move(segment));
  }
}

TEST(HostPlacement, MemoryHasItsPagesWhereItIsPrefaultedAndNotElse) {
  constexpr std::uint64_t kBytes = (8u << 20) + 4096;
  for (const auto& inner : {mmap_allocator(), shm_allocator()}) {
    SCOPED_TRACE(to_string(inner->kind()));
    const auto lazy = placed_allocator(inner, {}).value();
    EXPECT_EQ(lazy->kind(), inner->kind());
    HostSegment segment = lazy->allocate("t", kBytes).value();
    EXPECT_EQ(resident(segment.bytes), 0u);
    lazy->release(std::move(segment));

    const auto eager = placed_allocator(inner, prefaulted()).value();
    segment = eager->allocate("t", kBytes).value();
    ASSERT_EQ(segment.placement.prefaulted, "yes");
    EXPECT_GE(resident(segment.bytes), kBytes);
    EXPECT_TRUE(std::all_of(segment.bytes.begin(), segment.bytes.end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    eager->release(std::move(segment));
  }
}

// K16: memory that is promised and not there is an error of the start, not a signal later.
TEST(HostPlacement, K16_MemoryThatCannotBeTouchedIsRefusedAndGivenBack) {
  FakeSystem fake;
  fake.touch_error = ENOMEM;
  int out = 0;
  const auto counted = store_allocator({.allocate =
                                            [&](const std::string& name, std::uint64_t bytes) {
                                              ++out;
                                              return shm_allocator()->allocate(name, bytes);
                                            },
                                        .release =
                                            [&](HostSegment segment) {
                                              --out;
                                              shm_allocator()->release(std::move(segment));
                                            }});
  const auto allocator = placed_allocator(counted, prefaulted(), fake.system()).value();
  const auto refused = allocator->allocate("pool", 3 * kPiece);
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  for (const char* part : {"--host-prefault", "201326592", "pool"}) {
    EXPECT_NE(refused.status().message().find(part), std::string_view::npos) << part;
  }
  EXPECT_EQ(out, 0);
}

TEST(HostPlacement, WhatTheSystemRefusesIsNotedAndChangesNothing) {
  FakeSystem fake;
  fake.nodes = {0, 1};
  fake.bind_error = EPERM;
  fake.touch_error = EINVAL;  // a kernel that does not know how
  fake.against = "enabled is never";
  const auto allocator = placed_allocator(mmap_allocator(), prefaulted(), fake.system()).value();
  HostSegment segment = allocator->allocate("t", 4096).value();
  EXPECT_NE(segment.placement.numa.find("refused"), std::string::npos);
  EXPECT_EQ(segment.placement.huge_pages, "none: enabled is never");
  EXPECT_EQ(segment.placement.prefaulted, "not by this kernel");
  allocator->release(std::move(segment));
}

TEST(HostPlacement, ALineOfTheLogSaysWhatWasGot) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  FakeSystem fake;
  fake.nodes = {0, 1};
  const HostMemoryShape shape{.name = "kv", .stride_bytes = 4096, .slot_count = 3};
  EXPECT_TRUE(
      HostMemory::create(shape, placed_allocator(mmap_allocator(), {}, fake.system()).value())
          .ok());
  EXPECT_TRUE(HostMemory::create(shape, mmap_allocator()).ok());  // nothing was asked: no line
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"host_memory", "pool=kv", "allocator=mmap", "bytes=12288",
                           "huge_pages=\"when touched\"", "prefaulted=no", "numa=0,1"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << part << " in " << lines[0];
  }
}

TEST(HostPlacement, ANodeThatIsNotThereIsRefused) {
  HostOptions options;
  options.numa = "7";
  FakeSystem fake;
  EXPECT_EQ(placed_allocator(mmap_allocator(), options, fake.system()).status().code(),
            StatusCode::invalid_argument);
}

}  // namespace
}  // namespace hitide
