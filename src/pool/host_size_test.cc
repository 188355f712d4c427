#include "pool/host_size.h"

#include <limits>

#include <gtest/gtest.h>

namespace hitide {
namespace {

using host_size_internal::cgroup_room;
using host_size_internal::meminfo_bytes;
using host_size_internal::memory_cgroup_path;

constexpr std::uint64_t kMiB = 1 << 20;

PageLayout layout_of(std::uint64_t stride_bytes) {
  PageLayout layout;
  layout.stride_bytes = stride_bytes;
  return layout;
}

HostOptions bytes_of(std::uint64_t bytes) {
  HostOptions options;
  options.bytes = bytes;
  return options;
}

TEST(HostSize, AQuarterOfTheFreeMemoryUnlessTold) {
  const auto automatic = host_size(bytes_of(0), layout_of(kMiB), 100 * kMiB);
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->page_count, 25u);
  EXPECT_EQ(automatic->bytes, 25 * kMiB);
  const auto told = host_size(bytes_of(10 * kMiB + 1), layout_of(kMiB), 100 * kMiB);
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told->page_count, 10u);
}

TEST(HostSize, RefusalsNameTheOption) {
  const auto check = [](std::uint64_t bytes, std::uint64_t stride, std::uint64_t available) {
    const auto size = host_size(bytes_of(bytes), layout_of(stride), available);
    EXPECT_EQ(size.status().code(), StatusCode::resource_exhausted);
    EXPECT_NE(size.status().message().find("--hicache-size"), std::string_view::npos);
  };
  check(91 * kMiB, kMiB, 100 * kMiB);
  check(1000 * kMiB, kMiB, 100 * kMiB);
  check(kMiB - 1, kMiB, 100 * kMiB);  // not one page
  check(0, kMiB, 3 * kMiB);
  check(0, kMiB, 0);
  EXPECT_EQ(host_size(bytes_of(90 * kMiB), layout_of(kMiB), 100 * kMiB)->page_count, 90u);
}

TEST(HostSize, PageCountFitsItsType) {
  const auto size =
      host_size(bytes_of(0), layout_of(4096), std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(size.ok());
  EXPECT_LT(size->page_count, std::numeric_limits<std::uint32_t>::max());
}

TEST(HostSize, RefusesPoolsWithoutBytes) {
  EXPECT_EQ(host_size(HostOptions{}, layout_of(0), 100 * kMiB).status().code(),
            StatusCode::invalid_argument);
}

TEST(HostSize, ReadsMeminfo) {
  const char* text = "MemTotal:       32000000 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\n";
  EXPECT_EQ(meminfo_bytes(text, "MemAvailable"), 2 * kMiB);
  EXPECT_EQ(meminfo_bytes(text, "MemTotal"), 32000000u * 1024ull);
  EXPECT_EQ(meminfo_bytes(text, "Mem"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("MemAvailable: x kB\n", "MemAvailable"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("", "MemAvailable"), std::nullopt);
}

TEST(HostSize, CgroupRoomIsTheLimitLessWhatCannotBeDropped) {
  EXPECT_EQ(cgroup_room("1000\n", "700\n", "anon 1\ninactive_file 200\n"), 500u);
  EXPECT_EQ(cgroup_room("1000\n", "700\n", ""), 300u);
  EXPECT_EQ(cgroup_room("1000\n", "1200\n", "total_inactive_file 900\n"), 0u);
  EXPECT_EQ(cgroup_room("1000\n", "100\n", "inactive_file 5000\n"), 1000u);
  EXPECT_EQ(cgroup_room("max\n", "700\n", ""), std::nullopt);
  EXPECT_EQ(cgroup_room("", "", ""), std::nullopt);
  EXPECT_EQ(cgroup_room("1000\n", "", ""), std::nullopt);
}

TEST(HostSize, FindsTheMemoryControllersPath) {
  EXPECT_EQ(memory_cgroup_path("3:cpuset:/a\n4:cpu,memory:/b/c\n0::/d\n"), "/b/c");
  EXPECT_EQ(memory_cgroup_path("3:memory_pressure:/a\n0::/d\n"), "/");
  EXPECT_EQ(memory_cgroup_path("garbage"), "/");
  EXPECT_EQ(memory_cgroup_path(""), "/");
}

TEST(HostSize, ThisMachineHasMemory) {
  const auto available = available_memory();
  ASSERT_TRUE(available.ok()) << available.status().to_string();
  EXPECT_GT(*available, 0u);
}

}  // namespace
}  // namespace hitide
