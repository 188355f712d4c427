#include "storage/file/record.h"

#include <cstring>

#include "base/hash.h"
#include "storage/stored_bytes.h"

namespace hitide {
namespace {

constexpr std::array<char, 8> kSegmentMagic = {'H', 'T', 'S', 'E', 'G', 'M', 'N', 'T'};
constexpr std::array<char, 4> kRecordMagic = {'H', 'T', 'R', 'C'};
constexpr std::size_t kSegmentChecksumAt = 32;
constexpr std::size_t kRecordChecksumAt = 56;
constexpr std::size_t kKeyAt = 64;
constexpr std::size_t kKeyBytesMax = 255;
constexpr std::uint64_t kPayloadBytesMax = 1ull << 40;  // so that sums of lengths cannot overflow

// Over the fields in front of the checksum and the key behind it.
std::uint64_t record_checksum(const Block& block, std::size_t key_bytes) {
  std::array<std::byte, kRecordChecksumAt + kKeyBytesMax> covered;
  std::memcpy(covered.data(), block.data(), kRecordChecksumAt);
  std::memcpy(covered.data() + kRecordChecksumAt, block.data() + kKeyAt, key_bytes);
  return checksum64(std::span(covered).first(kRecordChecksumAt + key_bytes));
}

}  // namespace

Block encode_segment(const SegmentHeader& header) {
  Block block{};
  put(block, 0, kSegmentMagic);
  put(block, 8, kSegmentVersion);
  put(block, 16, header.number);
  put(block, 24, header.id);
  put(block, kSegmentChecksumAt, checksum64(std::span(block).first(kSegmentChecksumAt)));
  return block;
}

std::optional<SegmentHeader> decode_segment(const Block& block) {
  if (take<std::array<char, 8>>(block, 0) != kSegmentMagic) return std::nullopt;
  if (take<std::uint16_t>(block, 8) != kSegmentVersion) return std::nullopt;
  if (take<std::uint64_t>(block, kSegmentChecksumAt) !=
      checksum64(std::span(block).first(kSegmentChecksumAt))) {
    return std::nullopt;
  }
  return SegmentHeader{.number = take<std::uint64_t>(block, 16),
                       .id = take<std::uint64_t>(block, 24)};
}

Block encode_record(const RecordHeader& header) {
  Block block{};
  put(block, 0, kRecordMagic);
  put(block, 4, kSegmentVersion);
  put(block, 6, header.kind);
  put(block, 8, static_cast<std::uint32_t>(header.key.size()));
  put(block, 12, header.written_s);
  put(block, 16, header.payload_bytes);
  put(block, 24, header.payload_checksum);
  put(block, 32, header.sequence);
  put(block, 40, header.segment_id);
  put(block, 48, header.offset);
  std::memcpy(block.data() + kKeyAt, header.key.data(), header.key.size());
  put(block, kRecordChecksumAt, record_checksum(block, header.key.size()));
  return block;
}

std::optional<RecordHeader> decode_record(const Block& block) {
  if (take<std::array<char, 4>>(block, 0) != kRecordMagic) return std::nullopt;
  if (take<std::uint16_t>(block, 4) != kSegmentVersion) return std::nullopt;
  const auto key_bytes = take<std::uint32_t>(block, 8);
  if (key_bytes == 0 || key_bytes > kKeyBytesMax) return std::nullopt;
  if (take<std::uint64_t>(block, kRecordChecksumAt) != record_checksum(block, key_bytes)) {
    return std::nullopt;
  }
  RecordHeader header;
  header.kind = take<RecordKind>(block, 6);
  if (header.kind != RecordKind::object && header.kind != RecordKind::erased) return std::nullopt;
  header.payload_bytes = take<std::uint64_t>(block, 16);
  if (header.payload_bytes == 0 || header.payload_bytes > kPayloadBytesMax) return std::nullopt;
  header.payload_checksum = take<std::uint64_t>(block, 24);
  header.sequence = take<std::uint64_t>(block, 32);
  header.segment_id = take<std::uint64_t>(block, 40);
  header.offset = take<std::uint64_t>(block, 48);
  header.written_s = take<std::uint32_t>(block, 12);
  header.key = {reinterpret_cast<const char*>(block.data()) + kKeyAt, key_bytes};
  return header;
}

}  // namespace hitide
