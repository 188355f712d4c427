#include "storage/envelope.h"

#include <algorithm>

#include "base/hash.h"
#include "storage/page_header.h"

namespace hitide {
namespace {

// Offsets of docs/formats/envelope.md, behind those of every page header.
constexpr std::size_t kPayloadBytesAt = 96;
constexpr std::size_t kPayloadChecksumAt = 104;
constexpr std::size_t kBackupIdAt = 112;
constexpr PageHeaderForm kForm = {{'H', 'T', 'P', 'G'}, kEnvelopeVersion, kEnvelopeBytes, 120};
static_assert(kForm.checksum_at + 8 == kEnvelopeBytes);

using Header = std::array<std::byte, kEnvelopeBytes>;

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
  Header header{};
  put_page_header(kForm, page, header);
  put(header, kPayloadBytesAt, page.payload_bytes);
  put(header, kPayloadChecksumAt, checksum64(object.subspan(kEnvelopeBytes)));
  put(header, kBackupIdAt, backup_id);
  put(header, kForm.checksum_at, page_header_checksum(kForm, header));
  std::copy(header.begin(), header.end(), object.begin());
}

EnvelopeVerdict verify_envelope(const EnvelopeExpectation& page,
                                std::span<const std::byte> object) {
  if (object.size() != kEnvelopeBytes + page.payload_bytes) return fault(EnvelopeFault::length);
  const auto found = object.first(kEnvelopeBytes);
  if (const auto what = page_header_fault(kForm, page, found)) return fault(*what);
  if (take<std::uint64_t>(found, kPayloadBytesAt) != page.payload_bytes) {
    return fault(EnvelopeFault::length);
  }
  const auto payload = object.subspan(kEnvelopeBytes);
  if (take<std::uint64_t>(found, kPayloadChecksumAt) != checksum64(payload)) {
    return fault(EnvelopeFault::payload_checksum);
  }
  return {.ok = true, .backup_id = take<std::uint64_t>(found, kBackupIdAt)};
}

}  // namespace hitide
