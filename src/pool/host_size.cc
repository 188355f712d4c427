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
                   std::uint64_t& available) {
  while (true) {
    const std::string folder = mount + (path == "/" ? "" : path);
    const auto room =
        cgroup_room(read_or_empty(folder + files.limit), read_or_empty(folder + files.usage),
                    read_or_empty(folder + "/memory.stat"));
    if (room) available = std::min(available, *room);
    const std::size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return;
    path.resize(std::max<std::size_t>(slash, 1));
  }
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

Result<std::uint64_t> available_memory() {
  HITIDE_ASSIGN_OR_RETURN(const std::string meminfo, read_file("/proc/meminfo", kFileBytesMax));
  const auto free = meminfo_bytes(meminfo, "MemAvailable");
  if (!free) return Status(StatusCode::unavailable, "/proc/meminfo has no MemAvailable line");
  std::uint64_t available = *free;
  const std::string cgroups = read_or_empty("/proc/self/cgroup");
  if (const auto path = line_after(cgroups, "0::")) {
    apply_cgroups("/sys/fs/cgroup", std::string(*path), {"/memory.max", "/memory.current"},
                  available);
  }
  // Version 1. Inside a container the path may lie outside of what is mounted; then the mount's
  // root is the container's own group, and the way up to it ends there.
  apply_cgroups("/sys/fs/cgroup/memory", memory_cgroup_path(cgroups),
                {"/memory.limit_in_bytes", "/memory.usage_in_bytes"}, available);
  return available;
}

Result<HostSize> host_size(const HostOptions& options, const PageLayout& layout,
                           std::uint64_t memory_available) {
  if (layout.stride_bytes == 0) {
    return Status(StatusCode::invalid_argument, "a pool without bytes has no host memory");
  }
  const std::uint64_t wanted = options.bytes != 0 ? options.bytes : memory_available / 4;
  const std::uint64_t most = memory_available / 10 * 9;
  if (wanted > most) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("--hicache-size asks for {} bytes, {} are free and {} may be taken: "
                              "lower --hicache-size",
                              wanted, memory_available, most));
  }
  const std::uint64_t pages = std::min<std::uint64_t>(
      wanted / layout.stride_bytes, std::numeric_limits<std::uint32_t>::max() - 1);
  if (pages == 0) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("the host tier would get {} bytes and one page needs {}: raise "
                              "--hicache-size",
                              wanted, layout.stride_bytes));
  }
  return HostSize{static_cast<std::uint32_t>(pages), pages * layout.stride_bytes};
}

}  // namespace hitide
