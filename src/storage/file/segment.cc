#include "storage/file/segment.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/hash.h"

namespace hitide {
namespace {

constexpr std::uint64_t kAheadBytes = 4u << 20;
constexpr std::uint64_t kPieceBytes = 1u << 20;

Status loss(const std::string& path, std::uint64_t offset, std::string_view what) {
  return Status(StatusCode::data_loss, fmt::format("{} at {}: {}", path, offset, what));
}

// Answers the bytes read, fewer at the end of the file, or -errno.
std::int64_t read_block(FileSystem& files, int fd, std::uint64_t offset, Block& block) {
  iovec buffer{.iov_base = block.data(), .iov_len = block.size()};
  return transfer_fully(files, Transfer::read, fd, {&buffer, 1}, offset);
}

// Answers 0 or the errno.
int write_fully(FileSystem& files, int fd, std::span<iovec> buffers, std::uint64_t offset,
                std::uint64_t bytes) {
  const std::int64_t done = transfer_fully(files, Transfer::write, fd, buffers, offset);
  if (done < 0) return static_cast<int>(-done);
  return static_cast<std::uint64_t>(done) == bytes ? 0 : ENOSPC;
}

template <typename Buffer>
std::uint64_t checksum_of(std::span<const Buffer> buffers) {
  if (buffers.size() == 1) return checksum64(buffers.front());
  Checksum64 checksum;
  for (const Buffer& buffer : buffers) checksum.update(buffer);
  return checksum.finish();
}

}  // namespace

SegmentFile::SegmentFile(FileSystem& files, std::string path, const SegmentHeader& header,
                         UniqueFd fd)
    : files_(files), path_(std::move(path)), header_(header), fd_(std::move(fd)) {}

std::shared_ptr<SegmentFile> SegmentFile::create(FileSystem& files, const FileAt& at,
                                                 const SegmentHeader& header, int& error) {
  const int fd = files.open(at, O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0) {
    error = -fd;
    return nullptr;
  }
  std::shared_ptr<SegmentFile> file(new SegmentFile(files, at.path, header, UniqueFd(fd)));
  error = file->write_block(encode_segment(header), 0);
  if (error == 0) return file;
  files.unlink(at);
  return nullptr;
}

Result<std::shared_ptr<SegmentFile>> SegmentFile::open(FileSystem& files, const FileAt& at,
                                                       std::uint64_t number, Access access) {
  const int flags = access == Access::read ? O_RDONLY : O_RDWR;
  HITIDE_ASSIGN_OR_RETURN(UniqueFd fd, open_plain(files, at, flags));
  Block block;
  const std::int64_t got = read_block(files, fd.get(), 0, block);
  if (got < 0) return errno_status(static_cast<int>(-got), "read", at.path);
  const auto header = got == kBlockBytes ? decode_segment(block) : std::nullopt;
  if (!header) return loss(at.path, 0, "no valid segment header");
  if (header->number != number) return loss(at.path, 0, "the header of another segment");
  return std::shared_ptr<SegmentFile>(new SegmentFile(files, at.path, *header, std::move(fd)));
}

Result<SegmentScan> SegmentFile::scan(const Visitor& visit, std::uint64_t from) const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return errno_status(errno, "stat", path_);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  SegmentScan scan;
  scan.end = std::max(round_up_to_block(size), kBlockBytes);
  std::uint64_t offset = from;
  while (offset + kBlockBytes <= size) {
    Block block;
    const std::int64_t got = read_block(files_, fd_.get(), offset, block);
    if (got < 0) return errno_status(static_cast<int>(-got), "read", path_);
    if (got < static_cast<std::int64_t>(kBlockBytes)) break;  // has been cut off meanwhile
    const auto record = decode_record(block);
    const bool ours = record && record->segment_id == header_.id && record->offset == offset;
    if (ours) {
      if (scan.sequence_min == 0) scan.sequence_min = record->sequence;
      scan.sequence_max = std::max(scan.sequence_max, record->sequence);
    }
    const bool cut = ours && offset + kBlockBytes + record->payload_bytes > size;
    if (cut && record->kind == RecordKind::object) ++scan.cut_objects;
    if (!ours || cut) {
      if (scan.first_gap == 0) scan.first_gap = offset;
      scan.damaged_bytes += kBlockBytes;
      offset += kBlockBytes;
      continue;
    }
    visit(*record);
    offset += record_bytes(record->payload_bytes);
  }
  if (scan.first_gap == 0) scan.first_gap = offset;
  if (offset < size) scan.damaged_bytes += size - offset;
  return scan;
}

