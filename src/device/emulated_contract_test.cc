// The emulated device and the contract of <hitide/device.h>: what it must accept, and what it must
// catch.
#include "tests/support/fake_device.h"

#include <gtest/gtest.h>

namespace hitide {
namespace {

constexpr std::size_t kBytes = 64;
using Kind = SequenceCommand::Kind;

class Sink final : public CompletionSink {
 public:
  void post(CopyCompletion completion) override { answers.push_back(std::move(completion)); }
  std::vector<CopyCompletion> answers;
};

using Pages = std::vector<PageId>;
using Codes = std::vector<StatusCode>;

CopyBatch to_host(std::uint64_t op_id, PageId page, std::span<std::byte> buffer) {
  CopyBatch batch;
  batch.op_id = op_id;
  batch.pages = {{page, 0, buffer}};
  return batch;
}

class EmulatedContract : public testing::Test {
 protected:
  explicit EmulatedContract(std::uint32_t sequence_count = 4)
      : device_({.page_count = 8,
                 .page_size = 4,
                 .page_bytes = kBytes,
                 .sequence_count = sequence_count}) {
    EXPECT_TRUE(device_.attach(&sink_).ok());
  }
  void command(Kind kind, std::int32_t sequence, std::uint32_t position, Pages pages = {}) {
    device_.submit(SequenceCommand{kind, SequenceId{sequence}, position, std::move(pages)});
    device_.run();
  }
  // Copies one page; the code of its answer.
  StatusCode copy(CopyDirection direction, PageId page, std::uint32_t position,
                  std::int32_t sequence = -1) {
    device_.submit(CopyBatch{.op_id = ++op_,
                             .direction = direction,
                             .sequence = SequenceId{sequence},
                             .pages = {{page, position, buffer_}}});
    device_.run();
    EXPECT_FALSE(sink_.answers.empty());
    return sink_.answers.empty() ? StatusCode::unimplemented : sink_.answers.back().pages.at(0);
  }
  // The next violation; fails when there is none.
  void expect_violation(const std::string& part) {
    const std::vector<std::string> all = device_.violations();
    ASSERT_GT(all.size(), seen_) << "expected: " << part;
    EXPECT_NE(all[seen_].find(part), std::string::npos) << all[seen_];
    seen_ = all.size();
  }
  void expect_clean() {
    const std::vector<std::string> all = device_.violations();
    ASSERT_EQ(all.size(), seen_) << all.back();
  }

