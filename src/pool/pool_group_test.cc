#include "pool/pool_group.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "pool/host_pool.h"
#include "pool/registrability.h"
#include "spec/layout.h"

namespace hitide {
namespace {

PoolSpec pool(std::string name, std::uint64_t page_bytes, std::string source = "") {
  PoolSpec spec;
  spec.name = std::move(name);
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  spec.index_source = std::move(source);
  return spec;
}

// A logical anchor, a side pool on its ids, one with ids of its own, and a borrower of that one.
ModelSpec synthetic() {
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {pool("kv", 0), pool("c4", 100, "kv"), pool("swa", 200),
                 pool("c4_state", 50, "swa")};
  return model;
}

using Counts = std::vector<std::uint32_t>;

std::unique_ptr<PoolGroup> group_of(const ModelSpec& model, const Counts& capacities) {
  auto group = PoolGroup::create(model, capacities);
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  return group.ok() ? std::move(group).value() : nullptr;
}

TEST(PoolGroup, BorrowersHaveTheIdsOfTheirSource) {
  const auto group = group_of(synthetic(), {10, 0, 4, 0});
  ASSERT_NE(group, nullptr);
  EXPECT_TRUE(group->is_logical_anchor());
  GroupPages pages;
  ASSERT_TRUE(group->reserve(Counts{3, 0, 2, 0}, PageOwner::request, pages).ok());
  const auto ids = [&](std::size_t index) {
    const auto span = group->pages(pages, index);
    return std::vector<PageId>(span.begin(), span.end());
  };
  EXPECT_EQ(ids(0).size(), 3u);
  EXPECT_EQ(ids(1), ids(0));
  EXPECT_EQ(ids(2).size(), 2u);
  EXPECT_EQ(ids(3), ids(2));
  EXPECT_EQ(group->source(3), 2u);
  EXPECT_EQ(&group->allocator(1), &group->allocator(0));
  // More pages join those that are there.
  ASSERT_TRUE(group->reserve(Counts{1, 0, 0, 0}, PageOwner::request, pages).ok());
  EXPECT_EQ(ids(1).size(), 4u);
  EXPECT_TRUE(group->free(pages, PageOwner::request).ok());
  EXPECT_EQ(group->allocator(0).free_count(), 10u);
  EXPECT_EQ(group->allocator(2).free_count(), 4u);
  EXPECT_TRUE(group->check().ok());
}

// faults.md K17 B221: sizes 10, 20 and 30, and an anchor whose size is a number of ids: each pool
// is reported by its own, full or empty, also as memory.
TEST(PoolGroup, K17_B221_EachPoolIsReportedByItsOwnSize) {
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {pool("kv", 0), pool("full", 4000), pool("swa", 5000), pool("state", 9000)};
  const Counts sizes = {50, 10, 20, 30};
  const auto group = group_of(model, sizes);
  ASSERT_NE(group, nullptr);
  GroupPages pages;
  ASSERT_TRUE(group->reserve(Counts{5, 1, 2, 3}, PageOwner::request, pages).ok());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(group->allocator(i).capacity(), sizes[i]) << model.pools[i].name;
    EXPECT_EQ(group->allocator(i).free_count(), sizes[i] - sizes[i] / 10);
  }
  ASSERT_TRUE(group->free(pages, PageOwner::request).ok());
  std::vector<std::unique_ptr<HostPool>> host;
  std::vector<PoolMemory> told = {describe_without_memory(model.pools[0])};
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    host.push_back(HostPool::create(model.pools[i], sizes[i]).value());
    EXPECT_EQ(host.back()->page_count(), sizes[i]);
    told.push_back(host.back()->describe());
  }
  const auto rows = plan_registration(told, {}, {});
  ASSERT_EQ(rows.size(), sizes.size());
  EXPECT_EQ(rows[0].bytes, 0u) << "ids are no bytes";
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    EXPECT_EQ(rows[i].pool, model.pools[i].name);
    EXPECT_EQ(rows[i].bytes, sizes[i] * page_layout(model.pools[i]).stride_bytes);
  }
}

TEST(PoolGroup, AReservationIsAllOrNothing) {
  const auto group = group_of(synthetic(), {10, 0, 4, 0});
  GroupPages held;
  ASSERT_TRUE(group->reserve(Counts{2, 0, 3, 0}, PageOwner::node, held).ok());
  const std::vector<std::vector<PageId>> before = held.ids;
  const Status status = group->reserve(Counts{5, 0, 2, 0}, PageOwner::node, held);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_NE(status.message().find("pool swa"), std::string::npos) << status.to_string();
  EXPECT_EQ(held.ids, before);
  EXPECT_EQ(group->allocator(0).free_count(), 8u);
  EXPECT_EQ(group->allocator(2).free_count(), 1u);
  EXPECT_TRUE(group->check().ok());
}

