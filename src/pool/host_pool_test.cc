#include "pool/host_pool.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool/host_memory.h"

namespace hitide {
namespace {

std::unique_ptr<HostMemory> memory_of(const HostMemoryShape& shape) {
  Result<std::unique_ptr<HostMemory>> memory = HostMemory::create(shape);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return memory.ok() ? std::move(memory).value() : nullptr;
}

PoolSpec packed_pool(std::uint64_t page_bytes) {
  PoolSpec pool;
  pool.page_bytes = page_bytes;
  return pool;
}

std::unique_ptr<HostPool> pool_of(std::uint64_t page_bytes, std::uint32_t page_count) {
  Result<std::unique_ptr<HostPool>> pool = HostPool::create(packed_pool(page_bytes), page_count);
  EXPECT_TRUE(pool.ok()) << pool.status().to_string();
  return pool.ok() ? std::move(pool).value() : nullptr;
}

TEST(HostMemory, NoSlotStraddlesASegmentAndNoTwoSlotsOverlap) {
  const auto memory = memory_of({.name = "t",
                                 .stride_bytes = 3 * 4096,
                                 .slot_count = 11,
                                 .segment_bytes_max = 10 * 4096});  // 3 slots a segment
  ASSERT_NE(memory, nullptr);
  ASSERT_EQ(memory->segments().size(), 4u);
  for (std::uint32_t i = 0; i < 11; ++i) {
    const std::span<std::byte> slot = memory->slot(i);
    EXPECT_EQ(slot.size(), 3u * 4096);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot.data()) % 4096, 0u);
    const auto home = std::count_if(memory->segments().begin(), memory->segments().end(),
                                    [&slot](const HostMemory::Segment& segment) {
                                      return slot.data() >= segment.bytes.data() &&
                                             slot.data() + slot.size() <=
                                                 segment.bytes.data() + segment.bytes.size();
                                    });
    EXPECT_EQ(home, 1) << "slot " << i;
    std::memset(slot.data(), static_cast<int>(i + 1), slot.size());
  }
  for (std::uint32_t i = 0; i < 11; ++i) {
    const std::span<std::byte> slot = memory->slot(i);
    const auto own = static_cast<std::byte>(i + 1);
    EXPECT_TRUE(std::all_of(slot.begin(), slot.end(), [own](std::byte b) { return b == own; }));
  }
}

TEST(HostMemory, SegmentsAreSealedFilesThatAnotherMappingShares) {
  const auto memory =
      memory_of({.name = "t", .stride_bytes = 4096, .slot_count = 3, .segment_bytes_max = 8192});
  ASSERT_NE(memory, nullptr);
  for (const HostMemory::Segment& segment : memory->segments()) {
    const int fd = segment.fd.get();
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(::ftruncate(fd, 1 << 20), -1);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    void* other = ::mmap(nullptr, segment.bytes.size(), PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(other, MAP_FAILED);
    segment.bytes.back() = std::byte{42};
    EXPECT_EQ(static_cast<const std::byte*>(other)[segment.bytes.size() - 1], std::byte{42});
    ::munmap(other, segment.bytes.size());
  }
}

TEST(HostMemory, RefusesWhatCannotBe) {
  const auto code = [](const HostMemoryShape& shape) {
    return HostMemory::create(shape).status().code();
  };
  EXPECT_EQ(code({.stride_bytes = 4096, .slot_count = 0}), StatusCode::invalid_argument);
  EXPECT_EQ(code({.stride_bytes = 0, .slot_count = 1}), StatusCode::invalid_argument);
  EXPECT_EQ(code({.stride_bytes = 100, .slot_count = 1}), StatusCode::invalid_argument);
  EXPECT_EQ(code({.stride_bytes = 8192, .slot_count = 1, .segment_bytes_max = 4096}),
            StatusCode::invalid_argument);
}

// No address space has room for this; nothing may be left behind, and the message says what to do.
TEST(HostMemory, RefusalOfTheSystemNamesTheOption) {
  const auto memory = HostMemory::create({.stride_bytes = std::uint64_t{1} << 47,
                                          .slot_count = 2,
                                          .segment_bytes_max = std::uint64_t{1} << 48});
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.status().message().find("--hicache-size"), std::string_view::npos)
      << memory.status().to_string();
}

