#include "storage/marker.h"

#include <algorithm>
#include <array>

#include "storage/page_header.h"

namespace hitide {
namespace {

// docs/formats/marker.md: a page header and its checksum.
constexpr PageHeaderForm kForm = {
    {'H', 'T', 'M', 'K'}, kMarkerVersion, kMarkerBytes, kPageHeaderBytes};
static_assert(kForm.checksum_at + 8 == kMarkerBytes);

}  // namespace

void write_marker(const EnvelopeExpectation& page, std::span<std::byte> record) {
  std::array<std::byte, kMarkerBytes> bytes{};
  put_page_header(kForm, page, bytes);
  put(bytes, kForm.checksum_at, page_header_checksum(kForm, bytes));
  std::copy(bytes.begin(), bytes.end(), record.begin());
}

EnvelopeVerdict verify_marker(const EnvelopeExpectation& page, std::span<const std::byte> record) {
  if (record.size() != kMarkerBytes) return {.ok = false, .fault = EnvelopeFault::length};
  if (const auto what = page_header_fault(kForm, page, record)) {
    return {.ok = false, .fault = *what};
  }
  return {.ok = true};
}

}  // namespace hitide
