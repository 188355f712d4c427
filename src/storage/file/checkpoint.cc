#include "storage/file/checkpoint.h"

#include <array>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "storage/file/record.h"
#include "storage/stored_bytes.h"

namespace hitide {
namespace {

constexpr std::array<char, 8> kMagic = {'H', 'T', 'S', 'E', 'G', 'I', 'D', 'X'};
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 72;
constexpr std::size_t kEntryBytes = 32;
constexpr std::size_t kNameBytes = 256;  // its length, then the name, padded with zeros
constexpr std::size_t kChecksumBytes = 8;

void put_entry(std::span<std::byte> at, const IndexEntry& entry) {
  put(at, 0, entry.key.first);
  put(at, 8, entry.key.second);
  put(at, 16, entry.block);
  put(at, 20, static_cast<std::uint32_t>(entry.payload_bytes));
  put(at, 24, entry.written_s);
  put(at, 28, entry.space);
}

std::optional<IndexEntry> take_entry(std::span<const std::byte> at, const Checkpoint& of) {
  IndexEntry entry;
  entry.key = {.first = take<std::uint64_t>(at, 0), .second = take<std::uint64_t>(at, 8)};
  entry.block = take<std::uint32_t>(at, 16);
  const auto payload_bytes = take<std::uint32_t>(at, 20);
  entry.payload_bytes = payload_bytes & 0x7fffffffu;
  entry.written_s = take<std::uint32_t>(at, 24);
  entry.space = take<std::uint16_t>(at, 28);
  const bool inside = entry.block > 0 && entry.offset() + record_bytes(payload_bytes) <= of.end;
  if (payload_bytes == 0 || payload_bytes != entry.payload_bytes || !inside) return std::nullopt;
  if (entry.space >= of.names.size()) return std::nullopt;
  return entry;
}

}  // namespace

std::vector<std::byte> encode_checkpoint(const Checkpoint& checkpoint) {
  const std::size_t names_at = kHeaderBytes;
  const std::size_t entries_at = names_at + checkpoint.names.size() * kNameBytes;
  const std::size_t checksum_at = entries_at + checkpoint.entries.size() * kEntryBytes;
  std::vector<std::byte> bytes(checksum_at + kChecksumBytes);
  const std::span all(bytes);
  put(all, 0, kMagic);
  put(all, 8, kVersion);
  put(all, 16, checkpoint.number);
  put(all, 24, checkpoint.id);
  put(all, 32, checkpoint.end);
  put(all, 40, checkpoint.sequence_min);
  put(all, 48, checkpoint.sequence_max);
  put(all, 56, checkpoint.damaged_bytes);
  put(all, 64, static_cast<std::uint32_t>(checkpoint.names.size()));
  put(all, 68, static_cast<std::uint32_t>(checkpoint.entries.size()));
  for (std::size_t i = 0; i < checkpoint.names.size(); ++i) {
    const std::string& name = checkpoint.names[i];
    const auto at = all.subspan(names_at + i * kNameBytes, kNameBytes);
    put(at, 0, static_cast<std::uint8_t>(name.size()));
    std::memcpy(at.data() + 1, name.data(), name.size());
  }
  for (std::size_t i = 0; i < checkpoint.entries.size(); ++i) {
    put_entry(all.subspan(entries_at + i * kEntryBytes, kEntryBytes), checkpoint.entries[i]);
  }
  put(all, checksum_at, checksum64(all.first(checksum_at)));
  return bytes;
}

std::optional<Checkpoint> decode_checkpoint(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) return std::nullopt;
  if (take<std::array<char, 8>>(bytes, 0) != kMagic) return std::nullopt;
  if (take<std::uint16_t>(bytes, 8) != kVersion) return std::nullopt;
  const std::uint64_t names = take<std::uint32_t>(bytes, 64);
  const std::uint64_t entries = take<std::uint32_t>(bytes, 68);
  const std::size_t checksum_at = bytes.size() - kChecksumBytes;
  if (kHeaderBytes + names * kNameBytes + entries * kEntryBytes != checksum_at) return std::nullopt;
  if (take<std::uint64_t>(bytes, checksum_at) != checksum64(bytes.first(checksum_at))) {
    return std::nullopt;
  }
  Checkpoint checkpoint{.number = take<std::uint64_t>(bytes, 16),
                        .id = take<std::uint64_t>(bytes, 24),
                        .end = take<std::uint64_t>(bytes, 32),
                        .sequence_min = take<std::uint64_t>(bytes, 40),
                        .sequence_max = take<std::uint64_t>(bytes, 48),
                        .damaged_bytes = take<std::uint64_t>(bytes, 56),
                        .entries = {},
                        .names = {}};
  std::size_t at = kHeaderBytes;
  for (std::uint64_t i = 0; i < names; ++i, at += kNameBytes) {
    const auto* text = reinterpret_cast<const char*>(bytes.data() + at);
    checkpoint.names.emplace_back(text + 1, static_cast<unsigned char>(text[0]));
  }
  checkpoint.entries.reserve(entries);
  for (std::uint64_t i = 0; i < entries; ++i, at += kEntryBytes) {
    const auto entry = take_entry(bytes.subspan(at, kEntryBytes), checkpoint);
    if (!entry) return std::nullopt;
    checkpoint.entries.push_back(*entry);
  }
  return checkpoint;
}

}  // namespace hitide
