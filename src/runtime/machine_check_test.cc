// What is said of machines of all kinds.
#include <hitide/machine.h>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "runtime/machine_facts.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

constexpr std::uint64_t kGiB = 1ull << 30;

MachineFacts good_machine() {
  MachineFacts facts;
  facts.room = MemoryRoom{.bytes = 16 * kGiB, .limit = "MemAvailable"};
  facts.locked_max = 64 << 10;
  facts.files_max = 1024;
  facts.files_hard_max = 1 << 20;
  facts.file_bytes_max = kNoLimit;
  facts.numa_nodes = {0};
  facts.processors = 8;
  facts.disk =
      DiskFacts{.path = "/store", .writable = true, .type = "ext4", .free_bytes = 100 * kGiB};
  return facts;
}

MachineCheck plain_check() {
  MachineCheck check;
  check.storage.path = "/store";
  return check;
}

// The line of that subject; one that says so where there is none.
MachineLine line(const MachineFacts& facts, const MachineCheck& check, const std::string& subject) {
  for (const MachineLine& one : judge_machine(facts, check)) {
    EXPECT_EQ(one.advice.empty(), one.state == MachineState::ok) << one.subject;
    EXPECT_FALSE(one.found.empty()) << one.subject;
    if (one.subject == subject) return one;
  }
  ADD_FAILURE() << "no line " << subject;
  return {};
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Machine, AGoodOneIsOkThroughout) {
  const auto lines = judge_machine(good_machine(), plain_check());
  std::vector<std::string> subjects;
  for (const MachineLine& one : lines) {
    EXPECT_EQ(one.state, MachineState::ok) << one.subject << ": " << one.found;
    subjects.push_back(one.subject);
  }
  EXPECT_EQ(subjects,
            (std::vector<std::string>{"memory", "huge_pages", "locked_memory", "open_files", "numa",
                                      "processors", "disk", "file_system"}));
}

TEST(Machine, HostMemoryThatIsNotThereIsAProblemWithANumber) {
  MachineCheck check = plain_check();
  check.host.bytes = 15 * kGiB;
  const MachineLine much = line(good_machine(), check, "memory");
  EXPECT_EQ(much.state, MachineState::problem);
  EXPECT_TRUE(says(much.found, "15.0 GiB") && says(much.found, "MemAvailable")) << much.found;
  EXPECT_TRUE(says(much.advice, "--hicache-size to 15 GB")) << much.advice;
  check.host.bytes = 14 * kGiB;
  EXPECT_EQ(line(good_machine(), check, "memory").state, MachineState::ok);
  MachineFacts facts = good_machine();
  facts.room->bytes = kGiB / 2;
  EXPECT_EQ(line(facts, plain_check(), "memory").state, MachineState::advice);
  facts.room.reset();
  EXPECT_TRUE(says(line(facts, plain_check(), "memory").advice, "--hicache-size"));
}

TEST(Machine, HugePagesThatAreNotToBeHad) {
  MachineFacts facts = good_machine();
  facts.no_huge_pages = "shmem_enabled is never";
  MachineCheck check = plain_check();
  EXPECT_TRUE(says(line(facts, check, "huge_pages").advice, "--host-prefault"));
  check.host.allocator = "mmap";
  EXPECT_TRUE(says(line(facts, check, "huge_pages").advice, "madvise"));
  check.host.huge_pages = "off";
  EXPECT_EQ(line(facts, check, "huge_pages").state, MachineState::ok);
}

TEST(Machine, LimitsOfTheShell) {
  MachineFacts facts = good_machine();
  facts.files_max = 256;
  EXPECT_EQ(line(facts, plain_check(), "open_files").state, MachineState::advice);
  EXPECT_TRUE(says(line(facts, plain_check(), "open_files").advice, "ulimit -n 832"));
  facts.files_max = 20;
  facts.files_hard_max = 20;
  EXPECT_EQ(line(facts, plain_check(), "open_files").state, MachineState::problem);
  EXPECT_TRUE(says(line(facts, plain_check(), "open_files").advice, "root"));
  MachineCheck check = plain_check();
  check.storage.backend = "mooncake";
  check.storage.mooncake.protocol = "rdma";
  EXPECT_EQ(line(facts, check, "locked_memory").state, MachineState::advice);
  check.storage.mooncake.protocol = "tcp";
  EXPECT_EQ(line(facts, check, "locked_memory").state, MachineState::ok);
  facts.file_bytes_max = 1 << 20;
  EXPECT_EQ(line(facts, plain_check(), "file_size").state, MachineState::advice);
}

