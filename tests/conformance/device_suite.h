// The contract of Device (include/hitide/device.h), as tests over every device.
//
// To run it over a device, write a DeviceRig that does the engine's part, and instantiate
// DeviceSuite with a DeviceKind in the one file of a test program that includes this header; for a
// device with sequences also SequenceDeviceSuite. Needs GoogleTest and the public headers alone.
//
// Devices are opened with 16 pages at least, and with 4 sequences at least or none. A case may do
// what the contract forbids, to see that it is refused and answered; a device that reports such
// things does.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <hitide/device.h>

namespace hitide {

// A fresh device, to which nothing is attached, and the engine's part of it.
class DeviceRig {
 public:
  virtual ~DeviceRig() = default;
  virtual Device& device() = 0;
  // Computes a page; done when it returns. Its bytes follow from `content` and those of the pages
  // before it. `sequence` holds the page at `position`, and pages before it are computed; both say
  // nothing to a device without sequences.
  virtual void compute(SequenceId sequence, std::uint32_t position, PageId page,
                       std::uint64_t content) = 0;
  // Returns when what was submitted has taken effect. Completions may come a little later.
  virtual void settle() = 0;
};

struct DeviceKind {
  std::string name;  // letters and digits
  std::function<std::unique_ptr<DeviceRig>()> open;
  friend std::ostream& operator<<(std::ostream& out, const DeviceKind& kind) {
    return out << kind.name;
  }
};

class DeviceSuite : public testing::TestWithParam<DeviceKind>, private CompletionSink {
 protected:
  using Bytes = std::vector<std::byte>;
  using Codes = std::vector<StatusCode>;
  using Pages = std::vector<PageId>;
  using Kind = SequenceCommand::Kind;

  void SetUp() override {
    rig_ = GetParam().open();
    ASSERT_NE(rig_, nullptr);
    ASSERT_TRUE(device().attach(this).ok());
  }
  void TearDown() override {
    if (rig_ == nullptr) return;
    device().detach();
    const std::lock_guard lock(mutex_);
    for (const auto& [op_id, answers] : answers_) {
      EXPECT_EQ(answers.size(), 1u) << "answers to batch " << op_id;
    }
    rig_.reset();
  }

  Device& device() { return rig_->device(); }
  DeviceRig& rig() { return *rig_; }
  bool by_sequence() { return device().geometry().sequence_count > 0; }
  Bytes buffer() { return Bytes(device().geometry().page_bytes, std::byte{0x11}); }

  void command(Kind kind, std::int32_t sequence, std::uint32_t position, Pages pages = {}) {
    device().submit(SequenceCommand{kind, SequenceId{sequence}, position, std::move(pages)});
  }
  // The pages stand in the sequence from `position` on, new.
  void place(std::int32_t sequence, std::uint32_t position, const Pages& pages) {
    if (by_sequence()) command(Kind::extend, sequence, position, pages);
    rig().settle();
  }
  // Places and computes one page for each content.
  void make(std::int32_t sequence, const Pages& pages, const std::vector<std::uint64_t>& contents) {
    place(sequence, 0, pages);
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      rig().compute(SequenceId{sequence}, i, pages[i], contents[i]);
    }
  }
  // The sequence gives up its pages behind the first `kept` ones.
  void give_back(std::int32_t sequence, std::uint32_t kept = 0) {
    if (by_sequence()) command(Kind::trim, sequence, kept);
  }

