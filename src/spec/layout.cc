#include "spec/layout.h"

namespace hitide {

PageLayout page_layout(const PoolSpec& pool) {
  PageLayout layout;
  if (!has_bytes(pool)) return layout;
  layout.header_bytes = kEnvelopeBytes;
  layout.payload_offset = kEnvelopeBytes;
  layout.payload_bytes = pool.page_bytes;
  layout.stride_bytes =
      (layout.object_bytes() + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
  return layout;
}

}  // namespace hitide