// Two ranks, one of which had to roll back, hand out the same pages afterwards.
TEST(PoolGroup, ARollbackLeavesTheFreeListsAsTheyWere) {
  const auto tried = group_of(synthetic(), {10, 0, 4, 0});
  const auto fresh = group_of(synthetic(), {10, 0, 4, 0});
  GroupPages none;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(tried->reserve(Counts{7, 0, 5, 0}, PageOwner::request, none).ok());
  }
  GroupPages a;
  GroupPages b;
  ASSERT_TRUE(tried->reserve(Counts{10, 0, 4, 0}, PageOwner::request, a).ok());
  ASSERT_TRUE(fresh->reserve(Counts{10, 0, 4, 0}, PageOwner::request, b).ok());
  for (std::size_t index = 0; index < 4; ++index) {
    const auto left = tried->pages(a, index);
    const auto right = fresh->pages(b, index);
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i].index, right[i].index);
  }
}

TEST(PoolGroup, AGroupAnswersForItsAnchor) {
  ModelSpec model = synthetic();
  model.pools[0] = pool("kv", 64);
  EXPECT_FALSE(group_of(model, {10, 0, 4, 0})->is_logical_anchor());
  model.pools[2] = pool("swa", 0);  // a logical side pool does not make the anchor one
  EXPECT_FALSE(group_of(model, {10, 0, 4, 0})->is_logical_anchor());
}

TEST(PoolGroup, RefusesWhatDoesNotFitTheModel) {
  const auto code = [](const ModelSpec& model, const Counts& capacities) {
    return PoolGroup::create(model, capacities).status().code();
  };
  constexpr auto kBad = StatusCode::invalid_argument;
  EXPECT_EQ(code(synthetic(), {10, 0, 4}), kBad);
  EXPECT_EQ(code(synthetic(), {10, 3, 4, 0}), kBad) << "a borrower with a capacity";
  EXPECT_EQ(code(synthetic(), {10, 0, 0, 0}), kBad) << "an owner without one";
  ModelSpec circle = synthetic();
  circle.pools[2].index_source = "c4_state";
  EXPECT_EQ(code(circle, {10, 0, 0, 0}), kBad);
  ModelSpec empty;
  EXPECT_EQ(code(empty, {}), kBad);
  const auto group = group_of(synthetic(), {10, 0, 4, 0});
  GroupPages pages;
  EXPECT_EQ(group->reserve(Counts{1, 0}, PageOwner::request, pages).code(), kBad);
  EXPECT_EQ(group->reserve(Counts{1, 1, 1, 0}, PageOwner::request, pages).code(), kBad);
  EXPECT_EQ(group->find("c4").value(), 1u);
  const auto unknown = group->find("mamba");
  EXPECT_EQ(unknown.status().code(), StatusCode::not_found);
  EXPECT_NE(unknown.status().message().find("kv, c4, swa, c4_state"), std::string::npos);
}

TEST(PoolGroup, AStrangePageIsReportedAndTheOthersAreGivenBack) {
  const auto group = group_of(synthetic(), {10, 0, 4, 0});
  GroupPages pages;
  ASSERT_TRUE(group->reserve(Counts{3, 0, 2, 0}, PageOwner::request, pages).ok());
  pages.ids[2].push_back(PageId{3, 99});
  EXPECT_EQ(group->free(pages, PageOwner::request).code(), StatusCode::internal);
  EXPECT_EQ(group->allocator(0).free_count(), 10u);
  EXPECT_EQ(group->allocator(2).free_count(), 4u);
}

// Against a model that knows only who holds which index.
TEST(PoolGroupModel, RandomReservationsAgreeWithTheModel) {
  const std::uint64_t seed = 8128;
  SCOPED_TRACE(seed);
  Random random(seed);
  const Counts capacities = {12, 0, 5, 0};
  for (int run = 0; run < 50; ++run) {
    const auto group = group_of(synthetic(), capacities);
    std::vector<GroupPages> held;
    std::vector<std::set<std::uint32_t>> taken(4);
    for (int step = 0; step < 200; ++step) {
      if (!held.empty() && random.next() % 5 < 2) {
        const std::size_t which = random.next() % held.size();
        for (const std::size_t owner : {0u, 2u}) {
          for (const PageId id : group->pages(held[which], owner)) taken[owner].erase(id.index);
        }
        ASSERT_TRUE(group->free(held[which], PageOwner::request).ok());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        const Counts counts = {static_cast<std::uint32_t>(random.next() % 6), 0,
                               static_cast<std::uint32_t>(random.next() % 4), 0};
        const bool fits = taken[0].size() + counts[0] <= capacities[0] &&
                          taken[2].size() + counts[2] <= capacities[2];
        GroupPages pages;
        const Status status = group->reserve(counts, PageOwner::request, pages);
        ASSERT_EQ(status.ok(), fits) << status.to_string();
        if (!fits) {
          ASSERT_TRUE(pages.ids.empty());
          continue;
        }
        for (const std::size_t owner : {0u, 2u}) {
          ASSERT_EQ(group->pages(pages, owner).size(), counts[owner]);
          for (const PageId id : group->pages(pages, owner)) {
            ASSERT_TRUE(taken[owner].insert(id.index).second) << "handed out twice";
          }
        }
        held.push_back(std::move(pages));
      }
      ASSERT_TRUE(group->check().ok());
      for (const std::size_t owner : {0u, 2u}) {
        ASSERT_EQ(group->allocator(owner).free_count(), capacities[owner] - taken[owner].size());
      }
    }
  }
}

}  // namespace
}  // namespace hitide
