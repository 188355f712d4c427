#include "pool/host_placement.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/file.h"
#include "base/memory_file.h"

namespace hitide {
namespace {

using host_placement_internal::chosen_nodes;
using host_placement_internal::chosen_word;
using host_placement_internal::usable_nodes;

constexpr std::size_t kFileBytesMax = 64 << 10;
constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;  // of one touch
constexpr std::uint32_t kThreadsMax = 16;
constexpr std::uint32_t kNodesMax = 1024;
// Of the kernel's interface; its headers are not everywhere.
constexpr int kPolicyBind = 2;
constexpr int kPolicyInterleave = 3;
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;
#endif

std::string text_of(const std::string& path) { return read_file(path, kFileBytesMax).value_or(""); }

int bind_memory(std::span<std::byte> bytes, std::span<const std::uint32_t> nodes) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(kNodesMax / kBits);
  for (const std::uint32_t node : nodes) mask[node / kBits] |= 1ul << (node % kBits);
  const int policy = nodes.size() > 1 ? kPolicyInterleave : kPolicyBind;
  const long code = ::syscall(SYS_mbind, bytes.data(), bytes.size(), policy, mask.data(),
                              static_cast<unsigned long>(kNodesMax) + 1, 0u);
  return code == 0 ? 0 : errno;
}

int touch_memory(std::span<std::byte> bytes) {
  return ::madvise(bytes.data(), bytes.size(), kPopulateWrite) == 0 ? 0 : errno;
}

std::string reason_against_huge_pages(AllocatorKind kind) {
  const bool shared = kind == AllocatorKind::shm;
  const std::string file =
      std::string("/sys/kernel/mm/transparent_hugepage/") + (shared ? "shmem_enabled" : "enabled");
  const std::string text = text_of(file);
  const std::string_view word = chosen_word(text);
  if (word.empty()) return file + " is not there";
  if (word == "never" || word == "deny") return fmt::format("{} is {}", file, word);
  return {};
}

class PlacedAllocator final : public HostAllocator {
 public:
  PlacedAllocator(std::shared_ptr<HostAllocator> inner, const HostOptions& options,
                  std::vector<std::uint32_t> nodes, PlacementSystem system)
      : inner_(std::move(inner)),
        prefault_(options.prefault),
        huge_pages_(options.huge_pages == "auto"),
        nodes_(std::move(nodes)),
        system_(std::move(system)) {}

  AllocatorKind kind() const override { return inner_->kind(); }
  Result<HostSegment> allocate(const std::string& name, std::uint64_t bytes) override {
    HITIDE_ASSIGN_OR_RETURN(HostSegment segment, inner_->allocate(name, bytes));
    Status status = place(segment);
    if (status.ok()) return segment;
    inner_->release(std::move(segment));
    return status.with_context(fmt::format("--host-prefault: {} bytes of {}", bytes, name));
  }
  void release(HostSegment segment) override { inner_->release(std::move(segment)); }

 private:
  Status place(HostSegment& segment) const;
  Status prefault(HostSegment& segment) const;
  // One thread's part: pieces from `next` on. errno, or 0.
  int touch_pieces(std::span<std::byte> bytes, std::atomic<std::uint64_t>& next,
                   std::atomic<std::uint64_t>& huge) const;

  const std::shared_ptr<HostAllocator> inner_;
  const bool prefault_;
  const bool huge_pages_;
  const std::vector<std::uint32_t> nodes_;
  const PlacementSystem system_;
};

Status PlacedAllocator::place(HostSegment& segment) const {
  HostPlacement& got = segment.placement;
  if (!nodes_.empty()) {
    const int error = system_.bind(segment.bytes, nodes_);
    got.numa = error == 0 ? fmt::format("{}", fmt::join(nodes_, ","))
                          : "refused: " + std::generic_category().message(error);
  }
  const std::string against = huge_pages_ ? system_.no_huge_pages(kind()) : "--host-huge-pages off";
  got.huge_pages = against.empty() ? "when touched" : "none: " + against;
  const int advice = against.empty() ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
  if (huge_pages_ == against.empty()) {  // else the system's own rule is left as it is
    static_cast<void>(::madvise(segment.bytes.data(), segment.bytes.size(), advice));
  }
  return prefault_ ? prefault(segment) : ok_status();
}

int PlacedAllocator::touch_pieces(std::span<std::byte> bytes, std::atomic<std::uint64_t>& next,
                                  std::atomic<std::uint64_t>& huge) const {
  for (;;) {
    const std::uint64_t begin = next.fetch_add(kPieceBytes, std::memory_order_relaxed);
    if (begin >= bytes.size()) return 0;
    const std::span<std::byte> piece =
        bytes.subspan(begin, std::min<std::uint64_t>(kPieceBytes, bytes.size() - begin));
    // Shared memory gets huge pages on demand, whatever the system's rule for it is.
    if (huge_pages_ && kind() == AllocatorKind::shm) {
      huge.fetch_add(populate_huge_pages(piece), std::memory_order_relaxed);
    }
    const int error = system_.touch(piece);
    if (error != 0) return error;
  }
}

Status PlacedAllocator::prefault(HostSegment& segment) const {
  const std::uint64_t pieces = (segment.bytes.size() + kPieceBytes - 1) / kPieceBytes;
  const std::uint32_t cores = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  const std::uint64_t wanted = system_.threads == 0 ? cores : system_.threads;
  std::atomic<std::uint64_t> next = 0;
  std::atomic<std::uint64_t> huge = 0;
  std::atomic<int> error = 0;
  const auto run = [&] {
    const int code = touch_pieces(segment.bytes, next, huge);
    if (code != 0) error = code;
  };
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i < std::min(wanted, pieces); ++i) {
    try {
      threads.emplace_back(run);
    } catch (const std::system_error&) {
      break;  // those that there are do it
    }
  }
  run();
  for (std::thread& thread : threads) thread.join();
  if (error == EINVAL) {  // a kernel before 5.14
    segment.placement.prefaulted = "not by this kernel";
    return {};
  }
  if (error != 0) {
    return Status(StatusCode::resource_exhausted,
                  "the memory cannot be touched: " + std::generic_category().message(error));
  }
  segment.placement.prefaulted = "yes";
  segment.placement.huge_bytes = huge;
  return {};
}

}  // namespace

