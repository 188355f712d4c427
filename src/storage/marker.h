// Marker: the object that stands in storage for a page of a logical anchor, which has no bytes of
// its own. Format, byte for byte: docs/formats/marker.md. Pure functions, safe from any thread.
//
// A marker is a function of its page alone, so that all writers put the same bytes. It says nothing
// of other objects, and is never proof that they are there.
#pragma once

#include <cstdint>
#include <span>

#include "storage/envelope.h"

namespace hitide {

inline constexpr std::uint16_t kMarkerVersion = 1;
inline constexpr std::uint64_t kMarkerBytes = 104;

// record: kMarkerBytes long. page.payload_bytes is 0.
void write_marker(const EnvelopeExpectation& page, std::span<std::byte> record);

// Checks everything. Never reads outside `record`, whatever is in it. A marker has no backup id.
EnvelopeVerdict verify_marker(const EnvelopeExpectation& page, std::span<const std::byte> record);

}  // namespace hitide
