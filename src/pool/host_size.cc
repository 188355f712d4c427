#include "pool/host_size.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "base/file.h"

namespace hitide {
namespace {

using host_size_internal::cgroup_room;
using host_size_internal::meminfo_bytes;
using host_size_internal::memory_cgroup_path;

constexpr std::size_t kFileBytesMax = 64 << 10;

std::optional<std::uint64_t> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The rest of the line that starts with `start`.
std::optional<std::string_view> line_after(std::string_view text, std::string_view start) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(start)) return line.substr(start.size());
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

std::string read_or_empty(const std::string& path) {
  Result<std::string> text = read_file(path, kFileBytesMax);
  return std::move(text).value_or("");
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
};

// The least room from the process's cgroup up to the root of what is mounted.
void apply_cgroups(const std::string& mount, std::string path, const CgroupFiles& files,
                   MemoryRoom& least) {
  while (true) {
    const std::string folder = mount + (path == "/" ? "" : path);
    const auto room =
        cgroup_room(read_or_empty(folder + files.limit), read_or_empty(folder + files.usage),
                    read_or_empty(folder + "/memory.stat"));
    if (room && *room < least.bytes) least = {*room, folder + files.limit};
    const std::size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return;
    path.resize(std::max<std::size_t>(slash, 1));
  }
}

// "--hicache-size asks for 5 bytes, bounce_bytes for 3: 8 together".
std::string demands_text(std::uint64_t wanted, std::span<const MemoryDemand> others) {
  std::string text = fmt::format("--hicache-size asks for {} bytes", wanted);
  std::uint64_t sum = wanted;
  for (const MemoryDemand& other : others) {
    text += fmt::format(", {} for {}", other.option, other.bytes);
    sum += other.bytes;
  }
  if (!others.empty()) text += fmt::format(": {} together", sum);
  return text;
}

}  // namespace

namespace host_size_internal {

std::optional<std::uint64_t> meminfo_bytes(std::string_view meminfo, std::string_view name) {
  const auto line = line_after(meminfo, std::string(name) + ":");
  const auto kib = line ? parse_number(*line) : std::nullopt;
  if (!kib || *kib > std::numeric_limits<std::uint64_t>::max() / 1024) return std::nullopt;
  return *kib * 1024;
}

std::string memory_cgroup_path(std::string_view cgroups) {
  while (!cgroups.empty()) {  // id:controller,controller:path
    const std::string_view line = cgroups.substr(0, cgroups.find('\n'));
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second != line.npos) {
      const std::string list = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
      if (list.find(",memory,") != list.npos) return std::string(line.substr(second + 1));
    }
    cgroups.remove_prefix(std::min(line.size() + 1, cgroups.size()));
  }
  return "/";
}

std::optional<std::uint64_t> cgroup_room(std::string_view limit, std::string_view usage,
                                         std::string_view stat) {
  const auto limit_bytes = parse_number(limit);
  const auto usage_bytes = parse_number(usage);
  if (!limit_bytes || !usage_bytes) return std::nullopt;
  const auto line = line_after(stat, "inactive_file ");
  const std::uint64_t droppable =
      std::min(line ? parse_number(*line).value_or(0) : 0, *usage_bytes);
  const std::uint64_t used = *usage_bytes - droppable;
  return *limit_bytes > used ? *limit_bytes - used : 0;
}

}  // namespace host_size_internal

Result<MemoryRoom> memory_room(const std::string& root) {
  HITIDE_ASSIGN_OR_RETURN(const std::string meminfo,
                          read_file(root + "/proc/meminfo", kFileBytesMax));
  const auto free = meminfo_bytes(meminfo, "MemAvailable");
  if (!free) return Status(StatusCode::unavailable, "/proc/meminfo has no MemAvailable line");
  MemoryRoom room{*free, "MemAvailable"};
  const std::string cgroups = read_or_empty(root + "/proc/self/cgroup");
  if (const auto path = line_after(cgroups, "0::")) {
    apply_cgroups(root + "/sys/fs/cgroup", std::string(*path), {"/memory.max", "/memory.current"},
                  room);
  }
  // Version 1. Inside a container the path may lie outside of what is mounted; then the mount's
  // root is the container's own group, and the way up to it ends there.
  apply_cgroups(root + "/sys/fs/cgroup/memory", memory_cgroup_path(cgroups),
                {"/memory.limit_in_bytes", "/memory.usage_in_bytes"}, room);
  return room;
}

Result<std::uint64_t> available_memory() {
  HITIDE_ASSIGN_OR_RETURN(const MemoryRoom room, memory_room());
  return room.bytes;
}

Result<HostSize> host_size(const HostOptions& options, std::span<const PageLayout> pools,
                           const MemoryRoom& room, std::span<const MemoryDemand> others) {
  std::uint64_t page_bytes = 0;
  for (const PageLayout& pool : pools) {
    if (pool.stride_bytes == 0) {
      return Status(StatusCode::invalid_argument, "a pool without bytes has no host memory");
    }
    page_bytes += pool.stride_bytes;
  }
  if (pools.empty()) return Status(StatusCode::invalid_argument, "a host tier without pools");
  std::uint64_t taken = 0;
  for (const MemoryDemand& other : others) taken += other.bytes;
  const std::uint64_t wanted = options.bytes != 0
                                   ? options.bytes
                                   : host_bytes_default(room.bytes - std::min(taken, room.bytes));
  const std::uint64_t most = host_bytes_most(room.bytes);
  if (taken > most || wanted > most - taken) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("{}; {} are free ({}) and {} may be taken: lower --hicache-size{}",
                              demands_text(wanted, others), room.bytes, room.limit, most,
                              others.empty() ? "" : " or " + others.front().option));
  }
  const std::uint64_t pages =
      std::min<std::uint64_t>(wanted / page_bytes, std::numeric_limits<std::uint32_t>::max() - 1);
  if (pages == 0) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("the host tier would get {} bytes of {} free ones ({}), and one page "
                              "needs {}: raise --hicache-size",
                              wanted, room.bytes, room.limit, page_bytes));
  }
  return HostSize{static_cast<std::uint32_t>(pages), pages * page_bytes};
}

}  // namespace hitide