void SegmentFile::allocate_ahead(std::uint64_t begin, std::uint64_t end, std::uint64_t limit) {
  std::uint64_t had = allocated_.load(std::memory_order_relaxed);
  if (end <= had) return;
  const std::uint64_t to = std::max(end, std::min(end + kAheadBytes, limit));
  if (!allocated_.compare_exchange_strong(had, to)) return;  // another writer is at it
  const std::uint64_t from = had == 0 ? begin : had;
  if (files_.allocate(fd_.get(), from, to - from) < 0) {
    allocated_ = std::numeric_limits<std::uint64_t>::max();  // never asked again
  }
}

int SegmentFile::write_block(const Block& block, std::uint64_t offset) {
  // Only read from: the system call's buffers are not const.
  iovec buffer{.iov_base = const_cast<std::byte*>(block.data()), .iov_len = block.size()};
  return write_fully(files_, fd_.get(), {&buffer, 1}, offset, block.size());
}

int SegmentFile::write(const NewRecord& record,
                       std::span<const std::span<const std::byte>> buffers) {
  std::vector<iovec> pieces;
  pieces.reserve(buffers.size());
  std::uint64_t payload_bytes = 0;
  for (const auto buffer : buffers) {
    pieces.push_back({.iov_base = const_cast<std::byte*>(buffer.data()), .iov_len = buffer.size()});
    payload_bytes += buffer.size();
  }
  const int error =
      write_fully(files_, fd_.get(), pieces, record.offset + kBlockBytes, payload_bytes);
  if (error != 0) return error;
  RecordHeader header = {.kind = RecordKind::object,
                         .payload_bytes = payload_bytes,
                         .payload_checksum = checksum_of(buffers),
                         .sequence = record.sequence,
                         .segment_id = header_.id,
                         .offset = record.offset,
                         .written_s = record.written_s,
                         .key = record.key};
  const int failed = write_block(encode_record(header), record.offset);
  if (failed != 0) {
    // The part of the block that was written may be a whole header. What the caller is told to have
    // failed must not appear at the next start; where this fails too, it may.
    header.kind = RecordKind::erased;
    static_cast<void>(write_block(encode_record(header), record.offset));
  }
  return failed;
}

std::optional<RecordHeader> SegmentFile::match(const Block& block, const Place& place) const {
  auto header = decode_record(block);
  if (header && header->segment_id == header_.id && header->offset == place.offset &&
      header->payload_bytes == place.payload_bytes) {
    return header;
  }
  return std::nullopt;
}

Status SegmentFile::read(const Place& place, std::string_view key,
                         std::span<const std::span<std::byte>> buffers, Verify verify) const {
  Block block;
  std::vector<iovec> pieces;
  pieces.reserve(buffers.size() + 1);
  pieces.push_back({.iov_base = block.data(), .iov_len = block.size()});
  for (const auto buffer : buffers) {
    pieces.push_back({.iov_base = buffer.data(), .iov_len = buffer.size()});
  }
  const std::int64_t got = transfer_fully(files_, Transfer::read, fd_.get(), pieces, place.offset);
  if (got < 0) return errno_status(static_cast<int>(-got), "read", path_);
  if (got != static_cast<std::int64_t>(kBlockBytes + place.payload_bytes)) {
    return loss(path_, place.offset, "the file ends within the record");
  }
  const auto header = match(block, place);
  if (!header || header->key != key) {
    return loss(path_, place.offset, "not the record that was written there");
  }
  if (header->kind == RecordKind::erased) {
    return Status(StatusCode::not_found, "the record has been erased");
  }
  if (verify == Verify::header_and_payload && header->payload_checksum != checksum_of(buffers)) {
    return loss(path_, place.offset, "the payload's checksum does not match");
  }
  return {};
}

