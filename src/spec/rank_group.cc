#include "spec/rank_group.h"

namespace hitide {

void SoloRankGroup::agree(AgreeOp op, const std::function<void(Completion)>& decided) {
  Completion completion;
  completion.id = op.id;
  completion.pages.reserve(op.stop_points.size());
  for (const std::uint8_t stop : op.stop_points) {
    completion.pages.push_back(stop != 0 ? StatusCode::ok : StatusCode::not_found);
  }
  decided(std::move(completion));
}

}  // namespace hitide
