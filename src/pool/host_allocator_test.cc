#include "pool/host_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool/host_pool.h"
#include "pool/registrability.h"

namespace hitide {
namespace {

constexpr std::uint64_t kBytes = 8 * 4096;

PoolSpec pool_spec() {
  PoolSpec pool;
  pool.page_bytes = 4000;
  return pool;
}

// A client that hands out memory, and counts.
struct Client {
  int out = 0;
  std::uint64_t less = 0;  // hands out so many bytes less than asked for
  bool refuses = false;

  StoreMemory source() {
    return {
        .allocate = [this](const std::string& name, std::uint64_t bytes) -> Result<HostSegment> {
          if (refuses) return Status(StatusCode::unavailable, "the client has no memory");
          ++out;
          return shm_allocator()->allocate(name, bytes - less);
        },
        .release =
            [this](HostSegment segment) {
              --out;
              shm_allocator()->release(std::move(segment));
            }};
  }
};

struct Pins {
  std::vector<std::span<std::byte>> pinned;
  bool refuses = false;

  Pinning pinning() {
    return {.pin =
                [this](std::span<std::byte> bytes) {
                  if (refuses) return Status(StatusCode::resource_exhausted, "locked memory");
                  pinned.push_back(bytes);
                  return ok_status();
                },
            .unpin =
                [this](std::span<std::byte> bytes) {
                  std::erase_if(pinned, [&](auto own) { return own.data() == bytes.data(); });
                }};
  }
};

TEST(HostAllocator, MemoryIsZeroAlignedAndWritable) {
  Client client;
  for (const auto& allocator :
       {mmap_allocator(), shm_allocator(), store_allocator(client.source())}) {
    SCOPED_TRACE(to_string(allocator->kind()));
    Result<HostSegment> segment = allocator->allocate("t", kBytes);
    ASSERT_TRUE(segment.ok()) << segment.status().to_string();
    ASSERT_EQ(segment->bytes.size(), kBytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment->bytes.data()) % 4096, 0u);
    EXPECT_TRUE(std::all_of(segment->bytes.begin(), segment->bytes.end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    std::memset(segment->bytes.data(), 0x5a, kBytes);
    EXPECT_EQ(segment->fd.valid(), allocator->kind() != AllocatorKind::mmap);
    allocator->release(std::move(segment).value());
  }
  EXPECT_EQ(client.out, 0);
}

// Bytes of this process's address space. Takes none itself.
std::uint64_t mapped_bytes() {
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  char text[128] = {};
  EXPECT_GT(::read(fd, text, sizeof text - 1), 0);
  ::close(fd);
  return std::strtoull(text, nullptr, 10) * 4096;
}

// Whole or not by huge pages and by pages: what was mapped is unmapped, no more and no less.
TEST(HostAllocator, K16_B213_WhatIsMappedIsUnmapped) {
  constexpr std::uint64_t kHuge = 2u << 20;
  for (const auto& allocator : {mmap_allocator(), shm_allocator()}) {
    mapped_bytes();
    allocator->release(allocator->allocate("t", 1).value());  // what is set up once is there
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4096}, std::uint64_t{4097},
          kHuge - 4096, kHuge - 1, kHuge, kHuge + 1, kHuge + 4096, 3 * kHuge / 2, 5 * kHuge - 1}) {
      SCOPED_TRACE(testing::Message() << to_string(allocator->kind()) << " " << bytes);
      const std::uint64_t before = mapped_bytes();
      Result<HostSegment> segment = allocator->allocate("t", bytes);
      const std::uint64_t during = mapped_bytes();
      ASSERT_TRUE(segment.ok()) << segment.status().to_string();
      EXPECT_EQ(during - before, (bytes + 4095) / 4096 * 4096);
      EXPECT_EQ(segment->bytes.size(), bytes);
      std::memset(segment->bytes.data(), 0x5a, bytes);
      allocator->release(std::move(segment).value());
      EXPECT_EQ(mapped_bytes(), before);
    }
  }
}

TEST(HostAllocator, K16_B213_SizesThatCannotBeAreRefusedAndMapNothing) {
  for (const auto& allocator : {mmap_allocator(), shm_allocator()}) {
    SCOPED_TRACE(to_string(allocator->kind()));
    const std::uint64_t before = mapped_bytes();
    EXPECT_EQ(allocator->allocate("t", 0).status().code(), StatusCode::invalid_argument);
    for (const std::uint64_t bytes :
         {UINT64_MAX, UINT64_MAX - 4095, UINT64_MAX - (2u << 20), std::uint64_t{1} << 63}) {
      EXPECT_EQ(allocator->allocate("t", bytes).status().code(), StatusCode::resource_exhausted)
          << bytes;
    }
    EXPECT_FALSE(allocator->allocate("t", std::uint64_t{1} << 62).ok());
    EXPECT_EQ(mapped_bytes(), before);
  }
}

