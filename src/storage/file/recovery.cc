#include "storage/file/recovery.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "storage/file/inspect.h"

namespace hitide {
namespace {

constexpr std::uint32_t kPayloadBytesMost = 0x7fffffff;  // of what a store writes; more is foreign

std::optional<Checkpoint> read_checkpoint(FileSystem& files, const StoreDirectory& directory,
                                          const SegmentPath& found, const SegmentFile& file) {
  const auto fd = open_plain(files, directory.checkpoint(found.number), O_RDONLY);
  struct stat info {};
  if (!fd.ok() || ::fstat(fd->get(), &info) != 0) return std::nullopt;
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > kCheckpointBytesMax) return std::nullopt;
  std::vector<std::byte> bytes(size);
  iovec buffer{.iov_base = bytes.data(), .iov_len = bytes.size()};
  const std::int64_t got = transfer_fully(files, Transfer::read, fd->get(), {&buffer, 1}, 0);
  if (got != static_cast<std::int64_t>(size)) return std::nullopt;
  auto checkpoint = decode_checkpoint(bytes);
  const bool ours = checkpoint && checkpoint->number == found.number &&
                    checkpoint->id == file.id() && checkpoint->end >= kBlockBytes &&
                    checkpoint->end % kBlockBytes == 0 &&
                    checkpoint->end <= round_up_to_block(found.bytes);
  return ours ? std::move(checkpoint) : std::nullopt;
}

}  // namespace

Result<SegmentScan> collect_records(const SegmentFile& file, std::uint64_t from,
                                    Checkpoint& known) {
  std::map<std::string, std::uint16_t, std::less<>> names;
  for (const std::string& name : known.names) {
    names.emplace(name, static_cast<std::uint16_t>(names.size()));
  }
  const auto note = [&](const RecordHeader& header) {
    if (header.kind != RecordKind::object || header.payload_bytes > kPayloadBytesMost) return;
    const auto [name, fresh] = names.try_emplace(std::string(namespace_of(header.key)),
                                                 static_cast<std::uint16_t>(names.size()));
    if (fresh) known.names.push_back(name->first);
    IndexEntry entry;
    entry.key = hash_key(header.key);
    entry.block = static_cast<std::uint32_t>(header.offset / kBlockBytes);
    entry.payload_bytes = static_cast<std::uint32_t>(header.payload_bytes) & kPayloadBytesMost;
    entry.written_s = header.written_s;
    entry.space = name->second;
    known.entries.push_back(entry);
  };
  return file.scan(note, from);
}

// Where a checkpoint tells of the segment, only the records behind it are looked at.
Result<RecoveredSegment> recover_segment(FileSystem& files, const StoreDirectory& directory,
                                         const SegmentPath& found, SegmentFile::Access access) {
  RecoveredSegment segment;
  HITIDE_ASSIGN_OR_RETURN(segment.file, SegmentFile::open(files, directory.segment(found.number),
                                                          found.number, access));
  std::uint64_t from = kBlockBytes;
  if (auto known = read_checkpoint(files, directory, found, *segment.file)) {
    segment.known = *std::move(known);
    segment.checkpoint_end = from = segment.known.end;
  }
  HITIDE_ASSIGN_OR_RETURN(segment.scan, collect_records(*segment.file, from, segment.known));
  SegmentScan& scan = segment.scan;
  scan.damaged_bytes += segment.known.damaged_bytes;
  scan.sequence_max = std::max(scan.sequence_max, segment.known.sequence_max);
  if (segment.known.sequence_min != 0) scan.sequence_min = segment.known.sequence_min;
  return segment;
}

}  // namespace hitide