Status SegmentFile::check(const RecordHeader& header) const {
  Block block;
  const std::int64_t got = read_block(files_, fd_.get(), header.offset, block);
  if (got < 0) return errno_status(static_cast<int>(-got), "read", path_);
  const Place place{.offset = header.offset, .payload_bytes = header.payload_bytes};
  const bool whole = got == static_cast<std::int64_t>(kBlockBytes);
  const auto found = whole ? match(block, place) : std::nullopt;
  if (!found || found->key != header.key)
    return loss(path_, header.offset, "not the record that was written there");
  if (found->kind == RecordKind::erased) {
    return Status(StatusCode::not_found, "the record has been erased");
  }
  std::vector<std::byte> piece(std::min(header.payload_bytes, kPieceBytes));
  Checksum64 checksum;
  for (std::uint64_t done = 0; done < header.payload_bytes;) {
    const auto step = std::min<std::uint64_t>(piece.size(), header.payload_bytes - done);
    iovec buffer{.iov_base = piece.data(), .iov_len = step};
    const std::int64_t moved = transfer_fully(files_, Transfer::read, fd_.get(), {&buffer, 1},
                                              header.offset + kBlockBytes + done);
    if (moved < 0) return errno_status(static_cast<int>(-moved), "read", path_);
    if (moved != static_cast<std::int64_t>(step)) {
      return loss(path_, header.offset, "the file ends within the record");
    }
    checksum.update(std::span(piece).first(step));
    done += step;
  }
  if (checksum.finish() == found->payload_checksum) return {};
  return loss(path_, header.offset, "the payload's checksum does not match");
}

Result<SegmentFile::Record> SegmentFile::read_record(const Place& place, const KeyHash& key) const {
  Block block;
  Record record;
  record.payload.resize(place.payload_bytes);
  std::array<iovec, 2> pieces = {
      iovec{.iov_base = block.data(), .iov_len = block.size()},
      iovec{.iov_base = record.payload.data(), .iov_len = record.payload.size()}};
  const std::int64_t got = transfer_fully(files_, Transfer::read, fd_.get(), pieces, place.offset);
  if (got < 0) return errno_status(static_cast<int>(-got), "read", path_);
  if (got != static_cast<std::int64_t>(kBlockBytes + place.payload_bytes)) {
    return loss(path_, place.offset, "the file ends within the record");
  }
  const auto header = match(block, place);
  if (!header || hash_key(header->key) != key) {
    return loss(path_, place.offset, "not the record that was written there");
  }
  if (header->kind == RecordKind::erased) {
    return Status(StatusCode::not_found, "the record has been erased");
  }
  if (header->payload_checksum != checksum64(record.payload)) {
    return loss(path_, place.offset, "the payload's checksum does not match");
  }
  record.key = header->key;
  record.written_s = header->written_s;
  return record;
}

Status SegmentFile::erase(const Place& place, const KeyHash& key) {
  Block block;
  const std::int64_t got = read_block(files_, fd_.get(), place.offset, block);
  if (got < 0) return errno_status(static_cast<int>(-got), "read", path_);
  if (got != static_cast<std::int64_t>(kBlockBytes)) return {};
  auto header = match(block, place);
  if (!header || hash_key(header->key) != key) return {};
  header->kind = RecordKind::erased;
  const int error = write_block(encode_record(*header), place.offset);
  return error == 0 ? ok_status() : errno_status(error, "write", path_);
}

std::string SegmentFile::key_at(std::uint64_t offset) const {
  Block block;
  const std::int64_t got = read_block(files_, fd_.get(), offset, block);
  if (got != static_cast<std::int64_t>(kBlockBytes)) return {};
  const auto header = decode_record(block);
  const bool object = header && header->kind == RecordKind::object &&
                      header->segment_id == header_.id && header->offset == offset;
  return object ? std::string(header->key) : std::string();
}

Status SegmentFile::sync() const {
  const int result = files_.fdatasync(fd_.get());
  return result < 0 ? errno_status(-result, "sync", path_) : ok_status();
}

void SegmentFile::trim(std::uint64_t end) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) <= end) return;
  // What stays is passed over when the store is opened again.
  if (::ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) return;
}

bool SegmentFile::unlinked() const {
  struct stat info {};
  return ::fstat(fd_.get(), &info) == 0 && info.st_nlink == 0;
}

}  // namespace hitide
