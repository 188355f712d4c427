// Host page layouts, as data: where the header slot and the payload of a page lie in its slot.
//
//   page_packed   [ header slot: kEnvelopeBytes ][ payload: page_bytes ][ pad ]
//                 ^ slot start, kPageAlignment-aligned                  ^ stride
//
// The object that goes to storage is header and payload, adjacent: one buffer, one transfer.
#pragma once

#include <cstdint>

#include <hitide/model_spec.h>

namespace hitide {

// docs/formats/envelope.md
inline constexpr std::uint64_t kEnvelopeBytes = 128;
inline constexpr std::uint64_t kPageAlignment = 4096;

struct PageLayout {
  std::uint64_t header_offset = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t payload_offset = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t stride_bytes = 0;  // from one page's slot to the next

  std::uint64_t object_bytes() const { return header_bytes + payload_bytes; }
};

// Requires a validated pool. A logical pool has stride 0.
PageLayout page_layout(const PoolSpec& pool);

}  // namespace hitide