TEST(HostPool, SlotIsHeaderThenPayload) {
  const auto pool = pool_of(1000, 4);
  ASSERT_NE(pool, nullptr);
  std::set<const std::byte*> starts;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const PageId page{i, 1};
    pool->on_allocated(page);
    const std::span<std::byte> slot = pool->slot(page);
    const std::span<std::byte> payload = pool->payload(page);
    EXPECT_EQ(slot.size(), 1128u);
    EXPECT_EQ(payload.size(), 1000u);
    EXPECT_EQ(payload.data(), slot.data() + 128);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot.data()) % 4096, 0u);
    EXPECT_TRUE(starts.insert(slot.data()).second);
  }
  EXPECT_TRUE(pool->slot(PageId{4, 1}).empty());
  EXPECT_TRUE(pool->payload(PageId{}).empty());
  EXPECT_EQ(pool->bytes(), 4u * 4096);
}

TEST(HostPool, LogicalPoolHasNoHostPool) {
  PoolSpec pool;
  pool.kind = PoolKind::logical;
  EXPECT_EQ(HostPool::create(pool, 4).status().code(), StatusCode::invalid_argument);
}

#ifdef HITIDE_DEBUG_CHECKS

constexpr bool kAsan =
#if defined(__SANITIZE_ADDRESS__)
    true;
#else
    false;
#endif

TEST(HostPool, WhatAFreedPageHeldIsGone) {
  if (kAsan) GTEST_SKIP() << "a free page must not be looked at under AddressSanitizer";
  for (const std::uint64_t page_bytes : {1u, 300u, 5000u}) {
    const auto pool = pool_of(page_bytes, 2);
    const PageId page{1, 1};
    pool->on_allocated(page);
    std::memset(pool->slot(page).data(), 7, pool->slot(page).size());
    pool->on_freed(page);
    EXPECT_NE(pool->slot(page).front(), std::byte{7});
    EXPECT_NE(pool->slot(page).back(), std::byte{7});
    pool->on_allocated(PageId{1, 2});  // nothing was late
  }
}

TEST(HostPoolDeathTest, LateWriteIntoAFreePageIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pool = pool_of(5000, 2);
  const PageId page{0, 1};
  pool->on_allocated(page);
  pool->on_freed(page);
  const auto late_write = [&](std::byte* target) {
    *target = std::byte{1};
    pool->on_allocated(PageId{0, 2});
  };
  const char* message = kAsan ? "use-after-poison" : "some copy was late";
  EXPECT_DEATH(late_write(pool->slot(page).data()), message);
  EXPECT_DEATH(late_write(&pool->payload(page).back()), message);
}

TEST(HostPoolDeathTest, PageThatWasNeverHandedOutIsPoisoned) {
  if (!kAsan) GTEST_SKIP() << "needs AddressSanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pool = pool_of(5000, 2);
  EXPECT_DEATH(pool->payload(PageId{1, 1}).back() = std::byte{1}, "use-after-poison");
}

TEST(HostPool, AllocatorTellsThePool) {
  const auto pool = pool_of(64, 2);
  PageAllocator pages(2);
  ASSERT_TRUE(pages.set_observer(pool.get()).ok());
  std::vector<PageId> out;
  for (int round = 0; round < 3; ++round) {
    out.clear();
    ASSERT_TRUE(pages.allocate(2, PageOwner::request, out).ok());
    for (const PageId page : out) {
      std::memset(pool->slot(page).data(), 1, pool->slot(page).size());
    }
    ASSERT_TRUE(pages.free(out, PageOwner::request).ok());
  }
}

#endif  // HITIDE_DEBUG_CHECKS

}  // namespace
}  // namespace hitide