  // Submits a batch of consecutive positions; its number.
  std::uint64_t submit(CopyDirection direction, std::int32_t sequence, std::uint32_t position,
                       const Pages& pages, const std::vector<std::span<std::byte>>& payloads) {
    CopyBatch batch;
    {
      const std::lock_guard lock(mutex_);
      batch.op_id = ++last_op_;
      answers_[batch.op_id];
    }
    batch.direction = direction;
    if (direction == CopyDirection::to_device && by_sequence()) {
      batch.sequence = SequenceId{sequence};
    }
    for (std::size_t i = 0; i < pages.size(); ++i) {
      batch.pages.push_back({pages[i], position + static_cast<std::uint32_t>(i), payloads[i]});
    }
    const std::uint64_t op_id = batch.op_id;
    device().submit(std::move(batch));
    return op_id;
  }
  // The first answer to a batch; fails when none comes.
  Codes answer(std::uint64_t op_id) {
    std::unique_lock lock(mutex_);
    const bool came =
        posted_.wait_for(lock, std::chrono::seconds(20), [&] { return !answers_[op_id].empty(); });
    EXPECT_TRUE(came) << "no answer to batch " << op_id;
    return came ? answers_[op_id].front() : Codes{};
  }
  // Copies pages that stand at 0, 1, ... to the host.
  Codes save(const Pages& pages, std::vector<Bytes>& bytes) {
    bytes.assign(pages.size(), buffer());
    const std::vector<std::span<std::byte>> payloads(bytes.begin(), bytes.end());
    const std::uint64_t op_id = submit(CopyDirection::to_host, -1, 0, pages, payloads);
    rig().settle();
    return answer(op_id);
  }
  Codes load(std::int32_t sequence, std::uint32_t position, const Pages& pages,
             std::vector<Bytes>& bytes) {
    const std::vector<std::span<std::byte>> payloads(bytes.begin(), bytes.end());
    const std::uint64_t op_id =
        submit(CopyDirection::to_device, sequence, position, pages, payloads);
    rig().settle();
    return answer(op_id);
  }
  StatusCode save_one(PageId page, std::uint32_t position, Bytes& bytes) {
    bytes = buffer();
    const std::uint64_t op_id = submit(CopyDirection::to_host, -1, position, {page}, {bytes});
    rig().settle();
    const Codes codes = answer(op_id);
    EXPECT_EQ(codes.size(), 1u);
    return codes.empty() ? StatusCode::ok : codes[0];
  }
  static Codes all_ok(std::size_t count) { return Codes(count, StatusCode::ok); }
  std::size_t answers_in_all() {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [op_id, answers] : answers_) count += answers.size();
    return count;
  }
  CompletionSink* sink() { return this; }

 private:
  void post(CopyCompletion completion) override {
    const std::lock_guard lock(mutex_);
    answers_[completion.op_id].push_back(std::move(completion.pages));
    posted_.notify_all();
  }

  std::unique_ptr<DeviceRig> rig_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<std::uint64_t, std::vector<Codes>> answers_;  // guarded by mutex_; by op_id
  std::uint64_t last_op_ = 0;                            // guarded by mutex_
};

TEST_P(DeviceSuite, GeometryCanBeLivedWith) {
  const DeviceGeometry geometry = device().geometry();
  EXPECT_GE(geometry.page_count, 16u);
  EXPECT_GE(geometry.page_size, 1u);
  EXPECT_GE(geometry.page_bytes, 1u);
  EXPECT_TRUE(geometry.sequence_count == 0 || geometry.sequence_count >= 4);
}

TEST_P(DeviceSuite, AttachesOnce) {
  EXPECT_EQ(device().attach(sink()).code(), StatusCode::failed_precondition);
  device().detach();
  EXPECT_TRUE(device().attach(sink()).ok());
}

TEST_P(DeviceSuite, SavedPagesComeBackAsTheyWere) {
  const Pages first = {{0, 1}, {1, 1}, {2, 1}};
  const Pages second = {{5, 1}, {3, 1}, {4, 1}};
  make(0, first, {1, 2, 3});
  std::vector<Bytes> saved;
  ASSERT_EQ(save(first, saved), all_ok(3));
  EXPECT_NE(saved[0], saved[1]);
  EXPECT_NE(saved[1], saved[2]);
  give_back(0);
  place(1, 0, second);
  ASSERT_EQ(load(1, 0, second, saved), all_ok(3));
  std::vector<Bytes> again;
  ASSERT_EQ(save(second, again), all_ok(3));
  EXPECT_EQ(again, saved);
}