TEST(HostAllocator, ShmIsSharedThroughItsDescriptor) {
  const auto allocator = shm_allocator();
  HostSegment segment = allocator->allocate("t", kBytes).value();
  segment.bytes[100] = std::byte{42};
  void* twin = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, segment.fd.get(), 0);
  ASSERT_NE(twin, MAP_FAILED);
  EXPECT_EQ(static_cast<std::byte*>(twin)[100], std::byte{42});
  ::munmap(twin, kBytes);
  allocator->release(std::move(segment));
}

TEST(HostAllocator, AClientThatHandsOutTooLittleIsRefusedAndGetsItBack) {
  Client client;
  client.less = 4096;
  const auto allocator = store_allocator(client.source());
  EXPECT_EQ(allocator->allocate("t", kBytes).status().code(), StatusCode::unavailable);
  EXPECT_EQ(client.out, 0);
  client.refuses = true;
  const auto pool = HostPool::create(pool_spec(), 3, allocator);
  EXPECT_EQ(pool.status().code(), StatusCode::unavailable);
  EXPECT_NE(pool.status().message().find("the client has no memory"), std::string::npos);
}

TEST(HostAllocator, PinningHoldsWhileTheMemoryLives) {
  Client client;
  Pins pins;
  const auto allocator = pinned_allocator(store_allocator(client.source()), pins.pinning());
  EXPECT_EQ(allocator->kind(), AllocatorKind::store) << "a decorator answers for what it wraps";
  {
    const auto pool = HostPool::create(pool_spec(), 3, allocator);
    ASSERT_TRUE(pool.ok());
    ASSERT_EQ(pins.pinned.size(), 1u);
    EXPECT_EQ(pins.pinned[0].data(), (*pool)->segments()[0].bytes.data());
  }
  EXPECT_TRUE(pins.pinned.empty());
  EXPECT_EQ(client.out, 0);
  pins.refuses = true;
  EXPECT_EQ(HostPool::create(pool_spec(), 3, allocator).status().code(),
            StatusCode::resource_exhausted);
  EXPECT_EQ(client.out, 0) << "what could not be pinned goes back";
}

TEST(HostAllocator, PoolsWithoutOneAreRefused) {
  EXPECT_EQ(HostPool::create(pool_spec(), 3, nullptr).status().code(),
            StatusCode::invalid_argument);
}

// Pools delegate to their allocator: the verdicts of real pools.
TEST(HostPoolRegistration, PoolsAnswerThroughTheirAllocator) {
  Client client;
  Pins pins;
  const ClientCapabilities agent{.kind = ClientKind::embedded};
  const ClientCapabilities thin{.kind = ClientKind::standalone};
  struct Case {
    std::shared_ptr<HostAllocator> allocator;
    RegistrationVerdict with_agent, with_thin;
  };
  using Verdict = RegistrationVerdict;
  for (const Case& one :
       {Case{mmap_allocator(), Verdict::not_shareable, Verdict::outside_store_segment},
        Case{shm_allocator(), Verdict::ok, Verdict::ok},
        Case{store_allocator(client.source()), Verdict::ok, Verdict::ok},
        Case{pinned_allocator(mmap_allocator(), pins.pinning()), Verdict::not_shareable,
             Verdict::outside_store_segment},
        Case{pinned_allocator(shm_allocator(), pins.pinning()), Verdict::ok, Verdict::ok}}) {
    PoolSpec spec = pool_spec();
    spec.name = "draft";
    spec.required = false;
    const auto pool = HostPool::create(spec, 5, one.allocator);
    ASSERT_TRUE(pool.ok());
    const PoolMemory memory = (*pool)->describe();
    EXPECT_EQ(memory.pool, "draft");
    EXPECT_FALSE(memory.required);
    EXPECT_EQ(memory.bytes(), (*pool)->bytes());
    EXPECT_EQ(to_string(registrability(memory, agent, {}).verdict), to_string(one.with_agent));
    EXPECT_EQ(to_string(registrability(memory, thin, {}).verdict), to_string(one.with_thin));
  }
}

TEST(HostPoolRegistration, PoolsWithoutMemory) {
  PoolSpec spec = pool_spec();
  EXPECT_EQ(registrability(describe_without_memory(spec), {}, {}).verdict,
            RegistrationVerdict::empty_buffer);
  spec.kind = PoolKind::logical;
  spec.page_bytes = 0;
  EXPECT_EQ(registrability(describe_without_memory(spec), {}, {}).verdict,
            RegistrationVerdict::logical_no_buffer);
}

}  // namespace
}  // namespace hitide