  Sink sink_;
  FakeDevice device_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBytes);
  std::uint64_t op_ = 0;
  std::size_t seen_ = 0;
};

class EmulatedPageContract : public EmulatedContract {
 protected:
  EmulatedPageContract() : EmulatedContract(0) {}
};

TEST_F(EmulatedContract, CommandsWaitForStepAndKeepTheirOrder) {
  const PageId page{0, 1};
  device_.submit(SequenceCommand{Kind::extend, SequenceId{0}, 0, {page}});
  EXPECT_EQ(device_.queued(), 1u);
  EXPECT_TRUE(device_.sequence(SequenceId{0}).empty());
  EXPECT_TRUE(device_.step());
  EXPECT_EQ(device_.sequence(SequenceId{0}), Pages{page});
  device_.fill(page, 5);
  device_.submit(to_host(1, page, buffer_));
  device_.submit(SequenceCommand{Kind::trim, SequenceId{0}, 0, {}});
  EXPECT_TRUE(sink_.answers.empty());
  EXPECT_EQ(device_.run(), 2u);
  EXPECT_FALSE(device_.step());
  ASSERT_EQ(sink_.answers.size(), 1u);
  EXPECT_EQ(sink_.answers[0].pages, Codes{StatusCode::ok});
  EXPECT_EQ(buffer_, page_content(5, kBytes));
  EXPECT_FALSE(device_.filled(page));
  EXPECT_EQ(device_.sequences_in_use(), 0u);
  expect_clean();
}

TEST_F(EmulatedContract, RequestThatSharesExtendsAndGivesBack) {
  command(Kind::extend, 0, 0, {{0, 1}, {1, 1}});
  device_.fill({0, 1}, 1);
  device_.fill({1, 1}, 2);
  command(Kind::bind, 1, 0, {{0, 1}});
  command(Kind::extend, 1, 1, {{2, 1}, {3, 1}});
  device_.fill({2, 1}, 2);  // the same as page 1
  command(Kind::replace, 1, 1, {{1, 1}});
  EXPECT_EQ(device_.sequence(SequenceId{1}), (Pages{{0, 1}, {1, 1}, {3, 1}}));
  EXPECT_FALSE(device_.filled({2, 1}));
  command(Kind::trim, 0, 0);
  EXPECT_TRUE(device_.filled({1, 1}));  // still in sequence 1
  command(Kind::trim, 1, 2);
  command(Kind::extend, 0, 0, {{2, 2}});
  expect_clean();
}

TEST_F(EmulatedContract, CopiesToTheDeviceFillInOrder) {
  buffer_ = page_content(9, kBytes);
  command(Kind::extend, 2, 0, {{0, 1}, {1, 1}});
  EXPECT_EQ(copy(CopyDirection::to_device, {0, 1}, 0, 2), StatusCode::ok);
  EXPECT_EQ(device_.bytes({0, 1}), buffer_);
  expect_clean();
  EXPECT_EQ(copy(CopyDirection::to_device, {0, 1}, 0, 2), StatusCode::internal);
  expect_violation("filled already");
  EXPECT_EQ(copy(CopyDirection::to_device, {1, 1}, 1, 0), StatusCode::internal);
  expect_violation("not at 1 of sequence 0");
  command(Kind::extend, 3, 0, {{4, 1}, {5, 1}});
  EXPECT_EQ(copy(CopyDirection::to_device, {5, 1}, 1, 3), StatusCode::internal);
  expect_violation("a page before it is not filled");
}

TEST_F(EmulatedContract, CatchesReadsOfWhatIsNotThere) {
  command(Kind::extend, 0, 0, {{0, 1}});
  EXPECT_EQ(copy(CopyDirection::to_host, {0, 1}, 0), StatusCode::internal);
  expect_violation("not filled");
  device_.fill({0, 1}, 1);
  EXPECT_EQ(copy(CopyDirection::to_host, {0, 2}, 0), StatusCode::internal);
  expect_violation("not filled");
  EXPECT_EQ(copy(CopyDirection::to_host, {0, 1}, 1), StatusCode::internal);
  expect_violation("stands at 0");
  EXPECT_EQ(copy(CopyDirection::to_host, {8, 1}, 0), StatusCode::internal);
  expect_violation("no such page");
  command(Kind::trim, 0, 0);
  EXPECT_EQ(copy(CopyDirection::to_host, {0, 1}, 0), StatusCode::internal);
  expect_violation("released");
  buffer_.pop_back();
  EXPECT_EQ(copy(CopyDirection::to_host, {0, 1}, 0), StatusCode::internal);
  expect_violation("payload of 63 bytes");
}

TEST_F(EmulatedContract, CatchesWrongFills) {
  device_.fill({0, 1}, 1);
  expect_violation("in no sequence");
  command(Kind::extend, 0, 0, {{0, 1}, {1, 1}});
  device_.fill({1, 1}, 1);
  expect_violation("a page before it is not filled");
  device_.fill({0, 1}, 1);
  device_.fill({0, 1}, 1);
  expect_violation("filled already");
}

TEST_F(EmulatedContract, CatchesWrongBinds) {
  command(Kind::extend, 0, 0, {{0, 1}, {1, 1}});
  command(Kind::bind, 1, 0, {{0, 1}});
  expect_violation("not all of these pages are filled");
  device_.fill({0, 1}, 1);
  device_.fill({1, 1}, 2);
  command(Kind::bind, 1, 0, {{0, 1}});
  expect_violation("in use");
  command(Kind::bind, 2, 0, {{1, 1}});
  expect_violation("no other sequence");
  command(Kind::bind, 2, 0, {{0, 1}, {2, 1}});
  expect_violation("no other sequence");
  command(Kind::bind, 2, 1, {{1, 1}});
  expect_violation("position 0");
  command(Kind::bind, 4, 0, {{0, 1}});
  expect_violation("no such sequence");
}

TEST_F(EmulatedContract, CatchesWrongExtends) {
  command(Kind::extend, 0, 1, {{0, 1}});
  expect_violation("has 0 pages");
  command(Kind::extend, 0, 0, {{0, 1}});
  command(Kind::extend, 1, 0, {{0, 2}});
  expect_violation("is in sequence 0");
  command(Kind::trim, 1, 0);
  command(Kind::trim, 0, 0);
  seen_ = device_.violations().size();  // one page under two generations is noted each time
  command(Kind::extend, 2, 0, {{0, 2}});
  expect_violation("is not new");
}

TEST_F(EmulatedContract, CatchesWrongReplacesAndTrims) {
  command(Kind::extend, 0, 0, {{0, 1}, {1, 1}});
  command(Kind::extend, 1, 0, {{2, 1}, {3, 1}});
  for (const std::uint32_t i : {0u, 1u, 2u, 3u}) device_.fill({i, 1}, i % 2);
  command(Kind::replace, 1, 1, {{1, 1}});
  expect_violation("no other sequence starts like that");
  command(Kind::trim, 1, 0);
  command(Kind::extend, 1, 0, {{4, 1}});
  seen_ = device_.violations().size();
  device_.fill({4, 1}, 77);
  command(Kind::replace, 1, 0, {{0, 1}});
  expect_violation("is not equal");
  command(Kind::replace, 1, 0, {{0, 1}, {1, 1}});
  expect_violation("not so long");
  command(Kind::trim, 1, 2);
  expect_violation("not so long");
  command(Kind::trim, 3, 0);
  expect_violation("not so long");
}

TEST_F(EmulatedContract, FailsCopiesOnCommand) {
  command(Kind::extend, 0, 0, {{0, 1}, {1, 1}, {2, 1}});
  device_.fail_copies(CopyDirection::to_device, StatusCode::unavailable, 1, 1);
  device_.submit(
      CopyBatch{.op_id = 1,
                .direction = CopyDirection::to_device,
                .sequence = SequenceId{0},
                .pages = {{{0, 1}, 0, buffer_}, {{1, 1}, 1, buffer_}, {{2, 1}, 2, buffer_}}});
  device_.run();
  ASSERT_EQ(sink_.answers.size(), 1u);
  EXPECT_EQ(sink_.answers[0].pages,
            (Codes{StatusCode::ok, StatusCode::unavailable, StatusCode::cancelled}));
  EXPECT_FALSE(device_.filled({1, 1}));
  device_.fill({1, 1}, 3);  // the engine computes what could not be loaded
  device_.fail_copies(CopyDirection::to_host, StatusCode::resource_exhausted);
  EXPECT_EQ(copy(CopyDirection::to_host, {1, 1}, 1), StatusCode::resource_exhausted);
  device_.fail_no_copies();
  EXPECT_EQ(copy(CopyDirection::to_host, {1, 1}, 1), StatusCode::ok);
  expect_clean();
}

TEST_F(EmulatedContract, CompletionsMayComeLateAndOnceOnly) {
  command(Kind::extend, 0, 0, {{0, 1}});
  device_.fill({0, 1}, 1);
  device_.hold_completions();
  const TimePoint busy = TimePoint(Duration(77));
  device_.set_buffers_busy_until(busy);
  device_.submit(to_host(1, {0, 1}, buffer_));
  device_.run();
  EXPECT_TRUE(sink_.answers.empty());
  EXPECT_EQ(device_.held_completions(), 1u);
  device_.submit(to_host(2, {0, 1}, buffer_));
  device_.detach();
  ASSERT_EQ(sink_.answers.size(), 2u);
  EXPECT_EQ(sink_.answers[0].op_id, 1u);
  EXPECT_EQ(sink_.answers[0].pages, Codes{StatusCode::ok});
  EXPECT_EQ(sink_.answers[0].buffers_busy_until, busy);
  EXPECT_EQ(sink_.answers[1].pages, Codes{StatusCode::cancelled});
  device_.release_completions();
  device_.detach();
  EXPECT_EQ(sink_.answers.size(), 2u);
  device_.submit(SequenceCommand{Kind::trim, SequenceId{0}, 0, {}});
  expect_violation("no sink");
}

TEST_F(EmulatedContract, AttachesOnce) {
  Sink other;
  EXPECT_EQ(device_.attach(&other).code(), StatusCode::failed_precondition);
  device_.detach();
  EXPECT_TRUE(device_.attach(&other).ok());
}

TEST_F(EmulatedPageContract, PagesAreAddresses) {
  const PageId page{3, 1};
  device_.fill(page, 4);
  EXPECT_EQ(copy(CopyDirection::to_host, page, 0), StatusCode::ok);
  EXPECT_EQ(buffer_, page_content(4, kBytes));
  EXPECT_EQ(copy(CopyDirection::to_device, {5, 1}, 7), StatusCode::ok);
  EXPECT_EQ(device_.bytes({5, 1}), buffer_);
  device_.fill({3, 2}, 6);  // handed out anew
  expect_clean();
  EXPECT_EQ(copy(CopyDirection::to_host, page, 0), StatusCode::internal);
  expect_violation("generation 2 is there");
  EXPECT_EQ(copy(CopyDirection::to_device, page, 0), StatusCode::internal);
  expect_violation("generation 2 is there");
  command(Kind::trim, 0, 0);
  expect_violation("no sequences");
}

TEST(EmulatedImmediate, TakesEffectInsideSubmit) {
  Sink sink;
  FakeDevice device({.page_count = 2, .page_size = 4, .page_bytes = kBytes}, true);
  ASSERT_TRUE(device.attach(&sink).ok());
  device.fill({0, 1}, 1);
  std::vector<std::byte> buffer(kBytes);
  device.submit(to_host(1, {0, 1}, buffer));
  ASSERT_EQ(sink.answers.size(), 1u);
  EXPECT_EQ(buffer, page_content(1, kBytes));
}

}  // namespace
}  // namespace hitide
