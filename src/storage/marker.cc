#include "storage/marker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace hitide {
namespace {

static_assert(std::endian::native == std::endian::little, "stored integers are little-endian");

constexpr std::array<char, 4> kMagic = {'H', 'T', 'M', 'K'};

// Offsets of docs/formats/marker.md.
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kBytesAt = 6;
constexpr std::size_t kIdentityAt = 8;
constexpr std::size_t kPageKeyAt = 40;
constexpr std::size_t kPoolAt = 72;
constexpr std::size_t kPoolBytes = 16;
constexpr std::size_t kPartAt = 88;  // tp, pp, cp as u16, then two zero bytes
constexpr std::size_t kPartBytes = 8;
constexpr std::size_t kChecksumAt = 96;
static_assert(kChecksumAt + 8 == kMarkerBytes);

using Record = std::array<std::byte, kMarkerBytes>;

template <typename T>
void put(Record& record, std::size_t at, const T& value) {
  std::memcpy(record.data() + at, &value, sizeof value);
}

template <typename T>
T take(const Record& record, std::size_t at) {
  T value;
  std::memcpy(&value, record.data() + at, sizeof value);
  return value;
}

std::uint64_t checksum(const Record& record) {
  return checksum64(std::span(record).first(kChecksumAt));
}

Record expected_record(const EnvelopeExpectation& page) {
  Record record{};
  put(record, 0, kMagic);
  put(record, kVersionAt, kMarkerVersion);
  put(record, kBytesAt, static_cast<std::uint16_t>(kMarkerBytes));
  put(record, kIdentityAt, page.identity.bytes);
  put(record, kPageKeyAt, page.key.bytes);
  std::memcpy(record.data() + kPoolAt, page.pool.data(),
              std::min(page.pool.size(), kPoolBytes - 1));
  put(record, kPartAt, static_cast<std::uint16_t>(page.part.tp_rank));
  put(record, kPartAt + 2, static_cast<std::uint16_t>(page.part.pp_rank));
  put(record, kPartAt + 4, static_cast<std::uint16_t>(page.part.cp_rank));
  put(record, kChecksumAt, checksum(record));
  return record;
}

EnvelopeVerdict fault(EnvelopeFault what) { return {.ok = false, .fault = what}; }

}  // namespace

void write_marker(const EnvelopeExpectation& page, std::span<std::byte> record) {
  const Record bytes = expected_record(page);
  std::copy(bytes.begin(), bytes.end(), record.begin());
}

EnvelopeVerdict verify_marker(const EnvelopeExpectation& page, std::span<const std::byte> record) {
  if (record.size() != kMarkerBytes) return fault(EnvelopeFault::length);
  Record found;
  std::copy(record.begin(), record.end(), found.begin());
  const Record expected = expected_record(page);
  const auto differs = [&](std::size_t at, std::size_t bytes) {
    return std::memcmp(found.data() + at, expected.data() + at, bytes) != 0;
  };
  if (differs(0, kMagic.size())) return fault(EnvelopeFault::bad_magic);
  if (take<std::uint64_t>(found, kChecksumAt) != checksum(found)) {
    return fault(EnvelopeFault::header_checksum);
  }
  if (take<std::uint16_t>(found, kVersionAt) > kMarkerVersion) {
    return fault(EnvelopeFault::newer_version);
  }
  if (differs(0, kIdentityAt)) return fault(EnvelopeFault::bad_magic);
  if (differs(kIdentityAt, 32)) return fault(EnvelopeFault::other_identity);
  if (differs(kPageKeyAt, 32)) return fault(EnvelopeFault::other_key);
  if (differs(kPoolAt, kPoolBytes)) return fault(EnvelopeFault::other_pool);
  if (differs(kPartAt, kPartBytes)) return fault(EnvelopeFault::other_part);
  return {.ok = true};
}

}  // namespace hitide
