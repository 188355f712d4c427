#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <hitide/machine.h>

#include "runtime/machine_facts.h"
#include "storage/file/file_store.h"
#include "storage/registry.h"

namespace hitide {
namespace {

// Open at a time: segments of a file store, connections, and what the program itself has.
constexpr std::uint64_t kFilesWanted = 512 + 256 + 64;
constexpr std::uint64_t kFilesNeeded = 64;
const std::uint64_t kDiskReserve = FileStoreOptions().disk_free_bytes_min;
constexpr std::uint64_t kDiskLittle = 1u << 30;

std::string gib(std::uint64_t bytes) {
  if (bytes == kNoLimit) return "unlimited";
  if (bytes < (1u << 30)) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

std::string count_text(std::uint64_t count) {
  return count == kNoLimit ? "unlimited" : std::to_string(count);
}

class Judge {
 public:
  Judge(const MachineFacts& facts, const MachineCheck& check) : facts_(facts), check_(check) {}

  std::vector<MachineLine> all() {
    memory();
    huge_pages();
    locked_memory();
    open_files();
    numa();
    processors();
    if (facts_.disk) disk(*facts_.disk);
    if (facts_.interpreter) interpreter(*facts_.interpreter);
    return std::move(lines_);
  }

 private:
  void say(std::string subject, std::string found) {
    lines_.push_back({std::move(subject), MachineState::ok, std::move(found), {}});
  }
  void say(std::string subject, MachineState state, std::string found, std::string advice) {
    lines_.push_back({std::move(subject), state, std::move(found), std::move(advice)});
  }

  void memory() {
    if (!facts_.room) {
      return say("memory", MachineState::advice, "the system does not say how much is free",
                 "give --hicache-size, and see that so much is free");
    }
    const std::uint64_t room = facts_.room->bytes;
    const std::uint64_t most = host_bytes_most(room);
    const std::uint64_t untold = host_bytes_default(room);
    const std::string free = fmt::format("{} free ({})", gib(room), facts_.room->limit);
    if (check_.host.bytes > most) {
      return say("memory", MachineState::problem,
                 fmt::format("{}; --hicache-size asks for {}, and {} may be taken", free,
                             gib(check_.host.bytes), gib(most)),
                 fmt::format("lower --hicache-size to {} GB, or free memory", most / 1000000000));
    }
    if (check_.host.bytes != 0) {
      return say("memory", fmt::format("{}; the host tier takes {}", free, gib(check_.host.bytes)));
    }
    if (check_.host.ratio > 0) {
      return say("memory", fmt::format("{}; the host tier takes --hicache-ratio {} of the device's",
                                       free, check_.host.ratio));
    }
    if (untold < (256u << 20)) {
      return say("memory", MachineState::advice,
                 fmt::format("{}; the host tier takes a quarter, {}", free, gib(untold)),
                 "free memory: so small a tier keeps little");
    }
    say("memory", fmt::format("{}; the host tier takes a quarter, {}", free, gib(untold)));
  }

  void huge_pages() {
    if (check_.host.huge_pages == "off") return say("huge_pages", "--host-huge-pages off");
    if (facts_.no_huge_pages.empty()) {
      return say("huge_pages", fmt::format("to be had for {} memory", check_.host.allocator));
    }
    const bool shared = check_.host.allocator != "mmap";
    say("huge_pages", MachineState::advice, facts_.no_huge_pages,
        shared ? "--host-prefault takes them all the same (Linux 6.1 and newer), or set "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled to advise"
               : "set /sys/kernel/mm/transparent_hugepage/enabled to madvise");
  }

  void locked_memory() {
    const std::string found = fmt::format("ulimit -l: {}", gib(facts_.locked_max));
    const bool rdma = check_.storage.backend == "mooncake" &&
                      check_.storage.mooncake.protocol.find("rdma") != std::string::npos;
    if (!rdma) return say("locked_memory", found + "; nothing here locks memory");
    if (facts_.locked_max == kNoLimit) return say("locked_memory", found);
    say("locked_memory", MachineState::advice, found + "; RDMA locks the host tier",
        "ulimit -l unlimited, for this server and the store's own processes");
  }

  void open_files() {
    const std::string found = fmt::format("ulimit -n: {}, at most {}", count_text(facts_.files_max),
                                          count_text(facts_.files_hard_max));
    if (facts_.files_max >= kFilesWanted) return say("open_files", found);
    const std::string what =
        fmt::format("ulimit -n {}{}", kFilesWanted,
                    facts_.files_hard_max < kFilesWanted ? ", which root must allow first" : "");
    say("open_files",
        facts_.files_max < kFilesNeeded ? MachineState::problem : MachineState::advice,
        found + "; segments and connections may need " + std::to_string(kFilesWanted),
        what + "; or lower --max-connections");
  }

  void numa() {
    const auto& nodes = facts_.numa_nodes;
    if (nodes.size() <= 1) return say("numa", "one node");
    const std::string found = fmt::format("{} nodes ({}); --host-numa {}", nodes.size(),
                                          fmt::join(nodes, ", "), check_.host.numa);
    if (check_.host.numa == "auto") return say("numa", found + ": host memory on all in turn");
    if (check_.host.numa == "off") {
      return say("numa", MachineState::advice, found,
                 "--host-numa auto spreads host memory over them, or name the node that computes");
    }
    const bool there = std::any_of(nodes.begin(), nodes.end(), [&](std::uint32_t node) {
      return std::to_string(node) == check_.host.numa;
    });
    if (there) return say("numa", found);
    say("numa", MachineState::problem, found, "--host-numa: name one of these nodes, or auto");
  }

  void processors() {
    const std::uint32_t have = facts_.processors;
    const std::uint32_t threads = check_.threads != 0 ? check_.threads : std::max(1u, have - 1);
    const std::string found = fmt::format("{} to be used, {} threads compute", have, threads);
    if (threads > have) {
      return say("processors", MachineState::advice, found,
                 fmt::format("--threads {}: more than there are only wait for each other", have));
    }
    if (have == 1) {
      return say("processors", MachineState::advice, found,
                 "give it two: copies and the store need time beside the computing");
    }
    say("processors", found);
  }

  void disk(const DiskFacts& disk) {
    const std::string where = check_.storage.path == disk.path
                                  ? disk.path
                                  : fmt::format("{} (for {})", disk.path, check_.storage.path);
    if (!disk.unknown.empty()) {
      return say("disk", MachineState::problem, fmt::format("{}: {}", where, disk.unknown),
                 "name another directory with the key path");
    }
    if (!disk.directory || !disk.writable) {
      return say("disk", MachineState::problem,
                 fmt::format("{}: {}", where, disk.directory ? "not writable" : "no directory"),
                 "name another directory with the key path, or give this user the right to write");
    }
    disk_space(disk, where);
    file_system(disk, where);
    if (facts_.file_bytes_max < check_.storage.segment_bytes) {
      say("file_size", MachineState::advice,
          fmt::format("ulimit -f: {}; a segment has {}", gib(facts_.file_bytes_max),
                      gib(check_.storage.segment_bytes)),
          "ulimit -f unlimited: small segments are many, and there are 512 at most");
    }
  }

  void disk_space(const DiskFacts& disk, const std::string& where) {
    const std::uint64_t limit = check_.storage.bytes_max != 0
                                    ? check_.storage.bytes_max
                                    : default_bytes_max(disk.free_bytes, disk.store_bytes);
    const std::uint64_t room = disk.free_bytes + disk.store_bytes;
    const std::string found = fmt::format("{}: {} free; the store may have {}, and has {}", where,
                                          gib(disk.free_bytes), gib(limit), gib(disk.store_bytes));
    if (room < kDiskReserve + kFileStoreBytesLeast) {
      return say("disk", MachineState::problem, found,
                 fmt::format("free space: {} are left free in any case", gib(kDiskReserve)));
    }
    if (limit > room - kDiskReserve) {
      return say("disk", MachineState::advice, found,
                 fmt::format("lower max_size to {} MB, or free space: the disk's end comes before "
                             "the store's",
                             (room - kDiskReserve) / 1000000));
    }
    if (limit < kDiskLittle && check_.storage.bytes_max == 0) {
      return say("disk", MachineState::advice, found,
                 "it is a tenth of what is free: give max_size, or a larger disk");
    }
    say("disk", found);
  }

  void file_system(const DiskFacts& disk, const std::string& where) {
    const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), disk.type) != names.end();
    };
    const std::string found = fmt::format("{}: {}", where, disk.type);
    if (is_one_of({"tmpfs", "ramfs"})) {
      return say("file_system", MachineState::advice, found,
                 "it is in memory, which the host tier uses better, and gone after a restart: name "
                 "a directory on a disk with the key path");
    }
    if (is_one_of({"overlay"})) {
      return say("file_system", MachineState::advice, found,
                 "it goes with its container: mount a volume there");
    }
    if (is_one_of({"nfs", "cifs", "smb2", "9p", "fuse", "ceph", "lustre", "gpfs"})) {
      return say("file_system", MachineState::advice, found,
                 "a store is of one machine, and wants a local disk; to share one, take mooncake");
    }
    if (is_one_of({"vfat", "ntfs", "exfat"})) {
      return say("file_system", MachineState::advice, found,
                 "ext4 or xfs: this one reserves no space and has no large or sparse files");
    }
    say("file_system", found);
  }

  void interpreter(const std::string& complaint) {
    const std::string& python = check_.storage.mooncake.python;
    if (complaint.empty()) return say("interpreter", python + ": has mooncake.store");
    say("interpreter", MachineState::problem, fmt::format("{}: {}", python, complaint),
        "`make setup` makes one that has it; or name yours with the key python, or --python");
  }

  const MachineFacts& facts_;
  const MachineCheck& check_;
  std::vector<MachineLine> lines_;
};

}  // namespace

std::string_view to_string(MachineState state) {
  constexpr std::array<std::string_view, 3> kNames = {
#define HITIDE_X(name, meaning) #name,
      HITIDE_MACHINE_STATES(HITIDE_X)
#undef HITIDE_X
  };
  return kNames.at(static_cast<std::size_t>(state));
}

std::vector<MachineLine> judge_machine(const MachineFacts& facts, const MachineCheck& check) {
  return Judge(facts, check).all();
}

std::vector<MachineLine> check_machine(const MachineCheck& check) {
  return judge_machine(look_at_machine(check), check);
}

}  // namespace hitide
