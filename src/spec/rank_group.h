// RankGroup: how the ranks of one model agree. Each rank hands in the stop points it could use;
// rank 0 intersects all answers and publishes a numbered decision, which reaches every rank as one
// more event of its core. No step before a decision depends on rank-local state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "spec/plan.h"

namespace hitide {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  // Never blocks. `decided` receives exactly one completion for op.id, on any thread, possibly
  // before agree() returns.
  virtual void agree(AgreeOp op, const std::function<void(Completion)>& decided) = 0;
};

// One rank: the answer is the question.
class SoloRankGroup final : public RankGroup {
 public:
  void agree(AgreeOp op, const std::function<void(Completion)>& decided) override;
};

}  // namespace hitide