TEST(Machine, NodesAndProcessors) {
  MachineFacts facts = good_machine();
  facts.numa_nodes = {0, 2};
  MachineCheck check = plain_check();
  EXPECT_EQ(line(facts, check, "numa").state, MachineState::ok);
  check.host.numa = "off";
  EXPECT_EQ(line(facts, check, "numa").state, MachineState::advice);
  check.host.numa = "1";
  EXPECT_EQ(line(facts, check, "numa").state, MachineState::problem);
  check.host.numa = "2";
  EXPECT_EQ(line(facts, check, "numa").state, MachineState::ok);
  check.threads = 9;
  EXPECT_TRUE(says(line(facts, check, "processors").advice, "--threads 8"));
  check.threads = 8;
  EXPECT_EQ(line(facts, check, "processors").state, MachineState::ok);
  facts.processors = 1;
  check.threads = 0;
  EXPECT_EQ(line(facts, check, "processors").state, MachineState::advice);
}

TEST(Machine, DisksAndFileSystems) {
  const MachineCheck plain = plain_check();
  for (const char* type : {"tmpfs", "overlay", "nfs", "fuse", "vfat"}) {
    MachineFacts facts = good_machine();
    facts.disk->type = type;
    EXPECT_EQ(line(facts, plain, "file_system").state, MachineState::advice) << type;
  }
  MachineFacts facts = good_machine();
  facts.disk->free_bytes = 100 << 20;
  EXPECT_EQ(line(facts, plain, "disk").state, MachineState::problem);
  facts.disk->free_bytes = 4 * kGiB;
  EXPECT_EQ(line(facts, plain, "disk").state, MachineState::advice) << "a tenth is little";
  MachineCheck check = plain;
  check.storage.bytes_max = 2 * kGiB;
  EXPECT_EQ(line(facts, check, "disk").state, MachineState::ok);
  check.storage.bytes_max = 8 * kGiB;
  EXPECT_TRUE(says(line(facts, check, "disk").advice, "max_size"));
  facts.disk->store_bytes = 8 * kGiB;
  EXPECT_EQ(line(facts, check, "disk").state, MachineState::ok) << "what the store has is its own";
  facts.disk->writable = false;
  EXPECT_TRUE(says(line(facts, check, "disk").found, "not writable"));
  facts.disk->directory = false;
  EXPECT_EQ(line(facts, check, "disk").state, MachineState::problem);
}

TEST(Machine, AnInterpreterWithoutMooncake) {
  MachineFacts facts = good_machine();
  facts.disk.reset();
  MachineCheck check;
  check.storage.backend = "mooncake";
  check.storage.mooncake.python = "/some/python";
  facts.interpreter = "";
  EXPECT_EQ(line(facts, check, "interpreter").state, MachineState::ok);
  facts.interpreter = "ModuleNotFoundError: No module named 'mooncake'";
  const MachineLine without = line(facts, check, "interpreter");
  EXPECT_EQ(without.state, MachineState::problem);
  EXPECT_TRUE(says(without.found, "/some/python") && says(without.found, "No module"));
}

TEST(Machine, ThisOneIsLookedAt) {
  const TempDirectory directory;
  MachineCheck check;
  check.storage.path = directory / "not/yet/there";
  const MachineFacts facts = look_at_machine(check);
  EXPECT_TRUE(facts.room.has_value());
  EXPECT_GE(facts.processors, 1u);
  EXPECT_GT(facts.files_max, 0u);
  ASSERT_TRUE(facts.disk.has_value());
  EXPECT_EQ(facts.disk->path, directory.path());
  EXPECT_TRUE(facts.disk->writable);
  EXPECT_GT(facts.disk->free_bytes, 0u);
  EXPECT_FALSE(facts.disk->type.empty());
  check.storage.backend = "mooncake";
  check.storage.mooncake.python = directory / "no_python";
  EXPECT_FALSE(look_at_machine(check).interpreter->empty());
}

}  // namespace
}  // namespace hitide