TEST_P(DeviceSuite, EqualContentsGiveEqualBytesAndOthersDoNot) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  make(1, {{2, 1}, {3, 1}}, {1, 2});
  make(2, {{4, 1}, {5, 1}}, {1, 9});
  std::vector<Bytes> one, same, other;
  ASSERT_EQ(save({{0, 1}, {1, 1}}, one), all_ok(2));
  ASSERT_EQ(save({{2, 1}, {3, 1}}, same), all_ok(2));
  ASSERT_EQ(save({{4, 1}, {5, 1}}, other), all_ok(2));
  EXPECT_EQ(one, same);
  EXPECT_EQ(one[0], other[0]);
  EXPECT_NE(one[1], other[1]);
}

TEST_P(DeviceSuite, CommandsTakeEffectInOrder) {
  const Pages old = {{0, 1}, {1, 1}};
  const Pages anew = {{0, 2}, {1, 2}};
  make(0, old, {1, 2});
  make(1, {{2, 1}, {3, 1}}, {3, 4});
  std::vector<Bytes> want, others;
  ASSERT_EQ(save(old, want), all_ok(2));
  ASSERT_EQ(save({{2, 1}, {3, 1}}, others), all_ok(2));
  // Nothing waits: the first copy reads the pages before they are given back and loaded anew.
  std::vector<Bytes> read(2, buffer());
  const std::uint64_t saving =
      submit(CopyDirection::to_host, -1, 0, old, {read.begin(), read.end()});
  give_back(0);
  if (by_sequence()) command(Kind::extend, 0, 0, anew);
  const std::uint64_t loading =
      submit(CopyDirection::to_device, 0, 0, anew, {others.begin(), others.end()});
  rig().settle();
  EXPECT_EQ(answer(saving), all_ok(2));
  EXPECT_EQ(answer(loading), all_ok(2));
  EXPECT_EQ(read, want);
  std::vector<Bytes> now;
  ASSERT_EQ(save(anew, now), all_ok(2));
  EXPECT_EQ(now, others);
}

TEST_P(DeviceSuite, BatchesWithoutPagesAreAnswered) {
  const std::uint64_t op_id = submit(CopyDirection::to_host, -1, 0, {}, {});
  rig().settle();
  EXPECT_TRUE(answer(op_id).empty());
}

TEST_P(DeviceSuite, EveryPageHasAResultOfItsOwn) {
  const Pages pages = {{0, 1}, {1, 1}};
  place(0, 0, pages);
  rig().compute(SequenceId{0}, 0, pages[0], 1);
  std::vector<Bytes> bytes;
  const Codes codes = save(pages, bytes);
  ASSERT_EQ(codes.size(), 2u);
  EXPECT_EQ(codes[0], StatusCode::ok);
  EXPECT_NE(codes[1], StatusCode::ok) << "a page that nobody has computed";
}

TEST_P(DeviceSuite, PagesThatAreNotThereAreRefused) {
  make(0, {{0, 1}}, {1});
  Bytes bytes;
  EXPECT_NE(save_one({0, 2}, 0, bytes), StatusCode::ok) << "a generation to come";
  EXPECT_NE(save_one({7, 1}, 0, bytes), StatusCode::ok) << "a page that was never handed out";
  EXPECT_NE(save_one({device().geometry().page_count, 1}, 0, bytes), StatusCode::ok);
  EXPECT_NE(save_one(PageId{}, 0, bytes), StatusCode::ok);
  EXPECT_EQ(save_one({0, 1}, 0, bytes), StatusCode::ok);
}

TEST_P(DeviceSuite, GenerationsThatHavePassedAreRefused) {
  make(0, {{0, 1}}, {1});
  give_back(0);
  make(1, {{0, 2}}, {2});
  Bytes bytes;
  EXPECT_NE(save_one({0, 1}, 0, bytes), StatusCode::ok);
  EXPECT_EQ(save_one({0, 2}, 0, bytes), StatusCode::ok);
}

