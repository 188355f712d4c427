// Checkpoint: what a segment holds, in one small file beside it, so that a start need not read the
// header of each record. Format: docs/formats/file_store.md. Pure functions, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/file/page_index.h"

namespace hitide {

inline constexpr std::uint64_t kCheckpointBytesMax = 256u << 20;

struct Checkpoint {
  std::uint64_t number = 0;  // of the segment
  std::uint64_t id = 0;      // as in the segment's header
  std::uint64_t end = 0;     // it tells of all records in front of this
  std::uint64_t sequence_min = 0;
  std::uint64_t sequence_max = 0;
  std::uint64_t damaged_bytes = 0;  // in front of `end`, in no readable record
  std::vector<IndexEntry> entries;  // objects that are alive; `space` is an index of `names`
  std::vector<std::string> names;   // namespaces, at most 255 bytes each
};

std::vector<std::byte> encode_checkpoint(const Checkpoint& checkpoint);
// Nothing unless every byte is as encode_checkpoint() writes it and every record lies in front of
// `end`.
std::optional<Checkpoint> decode_checkpoint(std::span<const std::byte> bytes);

}  // namespace hitide
