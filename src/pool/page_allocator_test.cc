#include "pool/page_allocator.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace hitide {
namespace {

constexpr TimePoint at(std::int64_t ns) { return TimePoint(Duration(ns)); }
constexpr TimePoint kNotBusy = TimePoint::min();

std::vector<PageId> take(PageAllocator& pages, std::uint32_t count,
                         PageOwner owner = PageOwner::request) {
  std::vector<PageId> out;
  const Status status = pages.allocate(count, owner, out);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

#define EXPECT_OK(expression)                         \
  do {                                                \
    const Status status_ = (expression);              \
    EXPECT_TRUE(status_.ok()) << status_.to_string(); \
  } while (false)
#define EXPECT_CODE(expression, expected) EXPECT_EQ((expression).code(), StatusCode::expected)

TEST(PageAllocator, HandsOutEachPageOnceAndAllOrNothing) {
  PageAllocator pages(3);
  EXPECT_EQ(pages.free_count(), 3u);
  std::vector<PageId> out = take(pages, 2);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_NE(out[0].index, out[1].index);
  EXPECT_CODE(pages.allocate(2, PageOwner::node, out), resource_exhausted);
  EXPECT_EQ(out.size(), 2u);
  EXPECT_EQ(pages.free_count(), 1u);
  EXPECT_OK(pages.allocate(1, PageOwner::node, out));  // appends
  ASSERT_EQ(out.size(), 3u);
  std::set<std::uint32_t> indices;
  for (const PageId page : out) indices.insert(page.index);
  EXPECT_EQ(indices, (std::set<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(pages.count(PageOwner::request), 2u);
  EXPECT_EQ(pages.count(PageOwner::node), 1u);
  EXPECT_OK(pages.allocate(0, PageOwner::node, out));
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, ReusedPageHasAnotherGenerationAndTheOldIdIsStale) {
  PageAllocator pages(1);
  const PageId first = take(pages, 1)[0];
  EXPECT_TRUE(pages.is_current(first));
  EXPECT_OK(pages.free(first, PageOwner::request));
  EXPECT_FALSE(pages.is_current(first));
  const PageId second = take(pages, 1)[0];
  EXPECT_EQ(second.index, first.index);
  EXPECT_GT(second.generation, first.generation);
  EXPECT_FALSE(pages.is_current(first));
  EXPECT_TRUE(pages.is_current(second));
  EXPECT_CODE(pages.free(first, PageOwner::request), internal);
  EXPECT_CODE(pages.begin_operation(first), internal);
  EXPECT_CODE(pages.end_operation(first, kNotBusy), internal);
  EXPECT_CODE(pages.set_owner(first, PageOwner::request, PageOwner::node), internal);
  EXPECT_TRUE(pages.is_current(second));
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, MisuseIsRefusedByNameAndChangesNothing) {
  PageAllocator pages(2);
  const PageId page = take(pages, 1, PageOwner::node)[0];
  std::vector<PageId> out;
  EXPECT_CODE(pages.allocate(1, PageOwner::free, out), internal);
  EXPECT_CODE(pages.allocate(1, PageOwner::quarantined, out), internal);
  EXPECT_TRUE(out.empty());
  const Status wrong_owner = pages.free(page, PageOwner::request);
  EXPECT_EQ(wrong_owner.code(), StatusCode::internal);
  EXPECT_NE(wrong_owner.message().find("request"), std::string_view::npos);
  EXPECT_NE(wrong_owner.message().find("node"), std::string_view::npos);
  EXPECT_CODE(pages.free(page, PageOwner::quarantined), internal);
  EXPECT_CODE(pages.set_owner(page, PageOwner::request, PageOwner::node), internal);
  EXPECT_CODE(pages.set_owner(page, PageOwner::node, PageOwner::free), internal);
  EXPECT_CODE(pages.end_operation(page, kNotBusy), internal);
  EXPECT_CODE(pages.free(PageId{2, 1}, PageOwner::node), internal);
  EXPECT_CODE(pages.free(PageId{}, PageOwner::node), internal);
  EXPECT_EQ(pages.owner(page), PageOwner::node);
  EXPECT_OK(pages.free(page, PageOwner::node));
  EXPECT_CODE(pages.free(page, PageOwner::node), internal);  // double free
  EXPECT_CODE(pages.free(page, PageOwner::free), internal);
  EXPECT_CODE(pages.begin_operation(page), internal);
  EXPECT_EQ(pages.free_count(), 2u);
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, FreesABatchUpToTheFirstFailure) {
  PageAllocator pages(4);
  std::vector<PageId> batch = take(pages, 4);
  EXPECT_OK(pages.set_owner(batch[2], PageOwner::request, PageOwner::node));
  EXPECT_CODE(pages.free(batch, PageOwner::request), internal);
  EXPECT_EQ(pages.free_count(), 2u);
  EXPECT_TRUE(pages.is_current(batch[2]));
  EXPECT_TRUE(pages.is_current(batch[3]));
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, BatchFreesWhatIsIdleAndQuarantinesWhatIsNot) {
  PageAllocator pages(5);
  EXPECT_EQ(pages.release_quarantine(at(100)), 0u);
  const std::vector<PageId> batch = take(pages, 5, PageOwner::node);
  EXPECT_OK(pages.begin_operation(batch[1]));
  EXPECT_OK(pages.begin_operation(batch[3]));
  EXPECT_OK(pages.end_operation(batch[3], at(200)));
  EXPECT_OK(pages.free(batch, PageOwner::node));
  EXPECT_EQ(pages.free_count(), 3u);
  EXPECT_EQ(pages.count(PageOwner::quarantined), 2u);
  EXPECT_EQ(pages.count(PageOwner::node), 0u);
  EXPECT_OK(pages.check());
  EXPECT_OK(pages.end_operation(batch[1], kNotBusy));
  EXPECT_EQ(pages.release_quarantine(at(200)), 1u);
  std::vector<PageId> again = take(pages, 5);
  again[2] = again[0];  // twice in one batch
  EXPECT_CODE(pages.free(again, PageOwner::request), internal);
  EXPECT_EQ(pages.free_count(), 2u);
  EXPECT_CODE(pages.free(std::span<const PageId>(again).subspan(3), PageOwner::free), internal);
  EXPECT_CODE(pages.free(std::vector<PageId>{PageId{9, 1}}, PageOwner::request), internal);
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, PageInFlightIsNotReusedBeforeItsLastOperationEnds) {
  PageAllocator pages(1);
  const PageId page = take(pages, 1, PageOwner::operation)[0];
  EXPECT_OK(pages.begin_operation(page));
  EXPECT_OK(pages.begin_operation(page));
  EXPECT_EQ(pages.in_flight_count(), 1u);
  EXPECT_OK(pages.free(page, PageOwner::operation));
  EXPECT_EQ(pages.owner(page), PageOwner::quarantined);
  EXPECT_FALSE(pages.is_current(page));
  EXPECT_CODE(pages.free(page, PageOwner::operation), internal);
  EXPECT_CODE(pages.begin_operation(page), internal);
  EXPECT_OK(pages.end_operation(page, kNotBusy));
  EXPECT_EQ(pages.free_count(), 0u);
  EXPECT_EQ(pages.release_quarantine(at(1'000'000)), 0u);
  EXPECT_OK(pages.end_operation(page, kNotBusy));
  EXPECT_EQ(pages.free_count(), 1u);
  EXPECT_EQ(pages.in_flight_count(), 0u);
  EXPECT_CODE(pages.end_operation(page, kNotBusy), internal);
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, BusyPagesWaitForTheLatestTimeAnybodyNamed) {
  PageAllocator pages(2);
  EXPECT_EQ(pages.release_quarantine(at(100)), 0u);
  const std::vector<PageId> ids = take(pages, 2);
  for (const PageId page : ids) {
    EXPECT_OK(pages.begin_operation(page));
    EXPECT_OK(pages.begin_operation(page));
  }
  EXPECT_OK(pages.end_operation(ids[0], at(300)));
  EXPECT_OK(pages.end_operation(ids[0], at(200)));
  EXPECT_OK(pages.end_operation(ids[1], at(50)));  // past already
  EXPECT_OK(pages.end_operation(ids[1], at(250)));
  EXPECT_OK(pages.free(ids, PageOwner::request));
  EXPECT_EQ(pages.count(PageOwner::quarantined), 2u);
  EXPECT_OK(pages.check());
  EXPECT_EQ(pages.release_quarantine(at(249)), 0u);
  EXPECT_EQ(pages.release_quarantine(at(250)), 1u);
  EXPECT_EQ(pages.owner(ids[1]), PageOwner::free);
  EXPECT_EQ(pages.release_quarantine(at(100)), 0u);  // time does not go back
  EXPECT_EQ(pages.release_quarantine(at(300)), 1u);
  EXPECT_EQ(pages.free_count(), 2u);
  EXPECT_OK(pages.check());
}

TEST(PageAllocator, BusyTimeThatPassesWhileOwnedDoesNotDelayTheFree) {
  PageAllocator pages(1);
  const PageId page = take(pages, 1, PageOwner::node)[0];
  EXPECT_OK(pages.begin_operation(page));
  EXPECT_OK(pages.end_operation(page, at(500)));
  EXPECT_EQ(pages.release_quarantine(at(600)), 0u);
  EXPECT_TRUE(pages.is_current(page));
  EXPECT_OK(pages.free(page, PageOwner::node));
  EXPECT_EQ(pages.free_count(), 1u);
}

TEST(PageAllocator, RefusesMoreOperationsThanItCanCount) {
  PageAllocator pages(1);
  const PageId page = take(pages, 1)[0];
  for (int i = 0; i < 65535; ++i) ASSERT_TRUE(pages.begin_operation(page).ok());
  EXPECT_CODE(pages.begin_operation(page), internal);
  EXPECT_EQ(pages.operations(page), 65535u);
}

TEST(PageAllocator, EmptyPoolHasNothingToGive) {
  PageAllocator pages(0);
  std::vector<PageId> out;
  EXPECT_CODE(pages.allocate(1, PageOwner::request, out), resource_exhausted);
  EXPECT_OK(pages.allocate(0, PageOwner::request, out));
  EXPECT_OK(pages.check());
}

class Recorder final : public PageObserver {
 public:
  void on_allocated(PageId page) override { EXPECT_TRUE(held_.insert(page.index).second); }
  void on_freed(PageId page) override { EXPECT_EQ(held_.erase(page.index), 1u); }
  const std::set<std::uint32_t>& held() const { return held_; }

 private:
  std::set<std::uint32_t> held_;
};

TEST(PageAllocator, ObserverSeesAPageFreedOnlyWhenNothingTouchesItAnyMore) {
  PageAllocator pages(3);
  Recorder recorder;
  EXPECT_OK(pages.set_observer(&recorder));
  const std::vector<PageId> ids = take(pages, 3);
  EXPECT_EQ(recorder.held().size(), 3u);
  EXPECT_CODE(pages.set_observer(nullptr), failed_precondition);
  EXPECT_OK(pages.begin_operation(ids[0]));
  EXPECT_OK(pages.begin_operation(ids[1]));
  EXPECT_OK(pages.free(ids, PageOwner::request));
  EXPECT_EQ(recorder.held().size(), 2u);
  EXPECT_OK(pages.end_operation(ids[0], kNotBusy));
  EXPECT_EQ(recorder.held().size(), 1u);
  EXPECT_OK(pages.end_operation(ids[1], at(10)));
  EXPECT_EQ(recorder.held().size(), 1u);
  EXPECT_EQ(pages.release_quarantine(at(10)), 1u);
  EXPECT_TRUE(recorder.held().empty());
}

// ---- against a naive model ----------------------------------------------------------------------

// What must hold, written down as plainly as possible: one record a page, everything else counted.
class Model {
 public:
  struct Page {
    std::uint32_t generation = 0;
    PageOwner owner = PageOwner::free;
    int operations = 0;
    TimePoint busy_until = TimePoint::min();
    friend bool operator==(const Page&, const Page&) = default;
  };
  explicit Model(std::uint32_t capacity) : pages_(capacity) {}

  bool can_allocate(std::uint32_t count) const { return count <= count_of(PageOwner::free); }
  // False when the subject handed out a page that it must not hand out.
  bool allocated(PageId page, PageOwner owner) {
    Page& own = pages_[page.index];
    if (own.owner != PageOwner::free || page.generation != own.generation + 1) return false;
    own = {page.generation, owner, 0, TimePoint::min()};
    return true;
  }
  bool free(PageId page, PageOwner owner) {
    if (!owned(page) || pages_[page.index].owner != owner) return false;
    pages_[page.index].owner = PageOwner::quarantined;
    release();
    return true;
  }
  bool set_owner(PageId page, PageOwner from, PageOwner to) {
    if (!owned(page) || pages_[page.index].owner != from) return false;
    pages_[page.index].owner = to;
    return true;
  }
  bool begin(PageId page) {
    if (!owned(page)) return false;
    ++pages_[page.index].operations;
    return true;
  }
  bool end(PageId page, TimePoint busy_until) {
    if (page.index >= pages_.size()) return false;
    Page& own = pages_[page.index];
    if (own.generation != page.generation || own.operations == 0) return false;
    --own.operations;
    own.busy_until = std::max(own.busy_until, busy_until);
    release();
    return true;
  }
  void advance(TimePoint now) {
    now_ = std::max(now_, now);
    release();
  }
  bool owned(PageId page) const {
    if (page.index >= pages_.size()) return false;
    const Page& own = pages_[page.index];
    return own.generation == page.generation && own.owner != PageOwner::free &&
           own.owner != PageOwner::quarantined;
  }
  std::uint32_t count_of(PageOwner owner) const {
    return static_cast<std::uint32_t>(std::count_if(
        pages_.begin(), pages_.end(), [owner](const Page& page) { return page.owner == owner; }));
  }
  std::uint32_t in_flight() const {
    return static_cast<std::uint32_t>(std::count_if(
        pages_.begin(), pages_.end(), [](const Page& page) { return page.operations > 0; }));
  }
  const std::vector<Page>& pages() const { return pages_; }
  TimePoint now() const { return now_; }
  friend bool operator==(const Model&, const Model&) = default;

 private:
  void release() {
    for (Page& page : pages_) {
      if (page.owner == PageOwner::quarantined && page.operations == 0 && page.busy_until <= now_) {
        page.owner = PageOwner::free;
      }
    }
  }
  std::vector<Page> pages_;
  TimePoint now_ = TimePoint::min();
};

struct Op {
  enum class Kind { allocate, free, begin, end, set_owner, advance } kind;
  std::uint32_t count = 0;               // allocate
  PageOwner owner = PageOwner::request;  // allocate; set_owner: the new one
  PageId page;
  bool wrong_owner = false;  // free, set_owner
  Duration busy{};           // end: from now; advance: by
};

PageOwner owner_named(const Model& model, const Op& op) {
  const PageOwner real =
      op.page.index < model.pages().size() ? model.pages()[op.page.index].owner : PageOwner::node;
  if (!op.wrong_owner) return real;
  return real == PageOwner::node ? PageOwner::request : PageOwner::node;
}

// Does one operation to both and compares all that can be seen. Returns what differs, or nothing.
std::string step(PageAllocator& subject, Model& model, const Op& op) {
  bool accepted = false;
  bool expected = false;
  switch (op.kind) {
    case Op::Kind::allocate: {
      std::vector<PageId> out;
      expected = model.can_allocate(op.count);
      accepted = subject.allocate(op.count, op.owner, out).ok();
      if (out.size() != (accepted ? op.count : 0)) return "allocate: wrong number of pages";
      for (const PageId page : out) {
        if (!model.allocated(page, op.owner)) return "allocate: a page that is not free";
      }
      break;
    }
    case Op::Kind::free: {
      const PageOwner owner = owner_named(model, op);
      expected = model.free(op.page, owner);
      accepted = subject.free(op.page, owner).ok();
      break;
    }
    case Op::Kind::begin:
      expected = model.begin(op.page);
      accepted = subject.begin_operation(op.page).ok();
      break;
    case Op::Kind::end: {
      const TimePoint until =
          op.busy == Duration::zero() ? TimePoint::min() : model.now() + op.busy;
      expected = model.end(op.page, until);
      accepted = subject.end_operation(op.page, until).ok();
      break;
    }
    case Op::Kind::set_owner: {
      const PageOwner from = owner_named(model, op);
      expected = model.set_owner(op.page, from, op.owner);
      accepted = subject.set_owner(op.page, from, op.owner).ok();
      break;
    }
    case Op::Kind::advance: {
      const std::uint32_t before = model.count_of(PageOwner::free);
      model.advance(model.now() + op.busy);
      expected = accepted = true;
      if (subject.release_quarantine(model.now()) != model.count_of(PageOwner::free) - before) {
        return "release_quarantine: wrong number of pages";
      }
      break;
    }
  }
  if (accepted != expected) return accepted ? "accepted what is wrong" : "refused what is right";
  for (int owner = 0; owner < kPageOwnerCount; ++owner) {
    const auto state = static_cast<PageOwner>(owner);
    if (subject.count(state) != model.count_of(state)) {
      return std::string("count of ") + to_string(state);
    }
  }
  if (subject.in_flight_count() != model.in_flight()) return "in flight";
  for (std::uint32_t index = 0; index < model.pages().size(); ++index) {
    const Model::Page& page = model.pages()[index];
    const PageId id{index, page.generation};
    if (subject.owner(id) != page.owner) return "owner of page " + std::to_string(index);
    if (subject.is_current(id) != model.owned(id)) return "currency of " + std::to_string(index);
  }
  return {};
}

std::vector<Op> moves(const Model& model) {
  std::vector<Op> all;
  all.push_back({.kind = Op::Kind::allocate, .count = 1, .owner = PageOwner::request, .page = {}});
  all.push_back({.kind = Op::Kind::allocate, .count = 2, .owner = PageOwner::node, .page = {}});
  all.push_back({.kind = Op::Kind::advance, .page = {}, .busy = Duration(2)});
  for (std::uint32_t index = 0; index < model.pages().size(); ++index) {
    const PageId page{index, model.pages()[index].generation};
    all.push_back({.kind = Op::Kind::free, .page = page});
    all.push_back({.kind = Op::Kind::begin, .page = page});
    all.push_back({.kind = Op::Kind::end, .page = page});
    all.push_back({.kind = Op::Kind::end, .page = page, .busy = Duration(3)});
    all.push_back({.kind = Op::Kind::set_owner, .owner = PageOwner::operation, .page = page});
  }
  const PageId stale{0, model.pages()[0].generation - 1};
  all.push_back({.kind = Op::Kind::free, .page = stale});
  all.push_back({.kind = Op::Kind::end, .page = stale});
  return all;
}

// Every sequence of moves up to `depth` from here. A move that changed nothing is not followed:
// what comes after it is what comes after its predecessor.
bool explore(const PageAllocator& subject, const Model& model, int depth, std::uint64_t& visited) {
  for (const Op& op : moves(model)) {
    PageAllocator next_subject = subject;
    Model next_model = model;
    ++visited;
    const std::string wrong = step(next_subject, next_model, op);
    const Status check = next_subject.check();
    if (!wrong.empty() || !check.ok()) {
      ADD_FAILURE() << "move " << static_cast<int>(op.kind) << " on page " << op.page.index << ", "
                    << depth << " moves before the end: " << wrong << " " << check.to_string();
      return false;
    }
    if (depth == 1 || next_model == model) continue;
    if (!explore(next_subject, next_model, depth - 1, visited)) {
      ADD_FAILURE() << "  after move " << static_cast<int>(op.kind) << " on page " << op.page.index;
      return false;
    }
  }
  return true;
}

TEST(PageAllocatorModel, AllShortSequencesOnTwoPages) {
  PageAllocator subject(2);
  Model model(2);
  std::uint64_t visited = 0;
  EXPECT_TRUE(explore(subject, model, 7, visited));
  EXPECT_GT(visited, 400'000u);
}

TEST(PageAllocatorModel, AllShortSequencesOnThreePages) {
  PageAllocator subject(3);
  Model model(3);
  std::uint64_t visited = 0;
  EXPECT_TRUE(explore(subject, model, 7, visited));
  EXPECT_GT(visited, 500'000u);
}

Op random_op(Random& random, const Model& model, const std::vector<PageId>& seen) {
  static constexpr PageOwner kOwners[] = {PageOwner::request, PageOwner::node,
                                          PageOwner::operation};
  Op op{.kind = Op::Kind::allocate, .page = {}};
  op.kind = static_cast<Op::Kind>(random.below(6));
  op.count = static_cast<std::uint32_t>(random.below(model.pages().size() / 2));
  op.owner = kOwners[random.below(3)];
  op.wrong_owner = random.chance(0.1);
  if (op.kind == Op::Kind::advance || random.chance(0.5)) {
    op.busy = Duration(static_cast<std::int64_t>(random.below(20)));
  }
  if (!seen.empty() && random.chance(0.2)) {
    op.page = seen[random.below(seen.size())];
  } else {
    op.page.index = static_cast<std::uint32_t>(random.below(model.pages().size()));
    op.page.generation = model.pages()[op.page.index].generation;
  }
  return op;
}

TEST(PageAllocatorModel, LongRandomSequencesAgreeWithTheModel) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto capacity = static_cast<std::uint32_t>(2 + random.below(40));
    PageAllocator subject(capacity);
    Model model(capacity);
    model.advance(at(0));
    subject.release_quarantine(at(0));
    std::vector<PageId> seen;
    std::uint32_t handed_out = 0;
    for (int i = 0; i < 5000; ++i) {
      const Op op = random_op(random, model, seen);
      const std::uint32_t free_before = model.count_of(PageOwner::free);
      ASSERT_EQ(step(subject, model, op), "") << "step " << i;
      if (op.kind == Op::Kind::allocate) {
        handed_out += free_before - model.count_of(PageOwner::free);
      }
      if (op.page.valid() && seen.size() < 200) seen.push_back(op.page);
      if (i % 50 == 0) {
        ASSERT_EQ(subject.check().to_string(), "ok") << "step " << i;
      }
    }
    EXPECT_GT(handed_out, capacity);  // pages were reused
    EXPECT_EQ(subject.check().to_string(), "ok");
  }
}

}  // namespace
}  // namespace hitide