TEST_P(DeviceSuite, PayloadsOfAnotherSizeAreRefused) {
  make(0, {{0, 1}}, {1});
  Bytes bytes = buffer();
  const std::span<std::byte> all(bytes);
  for (const std::span<std::byte> payload : {all.first(all.size() - 1), all.first(0)}) {
    const std::uint64_t op_id = submit(CopyDirection::to_host, -1, 0, {{0, 1}}, {payload});
    rig().settle();
    const Codes codes = answer(op_id);
    ASSERT_EQ(codes.size(), 1u);
    EXPECT_NE(codes[0], StatusCode::ok);
  }
}

TEST_P(DeviceSuite, CopiesStayInTheirPayload) {
  make(0, {{0, 1}}, {1});
  constexpr std::size_t kGuard = 512;
  const std::size_t size = device().geometry().page_bytes;
  Bytes bytes(size + 2 * kGuard, std::byte{0xee});
  const std::uint64_t op_id =
      submit(CopyDirection::to_host, -1, 0, {{0, 1}}, {std::span(bytes).subspan(kGuard, size)});
  rig().settle();
  ASSERT_EQ(answer(op_id), all_ok(1));
  const auto untouched = [&](std::size_t begin) {
    return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                       bytes.begin() + static_cast<std::ptrdiff_t>(begin + kGuard),
                       [](std::byte byte) { return byte == std::byte{0xee}; });
  };
  EXPECT_TRUE(untouched(0));
  EXPECT_TRUE(untouched(kGuard + size));
}

TEST_P(DeviceSuite, ManyThreadsSubmitAndEachBatchIsAnsweredOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEach = 8;
  const Pages pages = {{0, 1}, {1, 1}};
  make(0, pages, {1, 2});
  std::vector<Bytes> want;
  ASSERT_EQ(save(pages, want), all_ok(2));
  std::vector<std::vector<Bytes>> read(kThreads * kEach, std::vector<Bytes>(2, buffer()));
  std::vector<std::uint64_t> op_ids(read.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t * kEach; i < (t + 1) * kEach; ++i) {
        op_ids[i] = submit(CopyDirection::to_host, -1, 0, pages, {read[i].begin(), read[i].end()});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  rig().settle();
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(answer(op_ids[i]), all_ok(2));
    EXPECT_EQ(read[i], want);
  }  // and not twice: TearDown
}

TEST_P(DeviceSuite, DetachAnswersEverythingAndThenNothingComes) {
  const Pages pages = {{0, 1}, {1, 1}};
  make(0, pages, {1, 2});
  std::vector<std::vector<Bytes>> read(8, std::vector<Bytes>(2, buffer()));
  std::vector<std::uint64_t> op_ids;
  for (std::vector<Bytes>& bytes : read) {
    op_ids.push_back(submit(CopyDirection::to_host, -1, 0, pages, {bytes.begin(), bytes.end()}));
  }
  device().detach();
  EXPECT_EQ(answers_in_all(), op_ids.size()) << "detach() returns when all is answered";
  for (const std::uint64_t op_id : op_ids) {
    const Codes codes = answer(op_id);
    ASSERT_EQ(codes.size(), 2u);
    for (const StatusCode code : codes) {
      EXPECT_TRUE(code == StatusCode::ok || code == StatusCode::cancelled) << to_string(code);
    }
  }
  rig().settle();
  EXPECT_EQ(answers_in_all(), op_ids.size());
}

// For devices whose pages are reached through sequences.
class SequenceDeviceSuite : public DeviceSuite {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SequenceDeviceSuite);

TEST_P(SequenceDeviceSuite, SharedPagesOutliveOneOfTheirSequences) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  std::vector<Bytes> want;
  ASSERT_EQ(save({{0, 1}, {1, 1}}, want), all_ok(2));
  command(Kind::bind, 1, 0, {{0, 1}});
  command(Kind::trim, 0, 0);
  rig().settle();
  Bytes bytes;
  EXPECT_EQ(save_one({0, 1}, 0, bytes), StatusCode::ok);
  EXPECT_EQ(bytes, want[0]);
  EXPECT_NE(save_one({1, 1}, 1, bytes), StatusCode::ok) << "no sequence holds it any more";
}

