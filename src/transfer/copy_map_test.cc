#include "transfer/copy_map.h"

#include <gtest/gtest.h>

namespace hitide {
namespace {

std::unique_ptr<HostPool> small_pool() {
  PoolSpec spec;
  spec.page_bytes = 256;
  Result<std::unique_ptr<HostPool>> pool = HostPool::create(spec, 4);
  EXPECT_TRUE(pool.ok()) << pool.status().to_string();
  return std::move(pool).value();
}

TEST(CopyMap, PagesBecomePayloadsAtConsecutivePositions) {
  const auto pool = small_pool();
  CopyOp op;
  op.id = 7;
  op.direction = CopyDirection::to_device;
  op.sequence = SequenceId{3};
  op.first_position = 5;
  op.pages = {{PageId{10, 1}, PageId{2, 9}}, {PageId{11, 4}, PageId{0, 1}}};
  const auto batch = map_copy(op, *pool);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->op_id, 7u);
  EXPECT_EQ(batch->direction, CopyDirection::to_device);
  EXPECT_EQ(batch->sequence, SequenceId{3});
  ASSERT_EQ(batch->pages.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(batch->pages[i].page, op.pages[i].device);
    EXPECT_EQ(batch->pages[i].position, 5 + i);
    EXPECT_EQ(batch->pages[i].payload.size(), 256u);
    EXPECT_EQ(batch->pages[i].payload.data(), pool->payload(op.pages[i].host).data());
  }
}

TEST(CopyMap, RefusesAHostPageThatIsNotThere) {
  const auto pool = small_pool();
  CopyOp op;
  op.pages = {{PageId{0, 1}, PageId{0, 1}}, {PageId{1, 1}, PageId{4, 1}}};
  EXPECT_EQ(map_copy(op, *pool).status().code(), StatusCode::internal);
  op.pages[1].host = PageId{};
  EXPECT_EQ(map_copy(op, *pool).status().code(), StatusCode::internal);
}

TEST(CopyMap, CompletionCountsTheBytesThatMoved) {
  const auto pool = small_pool();
  const TimePoint busy = TimePoint(Duration(99));
  const Completion answer =
      map_completion({8, {StatusCode::ok, StatusCode::unavailable, StatusCode::ok}, busy}, *pool);
  EXPECT_EQ(answer.id, 8u);
  EXPECT_EQ(answer.bytes, 512u);
  EXPECT_EQ(answer.buffers_busy_until, busy);
  EXPECT_EQ(answer.pages,
            (std::vector<StatusCode>{StatusCode::ok, StatusCode::unavailable, StatusCode::ok}));
}

}  // namespace
}  // namespace hitide
