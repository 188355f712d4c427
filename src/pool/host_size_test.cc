#include "pool/host_size.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/temp_directory.h"

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

Result<HostSize> size_of(std::uint64_t bytes, std::uint64_t stride, std::uint64_t free,
                         std::vector<MemoryDemand> others = {}) {
  const PageLayout layout = layout_of(stride);
  return host_size(bytes_of(bytes), {&layout, 1}, {free, "MemAvailable"}, others);
}

TEST(HostSize, AQuarterOfTheFreeMemoryUnlessTold) {
  const auto automatic = size_of(0, kMiB, 100 * kMiB);
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->page_count, 25u);
  EXPECT_EQ(automatic->bytes, 25 * kMiB);
  EXPECT_EQ(size_of(10 * kMiB + 1, kMiB, 100 * kMiB)->page_count, 10u);
  EXPECT_EQ(size_of(0, kMiB, 100 * kMiB, {{"bounce_bytes", 20 * kMiB}})->page_count, 20u)
      << "of what others leave";
}

TEST(HostSize, RefusalsNameTheOption) {
  const auto check = [](std::uint64_t bytes, std::uint64_t stride, std::uint64_t available) {
    const auto size = size_of(bytes, stride, available);
    EXPECT_EQ(size.status().code(), StatusCode::resource_exhausted);
    EXPECT_NE(size.status().message().find("--hicache-size"), std::string_view::npos);
    EXPECT_NE(size.status().message().find("MemAvailable"), std::string_view::npos);
  };
  check(91 * kMiB, kMiB, 100 * kMiB);
  check(1000 * kMiB, kMiB, 100 * kMiB);
  check(kMiB - 1, kMiB, 100 * kMiB);  // not one page
  check(0, kMiB, 3 * kMiB);
  check(0, kMiB, 0);
  EXPECT_EQ(size_of(90 * kMiB, kMiB, 100 * kMiB)->page_count, 90u);
}

TEST(HostSize, AllPoolsAndEverybodyElseCountTogether) {
  const std::vector<PageLayout> pools = {layout_of(3 * kMiB), layout_of(kMiB)};
  const MemoryRoom room{100 * kMiB, "/sys/fs/cgroup/a/memory.max"};
  const auto size = host_size(bytes_of(40 * kMiB), pools, room);
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->page_count, 10u);
  EXPECT_EQ(size->bytes, 40 * kMiB);
  const std::vector<MemoryDemand> others = {{"global_segment_size", 40 * kMiB},
                                            {"bounce_bytes", 11 * kMiB}};
  const auto refused = host_size(bytes_of(40 * kMiB), pools, room, others);
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(refused.status().message(),
            "--hicache-size asks for 41943040 bytes, global_segment_size for 41943040, "
            "bounce_bytes for 11534336: 95420416 together; 104857600 are free "
            "(/sys/fs/cgroup/a/memory.max) and 94371840 may be taken: lower --hicache-size or "
            "global_segment_size");
  EXPECT_TRUE(host_size(bytes_of(39 * kMiB), pools, room, others).ok());
  EXPECT_FALSE(size_of(0, kMiB, 100 * kMiB, {{"global_segment_size", UINT64_MAX}}).ok());
}

