#include "base/memory_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace hitide {
namespace {

constexpr std::byte kMark{0x5a};

TEST(MemoryFileTest, IsZeroSealedAndMappedWhereHugePagesCanBe) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{4096}, kHugePageBytes,
                                    kHugePageBytes + 1, 3 * kHugePageBytes + 4096}) {
    const auto file = create_memory_file("test", bytes);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto mapped = map_memory_file(*file, "test", bytes);
    ASSERT_TRUE(mapped.ok()) << mapped.status().message();
    EXPECT_EQ(mapped->size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapped->data()) % kHugePageBytes, 0u);
    EXPECT_TRUE(std::all_of(mapped->begin(), mapped->end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    EXPECT_NE(::ftruncate(file->get(), 0), 0) << "another process's mapping could fault";
    EXPECT_NE(::ftruncate(file->get(), static_cast<off_t>(bytes + 4096)), 0);
    EXPECT_EQ(::munmap(mapped->data(), bytes), 0);
  }
}

TEST(MemoryFileTest, NothingElseStaysMapped) {
  const auto mapped_pages = [] {
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    EXPECT_EQ(std::fscanf(file, "%lu", &pages), 1);
    std::fclose(file);
    return pages;
  };
  const std::uint64_t bytes = 3 * kHugePageBytes + 4096;
  const auto file = create_memory_file("test", bytes);
  ASSERT_TRUE(file.ok());
  const auto mapped = map_memory_file(*file, "test", bytes);  // what the first call allocates
  ASSERT_TRUE(mapped.ok());
  ::munmap(mapped->data(), bytes);
  const unsigned long before = mapped_pages();
  const auto again = map_memory_file(*file, "test", bytes);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(mapped_pages(), before + bytes / 4096);
  ::munmap(again->data(), bytes);
  EXPECT_EQ(mapped_pages(), before);
}

TEST(MemoryFileTest, PopulatingKeepsWhatIsThereAndWhatOthersSee) {
  const std::uint64_t bytes = 4 * kHugePageBytes + 8192;
  const auto file = create_memory_file("test", bytes);
  ASSERT_TRUE(file.ok());
  const auto ours = map_memory_file(*file, "test", bytes);
  ASSERT_TRUE(ours.ok());
  const auto theirs = map_memory_file(*file, "test", bytes);
  ASSERT_TRUE(theirs.ok());
  (*ours)[kHugePageBytes + 17] = kMark;
  (*ours)[bytes - 1] = kMark;
  const std::uint64_t huge = populate_huge_pages(*ours);
  EXPECT_LE(huge, 4 * kHugePageBytes) << "the rest is no huge page";
  EXPECT_EQ(huge % kHugePageBytes, 0u);
  (*theirs)[3] = kMark;
  for (std::uint64_t at = 0; at < bytes; ++at) {
    const bool marked = at == 3 || at == kHugePageBytes + 17 || at == bytes - 1;
    ASSERT_EQ((*ours)[at], marked ? kMark : std::byte{0}) << at;
    ASSERT_EQ((*theirs)[at], (*ours)[at]) << at;
  }
  ::munmap(ours->data(), bytes);
  ::munmap(theirs->data(), bytes);
}

TEST(MemoryFileTest, WhatIsSmallerThanAHugePageIsLeftAsItIs) {
  const auto file = create_memory_file("test", 8192);
  ASSERT_TRUE(file.ok());
  const auto mapped = map_memory_file(*file, "test", 8192);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(populate_huge_pages(*mapped), 0u);
  EXPECT_EQ(populate_huge_pages({}), 0u);
  ::munmap(mapped->data(), 8192);
}

TEST(MemoryFileTest, RefusalsNameWhatAndHowMuch) {
  const auto file = create_memory_file("huge", std::uint64_t{1} << 62);
  if (file.ok()) {
    const auto mapped = map_memory_file(*file, "huge", std::uint64_t{1} << 62);
    ASSERT_FALSE(mapped.ok());
    EXPECT_NE(mapped.status().message().find("map 4611686018427387904 bytes of huge"),
              std::string_view::npos)
        << mapped.status().message();
  } else {
    EXPECT_NE(file.status().message().find("huge"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace hitide