namespace host_placement_internal {

std::vector<std::uint32_t> parse_nodes(std::string_view list) {
  std::vector<std::uint32_t> nodes;
  while (!list.empty()) {
    std::uint32_t first = 0;
    auto read = std::from_chars(list.data(), list.data() + list.size(), first);
    if (read.ec != std::errc() || first >= kNodesMax) break;
    list.remove_prefix(static_cast<std::size_t>(read.ptr - list.data()));
    std::uint32_t last = first;
    if (list.starts_with("-")) {
      list.remove_prefix(1);
      read = std::from_chars(list.data(), list.data() + list.size(), last);
      if (read.ec != std::errc() || last >= kNodesMax) break;
      list.remove_prefix(static_cast<std::size_t>(read.ptr - list.data()));
    }
    for (std::uint32_t node = first; node <= last; ++node) nodes.push_back(node);
    if (!list.starts_with(",")) break;
    list.remove_prefix(1);
  }
  return nodes;
}

std::vector<std::uint32_t> usable_nodes(const std::string& nodes, const std::string& status) {
  std::string with_memory = text_of(nodes + "/has_memory");
  if (with_memory.empty()) with_memory = text_of(nodes + "/online");
  std::vector<std::uint32_t> found = parse_nodes(with_memory);
  constexpr std::string_view kAllowed = "Mems_allowed_list:";
  const std::string text = text_of(status);
  const std::size_t line = text.find(kAllowed);
  if (line == std::string::npos) return found;
  std::string_view list = std::string_view(text).substr(line + kAllowed.size());
  while (list.starts_with("\t") || list.starts_with(" ")) list.remove_prefix(1);
  const std::vector<std::uint32_t> allowed = parse_nodes(list);
  std::erase_if(found, [&](std::uint32_t node) {
    return std::find(allowed.begin(), allowed.end(), node) == allowed.end();
  });
  return found;
}

Result<std::vector<std::uint32_t>> chosen_nodes(std::string_view choice,
                                                std::span<const std::uint32_t> nodes) {
  std::vector<std::uint32_t> chosen;
  if (choice == "off") return chosen;
  if (choice == "auto") {
    if (nodes.size() > 1) chosen.assign(nodes.begin(), nodes.end());
    return chosen;
  }
  std::uint32_t node = 0;
  const auto read = std::from_chars(choice.data(), choice.data() + choice.size(), node);
  const bool number = read.ec == std::errc() && read.ptr == choice.data() + choice.size();
  if (!number || std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--host-numa: '{}' is no NUMA node whose memory this process may "
                    "use; there are {}",
                    choice, nodes.empty() ? "none" : fmt::format("{}", fmt::join(nodes, ", "))));
  }
  chosen = {node};
  return chosen;
}

std::string_view chosen_word(std::string_view text) {
  const std::size_t begin = text.find('[');
  const std::size_t end = text.find(']');
  if (begin == text.npos || end == text.npos || end < begin) return {};
  return text.substr(begin + 1, end - begin - 1);
}

}  // namespace host_placement_internal

PlacementSystem this_system() {
  return {
      .numa_nodes = [] { return usable_nodes("/sys/devices/system/node", "/proc/self/status"); },
      .bind = bind_memory,
      .touch = touch_memory,
      .no_huge_pages = reason_against_huge_pages};
}

Result<std::shared_ptr<HostAllocator>> placed_allocator(std::shared_ptr<HostAllocator> inner,
                                                        const HostOptions& options,
                                                        PlacementSystem system) {
  HITIDE_ASSIGN_OR_RETURN(std::vector<std::uint32_t> nodes,
                          chosen_nodes(options.numa, system.numa_nodes()));
  return std::shared_ptr<HostAllocator>(std::make_shared<PlacedAllocator>(
      std::move(inner), options, std::move(nodes), std::move(system)));
}

}  // namespace hitide
