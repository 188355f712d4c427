#include "transfer/copy_map.h"

#include <algorithm>
#include <string>

namespace hitide {

Result<CopyBatch> map_copy(const CopyOp& op, const HostPool& pool) {
  CopyBatch batch;
  batch.op_id = op.id;
  batch.direction = op.direction;
  batch.sequence = op.sequence;
  batch.pages.reserve(op.pages.size());
  std::uint32_t position = op.first_position;
  for (const CopyOp::Page& page : op.pages) {
    const std::span<std::byte> payload = pool.payload(page.host);
    if (payload.empty()) {
      return Status(StatusCode::internal, "copy " + std::to_string(op.id) + " names host page " +
                                              std::to_string(page.host.index) + " of " +
                                              std::to_string(pool.page_count()));
    }
    batch.pages.push_back({.page = page.device, .position = position++, .payload = payload});
  }
  return batch;
}

Completion map_completion(CopyCompletion completion, const HostPool& pool) {
  Completion answer;
  answer.id = completion.op_id;
  answer.pages = std::move(completion.pages);
  answer.buffers_busy_until = completion.buffers_busy_until;
  const auto moved = std::count(answer.pages.begin(), answer.pages.end(), StatusCode::ok);
  answer.bytes = static_cast<std::uint64_t>(moved) * pool.layout().payload_bytes;
  return answer;
}

}  // namespace hitide
