#include "storage/file/inspect.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <hitide/file_store.h>

#include "base/clock.h"
#include "base/hash.h"

namespace hitide {
namespace {

constexpr std::string_view kRankPrefix = "rank";

struct KeyHasher {
  std::size_t operator()(const KeyHash& key) const noexcept { return key.first; }
};

// Where a key's newest record lies.
struct Found {
  std::size_t segment = 0;
  std::uint32_t name = 0;
  std::uint64_t payload_bytes = 0;
};

class Inspection {
 public:
  explicit Inspection(FileStoreContents& contents) : contents_(contents) {}

  void note(std::size_t segment, const RecordHeader& header) {
    const std::uint64_t bytes = record_bytes(header.payload_bytes);
    FileStoreSegment& mine = contents_.segments[segment];
    if (header.kind == RecordKind::erased) {
      mine.dead_bytes += bytes;
      return;
    }
    const std::uint32_t name = intern(namespace_of(header.key));
    const Found found{.segment = segment, .name = name, .payload_bytes = header.payload_bytes};
    const auto [place, fresh] = index_.try_emplace(hash_key(header.key), found);
    if (!fresh) {
      retire(place->second);
      place->second = found;
    }
    mine.live_bytes += bytes;
    ++mine.objects;
    FileStoreNamespace& space = contents_.namespaces[name];
    ++space.objects;
    space.bytes += header.payload_bytes;
    if (pages_.insert(checksum64(std::as_bytes(std::span(page_of(header.key))))).second) {
      ++space.pages;
    }
    if (header.written_s == 0) return;
    if (space.oldest_s == 0 || header.written_s < space.oldest_s) space.oldest_s = header.written_s;
    space.newest_s = std::max<std::uint64_t>(space.newest_s, header.written_s);
  }

  void finish() {
    for (const FileStoreSegment& segment : contents_.segments) {
      contents_.objects += segment.objects;
      contents_.file_bytes += segment.file_bytes;
      contents_.live_bytes += segment.live_bytes;
      contents_.dead_bytes += segment.dead_bytes;
      contents_.damaged_bytes += segment.damaged_bytes;
    }
    for (const FileStoreNamespace& space : contents_.namespaces) contents_.pages += space.pages;
    std::stable_sort(contents_.namespaces.begin(), contents_.namespaces.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  }

 private:
  std::uint32_t intern(std::string_view name) {
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second;
    const auto number = static_cast<std::uint32_t>(contents_.namespaces.size());
    contents_.namespaces.push_back({.name = std::string(name)});
    names_.emplace(name, number);
    return number;
  }
  void retire(const Found& old) {
    const std::uint64_t bytes = record_bytes(old.payload_bytes);
    FileStoreSegment& segment = contents_.segments[old.segment];
    segment.live_bytes -= bytes;
    segment.dead_bytes += bytes;
    --segment.objects;
    --contents_.namespaces[old.name].objects;
    contents_.namespaces[old.name].bytes -= old.payload_bytes;
  }

  FileStoreContents& contents_;
  std::unordered_map<KeyHash, Found, KeyHasher> index_;
  std::unordered_set<std::uint64_t> pages_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
};

// Whether `name` is rank0, rank1, ...
bool rank_of(std::string_view name, std::uint32_t& rank) {
  if (!name.starts_with(kRankPrefix)) return false;
  name.remove_prefix(kRankPrefix.size());
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), rank);
  return parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() &&
         std::to_string(rank) == name;
}

Status out_of_time(const std::string& path) {
  return Status(StatusCode::deadline_exceeded,
                fmt::format("file store in {}: not all of it was read in time", path));
}

}  // namespace

std::vector<std::string> file_store_directories(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path + "/FORMAT", error)) return {path};
  std::vector<std::pair<std::uint32_t, std::string>> ranks;
  std::filesystem::directory_iterator entries(path, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::uint32_t rank = 0;
    const std::string folder = entries->path().string();
    if (!rank_of(entries->path().filename().string(), rank)) continue;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(folder + "/FORMAT", ignored))
      ranks.push_back({rank, folder});
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> found;
  found.reserve(ranks.size());
  for (auto& [rank, folder] : ranks) found.push_back(std::move(folder));
  return found;
}

Result<FileStoreContents> inspect_file_store(const std::string& path, TimePoint deadline) {
  HITIDE_ASSIGN_OR_RETURN(const StoreDirectory directory, StoreDirectory::open_to_read(path));
  FileStoreContents contents{
      .path = path, .format = directory.format(), .owner = directory.owner()};
  Inspection inspection(contents);
  for (const SegmentPath& found : directory.list()) {
    if (deadline != kNoDeadline && SystemClock::instance().now() >= deadline) {
      return out_of_time(path);
    }
    const std::size_t index = contents.segments.size();
    const auto file = SegmentFile::open(FileSystem::real(), directory.segment(found.number),
                                        found.number, SegmentFile::Access::read);
    // Evicted a moment ago by the store's owner.
    if (file.status().code() == StatusCode::not_found) continue;
    contents.segments.push_back(
        {.number = found.number, .path = found.path, .file_bytes = found.bytes});
    Status status = file.status();
    if (status.ok()) {
      const auto scan =
          (*file)->scan([&](const RecordHeader& header) { inspection.note(index, header); });
      status = scan.status();
      if (scan.ok()) contents.segments[index].damaged_bytes = scan->damaged_bytes;
    }
    contents.segments[index].error = status.message();
  }
  inspection.finish();
  return contents;
}

}  // namespace hitide
