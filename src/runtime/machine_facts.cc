#include "runtime/machine_facts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "pool/host_placement.h"
#include "storage/file/directory.h"
#include "storage/mooncake/child_process.h"
#include "storage/registry.h"

namespace hitide {
namespace {

constexpr Duration kInterpreterTime = std::chrono::seconds(20);

struct FileSystemName {
  std::uint32_t magic;
  std::string_view name;
};
// What statfs() answers; numbers of the kernel's interface.
constexpr FileSystemName kFileSystems[] = {
    {0xef53, "ext4"},     {0x58465342, "xfs"},   {0x9123683e, "btrfs"},  {0x2fc12fc1, "zfs"},
    {0xf2f52010, "f2fs"}, {0x01021994, "tmpfs"}, {0x858458f6, "ramfs"},  {0x794c7630, "overlay"},
    {0x6969, "nfs"},      {0xff534d42, "cifs"},  {0xfe534d42, "smb2"},   {0x01021997, "9p"},
    {0x65735546, "fuse"}, {0x00c36400, "ceph"},  {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},
    {0x4d44, "vfat"},     {0x5346544e, "ntfs"},  {0x2011bab0, "exfat"},
};

std::string file_system_name(std::uint64_t magic) {
  for (const FileSystemName& known : kFileSystems) {
    if (known.magic == (magic & 0xffffffffu)) return std::string(known.name);
  }
  return fmt::format("type {:#x}", magic);
}

std::uint64_t limit_of(const rlimit& limit, bool hard) {
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? kNoLimit : std::uint64_t{value};
}

std::uint32_t processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&set)));
  }
  return static_cast<std::uint32_t>(std::max(1l, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

DiskFacts look_at_disk(const std::string& path) {
  namespace fs = std::filesystem;
  DiskFacts disk;
  std::error_code error;
  const fs::path at = nearest_existing(path);
  disk.path = at.string();
  disk.directory = fs::is_directory(at, error);
  disk.writable = disk.directory && ::access(at.c_str(), W_OK | X_OK) == 0;
  struct statfs info {};
  if (::statfs(at.c_str(), &info) != 0) {
    disk.unknown = std::strerror(errno);
    return disk;
  }
  disk.type = file_system_name(static_cast<std::uint64_t>(info.f_type));
  disk.free_bytes = std::uint64_t{info.f_bavail} * static_cast<std::uint64_t>(info.f_bsize);
  disk.store_bytes = disk_bytes(path);
  return disk;
}

// What the interpreter says when it is asked for Mooncake's client; empty: it has it.
std::string ask_interpreter(const std::string& python) {
  auto child =
      ChildProcess::start({.program = python, .arguments = {"-c", "import mooncake.store"}});
  if (!child.ok()) return std::string(child.status().message());
  if (!(*child)->wait(SystemClock::instance().now() + kInterpreterTime)) {
    return "it has not answered in 20 s";
  }
  (*child)->drain_errors();
  return (*child)->error_tail();
}

}  // namespace

MachineFacts look_at_machine(const MachineCheck& check) {
  MachineFacts facts;
  if (auto room = memory_room(); room.ok()) facts.room = std::move(*room);
  const PlacementSystem system = this_system();
  const AllocatorKind kind =
      check.host.allocator == "mmap" ? AllocatorKind::mmap : AllocatorKind::shm;
  facts.no_huge_pages = system.no_huge_pages(kind);
  facts.numa_nodes = system.numa_nodes();
  facts.processors = processors();
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.locked_max = limit_of(limit, false);
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.files_max = limit_of(limit, false);
    facts.files_hard_max = limit_of(limit, true);
  }
  facts.file_bytes_max = kNoLimit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0) facts.file_bytes_max = limit_of(limit, false);
  if (check.storage.backend == "file" && !check.storage.path.empty()) {
    facts.disk = look_at_disk(check.storage.path);
  }
  if (check.storage.backend == "mooncake") {
    facts.interpreter = ask_interpreter(check.storage.mooncake.python);
  }
  return facts;
}

}  // namespace hitide
