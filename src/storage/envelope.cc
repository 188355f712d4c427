#include "storage/envelope.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace hitide {
namespace {

static_assert(std::endian::native == std::endian::little, "stored integers are little-endian");

constexpr std::array<char, 4> kMagic = {'H', 'T', 'P', 'G'};

// Offsets of docs/formats/envelope.md.
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kHeaderBytesAt = 6;
constexpr std::size_t kIdentityAt = 8;
constexpr std::size_t kPageKeyAt = 40;
constexpr std::size_t kPoolAt = 72;
constexpr std::size_t kPoolBytes = 16;
constexpr std::size_t kPartAt = 88;  // tp, pp, cp as u16, then two zero bytes
constexpr std::size_t kPartBytes = 8;
constexpr std::size_t kPayloadBytesAt = 96;
constexpr std::size_t kPayloadChecksumAt = 104;
constexpr std::size_t kBackupIdAt = 112;
constexpr std::size_t kHeaderChecksumAt = 120;
static_assert(kHeaderChecksumAt + 8 == kEnvelopeBytes);

using Header = std::array<std::byte, kEnvelopeBytes>;

template <typename T>
void put(Header& header, std::size_t at, const T& value) {
  std::memcpy(header.data() + at, &value, sizeof value);
}

template <typename T>
T take(const Header& header, std::size_t at) {
  T value;
  std::memcpy(&value, header.data() + at, sizeof value);
  return value;
}

std::uint64_t header_checksum(const Header& header) {
  return checksum64(std::span(header).first(kHeaderChecksumAt));
}

// All that does not depend on the payload's content and the backup.
Header expected_header(const EnvelopeExpectation& page) {
  Header header{};
  put(header, 0, kMagic);
  put(header, kVersionAt, kEnvelopeVersion);
  put(header, kHeaderBytesAt, static_cast<std::uint16_t>(kEnvelopeBytes));
  put(header, kIdentityAt, page.identity.bytes);
  put(header, kPageKeyAt, page.key.bytes);
  std::memcpy(header.data() + kPoolAt, page.pool.data(),
              std::min(page.pool.size(), kPoolBytes - 1));
  put(header, kPartAt, static_cast<std::uint16_t>(page.part.tp_rank));
  put(header, kPartAt + 2, static_cast<std::uint16_t>(page.part.pp_rank));
  put(header, kPartAt + 4, static_cast<std::uint16_t>(page.part.cp_rank));
  put(header, kPayloadBytesAt, page.payload_bytes);
  return header;
}

bool same(const Header& a, const Header& b, std::size_t at, std::size_t bytes) {
  return std::memcmp(a.data() + at, b.data() + at, bytes) == 0;
}

EnvelopeVerdict fault(EnvelopeFault what) { return {.ok = false, .fault = what}; }

}  // namespace

std::string_view to_string(EnvelopeFault fault) {
  switch (fault) {
#define HITIDE_X(name, meaning) \
  case EnvelopeFault::name:     \
    return #name;
    HITIDE_ENVELOPE_FAULTS(HITIDE_X)
#undef HITIDE_X
  }
  return "unknown";
}

std::string_view meaning(EnvelopeFault fault) {
  switch (fault) {
#define HITIDE_X(name, text) \
  case EnvelopeFault::name:  \
    return text;
    HITIDE_ENVELOPE_FAULTS(HITIDE_X)
#undef HITIDE_X
  }
  return "unknown";
}

void seal_envelope(const EnvelopeExpectation& page, std::uint64_t backup_id,
                   std::span<std::byte> object) {
  Header header = expected_header(page);
  put(header, kPayloadChecksumAt, checksum64(object.subspan(kEnvelopeBytes)));
  put(header, kBackupIdAt, backup_id);
  put(header, kHeaderChecksumAt, header_checksum(header));
  std::copy(header.begin(), header.end(), object.begin());
}

EnvelopeVerdict verify_envelope(const EnvelopeExpectation& page,
                                std::span<const std::byte> object) {
  if (object.size() != kEnvelopeBytes + page.payload_bytes) return fault(EnvelopeFault::length);
  Header found;
  std::copy_n(object.begin(), kEnvelopeBytes, found.begin());
  const Header expected = expected_header(page);
  if (!same(found, expected, 0, kMagic.size())) return fault(EnvelopeFault::bad_magic);
  if (take<std::uint64_t>(found, kHeaderChecksumAt) != header_checksum(found)) {
    return fault(EnvelopeFault::header_checksum);
  }
  if (take<std::uint16_t>(found, kVersionAt) > kEnvelopeVersion) {
    return fault(EnvelopeFault::newer_version);
  }
  if (!same(found, expected, 0, kIdentityAt)) return fault(EnvelopeFault::bad_magic);
  if (!same(found, expected, kIdentityAt, 32)) return fault(EnvelopeFault::other_identity);
  if (!same(found, expected, kPageKeyAt, 32)) return fault(EnvelopeFault::other_key);
  if (!same(found, expected, kPoolAt, kPoolBytes)) return fault(EnvelopeFault::other_pool);
  if (!same(found, expected, kPartAt, kPartBytes)) return fault(EnvelopeFault::other_part);
  if (!same(found, expected, kPayloadBytesAt, 8)) return fault(EnvelopeFault::length);
  const auto payload = object.subspan(kEnvelopeBytes);
  if (take<std::uint64_t>(found, kPayloadChecksumAt) != checksum64(payload)) {
    return fault(EnvelopeFault::payload_checksum);
  }
  return {.ok = true, .backup_id = take<std::uint64_t>(found, kBackupIdAt)};
}

}  // namespace hitide
