// The bytes of a segment file: docs/formats/file_store.md. Pure functions, safe from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace hitide {

inline constexpr std::uint64_t kBlockBytes = 4096;  // records and payloads start at multiples
inline constexpr std::uint16_t kSegmentVersion = 1;

using Block = std::array<std::byte, kBlockBytes>;

struct SegmentHeader {
  std::uint64_t number = 0;  // the one in the file's name
  std::uint64_t id = 0;      // random; every record repeats it
};

enum class RecordKind : std::uint16_t { object = 1, erased = 2 };

struct RecordHeader {
  RecordKind kind = RecordKind::object;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;
  std::uint64_t sequence = 0;
  std::uint64_t segment_id = 0;
  std::uint64_t offset = 0;     // of the record in its file
  std::uint32_t written_s = 0;  // Unix time; 0: not known
  std::string_view key;         // 1 to 255 bytes; decoded: a view of the block
};

constexpr std::uint64_t round_up_to_block(std::uint64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}
// Header block and payload, with the padding.
constexpr std::uint64_t record_bytes(std::uint64_t payload_bytes) {
  return kBlockBytes + round_up_to_block(payload_bytes);
}

Block encode_segment(const SegmentHeader& header);
Block encode_record(const RecordHeader& header);
// Nothing where magic, version, lengths or checksum do not hold.
std::optional<SegmentHeader> decode_segment(const Block& block);
std::optional<RecordHeader> decode_record(const Block& block);

}  // namespace hitide