// K15 B209: one budget for all pools of a rank, and one limit for all ranks of a machine, each of
// which sees what those before it have left.
TEST(HostSize, K15_B209_PoolsAndRanksShareTheirBudgets) {
  const std::vector<PageLayout> pools = {layout_of(3 * 4096), layout_of(4096)};
  const std::string limit = "/sys/fs/cgroup/job/memory.max";
  const auto refused = host_size(bytes_of(100 * kMiB), pools, {64 * kMiB, limit});
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  for (const char* part : {"104857600", "67108864", "--hicache-size", limit.c_str()}) {
    EXPECT_NE(refused.status().message().find(part), std::string_view::npos) << part;
  }
  const auto of_rank = host_size(bytes_of(100 * kMiB), pools, {1024 * kMiB, limit});
  ASSERT_TRUE(of_rank.ok());
  EXPECT_LE(of_rank->bytes, 100 * kMiB);
  EXPECT_EQ(of_rank->bytes, std::uint64_t{of_rank->page_count} * 4 * 4096);
  for (const std::uint64_t asked : {std::uint64_t{0}, 7 * kMiB, 20 * kMiB}) {
    std::uint64_t taken = 0;
    for (int rank = 0; rank < 8; ++rank) {
      const auto size = host_size(bytes_of(asked), pools, {64 * kMiB - taken, limit});
      if (!size.ok()) {
        EXPECT_EQ(size.status().code(), StatusCode::resource_exhausted);
        continue;
      }
      if (asked > 0) {
        EXPECT_LE(size->bytes, asked);
      }
      taken += size->bytes;
    }
    EXPECT_LE(taken, 64 * kMiB) << asked;
    EXPECT_GT(taken, 16 * kMiB) << asked;
  }
}

// K16 B213: a total that is no multiple of a page leaves the rest.
TEST(HostSize, K16_B213_ATotalThatIsNoMultipleIsRoundedDown) {
  const auto size = size_of(10 * kMiB + 4095, kMiB, 100 * kMiB);
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->page_count, 10u);
  EXPECT_EQ(size->bytes, 10 * kMiB);
}

TEST(HostSize, PageCountFitsItsType) {
  const auto size = size_of(0, 4096, std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(size.ok());
  EXPECT_LT(size->page_count, std::numeric_limits<std::uint32_t>::max());
}

TEST(HostSize, RefusesPoolsWithoutBytes) {
  EXPECT_EQ(size_of(0, 0, 100 * kMiB).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(host_size({}, {}, {kMiB, ""}).status().code(), StatusCode::invalid_argument);
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

// A machine of files: the least of all limits counts, and is named.
class FakeMachine {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return directory_ / "root"; }

 private:
  TempDirectory directory_;
};

TEST(HostSize, K15_TheLeastLimitOfCgroupsCounts) {
  FakeMachine machine;
  EXPECT_FALSE(memory_room(machine.root()).ok());
  machine.write("/proc/meminfo", "MemTotal: 1 kB\nMemAvailable: 1000 kB\n");
  EXPECT_EQ(memory_room(machine.root())->bytes, 1'024'000u);
  EXPECT_EQ(memory_room(machine.root())->limit, "MemAvailable");

  machine.write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::string outer = "/sys/fs/cgroup/outer";
  machine.write(outer + "/inner/memory.max", "max\n");
  machine.write(outer + "/inner/memory.current", "5000\n");
  EXPECT_EQ(memory_room(machine.root())->limit, "MemAvailable");
  machine.write(outer + "/memory.max", "900000\n");
  machine.write(outer + "/memory.current", "300000\n");
  machine.write(outer + "/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(memory_room(machine.root())->bytes, 700'000u);
  EXPECT_EQ(memory_room(machine.root())->limit, machine.root() + outer + "/memory.max");
}

TEST(HostSize, K15_LimitsOfTheFirstVersionOfCgroupsCountToo) {
  FakeMachine machine;
  machine.write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  machine.write("/proc/self/cgroup", "4:cpu,memory:/job\n");
  const std::string group = "/sys/fs/cgroup/memory/job";
  machine.write(group + "/memory.limit_in_bytes", "500000\n");
  machine.write(group + "/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(memory_room(machine.root())->bytes, 400'000u);
  EXPECT_EQ(memory_room(machine.root())->limit, machine.root() + group + "/memory.limit_in_bytes");
}

TEST(HostSize, ThisMachineHasMemory) {
  const auto available = available_memory();
  ASSERT_TRUE(available.ok()) << available.status().to_string();
  EXPECT_GT(*available, 0u);
}

}  // namespace
}  // namespace hitide