TEST_P(SequenceDeviceSuite, BoundSequencesGoTheirOwnWay) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  command(Kind::bind, 1, 0, {{0, 1}});
  command(Kind::extend, 1, 1, {{2, 1}});
  rig().settle();
  rig().compute(SequenceId{1}, 1, {2, 1}, 9);
  make(2, {{3, 1}, {4, 1}}, {1, 9});
  std::vector<Bytes> own, shared, reference;
  ASSERT_EQ(save({{0, 1}, {1, 1}}, own), all_ok(2));
  ASSERT_EQ(save({{0, 1}, {2, 1}}, shared), all_ok(2));
  ASSERT_EQ(save({{3, 1}, {4, 1}}, reference), all_ok(2));
  EXPECT_EQ(shared, reference) << "as if it had been computed alone";
  EXPECT_NE(own[1], shared[1]);
}

TEST_P(SequenceDeviceSuite, TrimKeepsTheFirstPages) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  command(Kind::trim, 0, 1);
  command(Kind::extend, 0, 1, {{1, 2}});
  rig().settle();
  Bytes bytes;
  EXPECT_EQ(save_one({0, 1}, 0, bytes), StatusCode::ok);
  EXPECT_NE(save_one({1, 1}, 1, bytes), StatusCode::ok);
  EXPECT_NE(save_one({1, 2}, 1, bytes), StatusCode::ok) << "nobody has computed it";
  rig().compute(SequenceId{0}, 1, {1, 2}, 2);
  EXPECT_EQ(save_one({1, 2}, 1, bytes), StatusCode::ok);
}

TEST_P(SequenceDeviceSuite, ReplacedPagesGiveWayToEqualOnes) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  make(1, {{2, 1}, {3, 1}, {4, 1}}, {1, 2, 3});
  std::vector<Bytes> want;
  ASSERT_EQ(save({{2, 1}, {3, 1}, {4, 1}}, want), all_ok(3));
  command(Kind::replace, 1, 0, {{0, 1}, {1, 1}});
  command(Kind::trim, 0, 0);
  rig().settle();
  std::vector<Bytes> now;
  ASSERT_EQ(save({{0, 1}, {1, 1}, {4, 1}}, now), all_ok(3));
  EXPECT_EQ(now, want);
  Bytes bytes;
  EXPECT_NE(save_one({2, 1}, 0, bytes), StatusCode::ok);
}

TEST_P(SequenceDeviceSuite, LoadsFollowWhatTheSequenceHolds) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  std::vector<Bytes> saved;
  ASSERT_EQ(save({{0, 1}, {1, 1}}, saved), all_ok(2));
  place(1, 0, {{2, 1}, {3, 1}});
  std::vector<Bytes> second = {saved[1]};
  const Codes early = load(1, 1, {{3, 1}}, second);
  ASSERT_EQ(early.size(), 1u);
  EXPECT_NE(early[0], StatusCode::ok) << "nothing stands before it";
  EXPECT_EQ(load(1, 0, {{2, 1}, {3, 1}}, saved), all_ok(2));
  std::vector<Bytes> again;
  ASSERT_EQ(save({{2, 1}, {3, 1}}, again), all_ok(2));
  EXPECT_EQ(again, saved);
}

TEST_P(SequenceDeviceSuite, BehindAPageThatFailsNothingIsPlaced) {
  make(0, {{0, 1}, {1, 1}}, {1, 2});
  std::vector<Bytes> saved;
  ASSERT_EQ(save({{0, 1}, {1, 1}}, saved), all_ok(2));
  place(1, 0, {{2, 1}, {3, 1}});
  const std::span<std::byte> small = std::span(saved[0]).first(saved[0].size() - 1);
  const std::uint64_t op_id =
      submit(CopyDirection::to_device, 1, 0, {{2, 1}, {3, 1}}, {small, saved[1]});
  rig().settle();
  const Codes codes = answer(op_id);
  ASSERT_EQ(codes.size(), 2u);
  EXPECT_NE(codes[0], StatusCode::ok);
  EXPECT_NE(codes[1], StatusCode::ok);
  Bytes bytes;
  EXPECT_NE(save_one({3, 1}, 1, bytes), StatusCode::ok);
}

}  // namespace hitide
