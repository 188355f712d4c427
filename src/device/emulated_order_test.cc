// The emulated device without sequences: what is ordered, what is not, and how that shows. Every
// case of a missing order is found by the order alone, and shows in the bytes where it goes wrong.
#include <gtest/gtest.h>
#include <hitide/emulated_device.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "base/random.h"
#include "tests/support/fake_device.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;
using Drive = EmulatedDeviceOptions::Drive;
using Kind = DeviceFaultKind;
using Codes = std::vector<StatusCode>;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBytes = 64;
const DeviceGeometry kGeometry{.page_count = 8, .page_size = 4, .page_bytes = kBytes};

TimePoint soon() { return std::chrono::steady_clock::now() + 20s; }

class Inbox final : public CompletionSink {
 public:
  void post(CopyCompletion completion) override {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(completion));
    changed_.notify_all();
  }
  std::vector<CopyCompletion> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, soon(), [&] { return answers_.size() >= count; });
    return answers_;
  }
  std::vector<CopyCompletion> answers() { return wait_for(0); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CopyCompletion> answers_;
};

class EmulatedOrder : public testing::Test {
 protected:
  explicit EmulatedOrder(EmulatedDeviceOptions options = {
                             .geometry = kGeometry, .drive = Drive::manual, .latency = 10us}) {
    device_ = EmulatedDevice::create(options).value();
    EXPECT_TRUE(device_->attach(&inbox_).ok());
    compute_ = device_->make_stream();
  }

  void submit(CopyDirection direction, PageId page, std::span<std::byte> buffer) {
    CopyBatch batch;
    batch.op_id = ++op_;
    batch.direction = direction;
    batch.pages = {{page, 0, buffer}};
    device_->submit(std::move(batch));
  }
  void to_host(PageId page) { submit(CopyDirection::to_host, page, host_); }
  void to_device(PageId page) { submit(CopyDirection::to_device, page, source_); }
  Codes last_codes() {
    const auto answers = inbox_.answers();
    return answers.empty() ? Codes{} : answers.back().pages;
  }
  void expect_clean() {
    const auto faults = device_->faults();
    EXPECT_TRUE(faults.empty()) << faults[0].text;
  }
  // Exactly one fault, of this kind and page, whose text names the page.
  void expect_fault(Kind kind, PageId page, std::uint64_t op_id = 0) {
    const auto faults = device_->faults();
    ASSERT_EQ(faults.size(), 1u) << (faults.empty() ? "none" : faults[1].text);
    EXPECT_EQ(to_string(faults[0].kind), to_string(kind)) << faults[0].text;
    EXPECT_EQ(faults[0].page, page) << faults[0].text;
    EXPECT_EQ(faults[0].op_id, op_id) << faults[0].text;
    const std::string name =
        "page " + std::to_string(page.index) + " generation " + std::to_string(page.generation);
    EXPECT_NE(faults[0].text.find(name), std::string::npos) << faults[0].text;
  }

  Inbox inbox_;
  std::unique_ptr<EmulatedDevice> device_;
  DeviceStream compute_;
  Bytes host_ = Bytes(kBytes);
  Bytes source_ = page_content(77, kBytes);
  std::uint64_t op_ = 0;
};

const PageId kPage{3, 1};
const Bytes kPoisoned(kBytes, EmulatedDevice::kPoison);

TEST_F(EmulatedOrder, AnEventOrdersACopyBehindTheWrite) {
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  device_->wait(kToHostStream, device_->record(compute_));
  to_host(kPage);
  device_->run();
  EXPECT_EQ(last_codes(), Codes{StatusCode::ok});
  EXPECT_EQ(host_, page_content(1, kBytes));
  expect_clean();
}

TEST_F(EmulatedOrder, WhatTheHostHasSeenDoneIsOrdered) {
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  ASSERT_TRUE(device_->synchronize(device_->record(compute_), soon()).ok());
  to_host(kPage);
  device_->run();
  EXPECT_EQ(last_codes(), Codes{StatusCode::ok});
  expect_clean();
}

TEST_F(EmulatedOrder, K8_CopyThatReadsBeforeItsWriteIsCaught) {
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  to_host(kPage);
  expect_fault(Kind::unordered_read, kPage, 1);
  device_->run();
  EXPECT_EQ(last_codes(), Codes{StatusCode::internal});
  EXPECT_EQ(host_, kPoisoned);
  expect_fault(Kind::unordered_read, kPage, 1);  // one report for one mistake
}

// The same mistake where the write happened to be done in time.
TEST_F(EmulatedOrder, K8_MissingEventWaitIsCaughtThoughItWentWell) {
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  device_->run();
  to_host(kPage);
  device_->run();
  expect_fault(Kind::unordered_read, kPage, 1);
  EXPECT_EQ(last_codes(), Codes{StatusCode::internal});
}

TEST_F(EmulatedOrder, K8_EventThatWasRecordedTooEarlyIsNoOrder) {
  const DeviceEvent early = device_->record(compute_);
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  device_->wait(kToHostStream, early);
  to_host(kPage);
  expect_fault(Kind::unordered_read, kPage, 1);
}

TEST_F(EmulatedOrder, K8_StreamsOfTheEngineNeedEventsToo) {
  const DeviceStream other = device_->make_stream();
  Bytes out(kBytes);
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  device_->launch_read(other, kPage, out);
  expect_fault(Kind::unordered_read, kPage);
  device_->run();
  EXPECT_NE(out, page_content(1, kBytes)) << "it began while the write was under way";
}

TEST_F(EmulatedOrder, EventsPassOnWhatWasWaitedFor) {
  const DeviceStream second = device_->make_stream();
  const DeviceStream third = device_->make_stream();
  Bytes out(kBytes);
  device_->launch_write(compute_, kPage, page_content(1, kBytes));
  device_->wait(second, device_->record(compute_));
  device_->wait(third, device_->record(second));  // nothing ran on the second
  device_->launch_read(third, kPage, out);
  device_->run();
  EXPECT_EQ(out, page_content(1, kBytes));
  expect_clean();
}

// K8 B097 kind: a load is used before its completion.
TEST_F(EmulatedOrder, K8_ComputeThatReadsAPageBeingLoadedIsCaught) {
  Bytes out(kBytes);
  to_device(kPage);
  device_->launch_read(compute_, kPage, out);
  expect_fault(Kind::unordered_read, kPage);
  device_->run();
  EXPECT_NE(out, source_);
}

TEST_F(EmulatedOrder, ACompletionOrdersWhatTheHostLaunchesAfterIt) {
  Bytes out(kBytes);
  to_device(kPage);
  device_->run();
  device_->launch_read(compute_, kPage, out);
  device_->run();
  EXPECT_EQ(out, source_);
  expect_clean();
}

TEST_F(EmulatedOrder, AHeldCompletionOrdersNothing) {
  device_->hold_completions();
  to_device(kPage);
  device_->run();
  EXPECT_EQ(device_->held_completions(), 1u);
  Bytes out(kBytes);
  device_->launch_read(compute_, kPage, out);
  expect_fault(Kind::unordered_read, kPage);
  device_->release_completions();
  device_->launch_read(compute_, kPage, out);
  expect_fault(Kind::unordered_read, kPage);
  EXPECT_EQ(last_codes(), Codes{StatusCode::ok});
}

TEST_F(EmulatedOrder, K8_PageHandedOutWhileACopyReadsItIsCaught) {
  device_->write(kPage, page_content(1, kBytes));
  to_host(kPage);
  const PageId next{kPage.index, 2};
  device_->launch_write(compute_, next, page_content(2, kBytes));
  expect_fault(Kind::unordered_write, next);
}

TEST_F(EmulatedOrder, K8_PageReleasedWhileACopyReadsItIsCaught) {
  device_->write(kPage, page_content(1, kBytes));
  to_host(kPage);
  device_->release(kPage);
  const auto faults = device_->faults();
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].kind, Kind::unordered_write);
  EXPECT_EQ(faults[0].page, kPage);
  device_->run();
  EXPECT_EQ(last_codes(), Codes{StatusCode::internal});
  EXPECT_EQ(host_, kPoisoned);
}

TEST_F(EmulatedOrder, K8_CopiesOfReleasedPagesAreCaughtAndReadPoison) {
  device_->write(kPage, page_content(1, kBytes));
  device_->release(kPage);
  Bytes out(kBytes);
  device_->launch_read(compute_, kPage, out);
  ASSERT_TRUE(device_->synchronize(device_->record(compute_), soon()).ok());
  EXPECT_EQ(out, kPoisoned);
  expect_fault(Kind::released, kPage);
  to_device(kPage);
  device_->run();
  EXPECT_EQ(last_codes(), Codes{StatusCode::internal});
  EXPECT_EQ(device_->faults().back().kind, Kind::released);
  EXPECT_FALSE(device_->filled(kPage));
}

TEST_F(EmulatedOrder, K8_CopyIntoAPageThatWasHandedOutAnewIsCaught) {
  const PageId next{kPage.index, 2};
  device_->write(next, page_content(2, kBytes));
  to_device(kPage);
  device_->run();
  expect_fault(Kind::reallocated, kPage, 1);
  EXPECT_EQ(last_codes(), Codes{StatusCode::internal});
  EXPECT_EQ(device_->bytes(next), page_content(2, kBytes)) << "the new owner's bytes stay";
}

TEST_F(EmulatedOrder, ReleasedPagesMayBeHandedOutAnew) {
  device_->write(kPage, page_content(1, kBytes));
  device_->release(kPage);
  const PageId next{kPage.index, 2};
  device_->launch_write(compute_, next, page_content(2, kBytes));
  ASSERT_TRUE(device_->synchronize(device_->record(compute_), soon()).ok());
  EXPECT_EQ(device_->bytes(next), page_content(2, kBytes));
  expect_clean();
}

TEST_F(EmulatedOrder, K8_PagesNobodyWroteAreCaught) {
  to_host(kPage);
  device_->run();
  expect_fault(Kind::not_filled, kPage, 1);
  EXPECT_EQ(host_, kPoisoned);
}

TEST_F(EmulatedOrder, HostMemoryOfACopyIsPoisonUntilItIsDone) {
  device_->write(kPage, page_content(1, kBytes));
  to_host(kPage);
  EXPECT_EQ(host_, kPoisoned);
  device_->run();
  EXPECT_EQ(host_, page_content(1, kBytes));
  expect_clean();
}

TEST_F(EmulatedOrder, K8_HostBytesChangedBeforeTheLoadIsDoneAreCaught) {
  to_device(kPage);
  source_[5] ^= std::byte{1};
  device_->run();
  expect_fault(Kind::host_bytes, kPage, 1);
  EXPECT_EQ(last_codes(), Codes{StatusCode::internal});
}

TEST_F(EmulatedOrder, K8_HostMemoryGivenToTwoCopiesIsCaught) {
  device_->write(kPage, page_content(1, kBytes));
  device_->write({4, 1}, page_content(2, kBytes));
  to_host(kPage);
  to_host({4, 1});
  expect_fault(Kind::host_bytes, {4, 1}, 2);
}

TEST_F(EmulatedOrder, TwoLoadsMayReadTheSameHostBytes) {
  to_device(kPage);
  to_device({4, 1});
  device_->run();
  expect_clean();
  EXPECT_EQ(device_->bytes(kPage), device_->bytes({4, 1}));
}

// Commands that name the same page take effect in order, on whatever stream they run.
TEST_F(EmulatedOrder, TheDeviceOrdersItsOwnCopies) {
  device_->write(kPage, page_content(1, kBytes));
  device_->script_latencies(CopyDirection::to_host, {1ms});
  device_->script_latencies(CopyDirection::to_device, {1us});
  to_host(kPage);
  to_device({kPage.index, 2});
  device_->run();
  const auto answers = inbox_.answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].op_id, 1u);
  EXPECT_EQ(host_, page_content(1, kBytes));
  EXPECT_EQ(device_->bytes({kPage.index, 2}), source_);
  expect_clean();
}

TEST_F(EmulatedOrder, ScriptedLatenciesReorderWhatIsNotOrdered) {
  device_->write(kPage, page_content(1, kBytes));
  device_->script_latencies(CopyDirection::to_host, {1ms});
  device_->script_latencies(CopyDirection::to_device, {1us});
  to_host(kPage);
  to_device({5, 1});
  device_->run();
  const auto answers = inbox_.answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].op_id, 2u);
  EXPECT_EQ(answers[1].op_id, 1u);
  expect_clean();
}

TEST_F(EmulatedOrder, SynchronizeSaysWhatCannotCome) {
  EXPECT_EQ(device_->synchronize({}, soon()).code(), StatusCode::failed_precondition);
  EXPECT_TRUE(device_->synchronize(device_->record(compute_), soon()).ok());
}

TEST_F(EmulatedOrder, CallsOnStreamsThatAreNotThereAreCaught) {
  Bytes out(kBytes);
  device_->launch_read({}, kPage, out);
  device_->wait(compute_, {});
  EXPECT_FALSE(device_->record({17}).index < 1000);
  EXPECT_EQ(device_->faults().size(), 3u);
  for (int i = 0; i < 100; ++i) device_->make_stream();
  EXPECT_EQ(device_->make_stream().index, UINT32_MAX);
}

TEST(EmulatedDevice, RefusesOptionsThatMakeNoSense) {
  const auto code = [](DeviceGeometry geometry, Duration latency) {
    return EmulatedDevice::create({.geometry = geometry, .latency = latency}).status().code();
  };
  EXPECT_EQ(code(kGeometry, 0us), StatusCode::ok);
  EXPECT_EQ(code(kGeometry, -1us), StatusCode::invalid_argument);
  EXPECT_EQ(code({0, 4, 64, 0}, 0us), StatusCode::invalid_argument);
  EXPECT_EQ(code({8, 0, 64, 0}, 0us), StatusCode::invalid_argument);
  EXPECT_EQ(code({8, 4, 0, 0}, 0us), StatusCode::invalid_argument);
}

TEST(EmulatedDevice, DevicesWithSequencesHaveNoStreams) {
  auto device =
      EmulatedDevice::create({.geometry = {8, 4, kBytes, 4}, .drive = Drive::manual}).value();
  EXPECT_EQ(device->make_stream().index, UINT32_MAX);
  device->release(kPage);
  device->launch_write(kToHostStream, kPage, Bytes(kBytes));
  EXPECT_EQ(device->faults().size(), 2u);
}

// A thread of its own, real time: everything is answered once, whoever submits.
TEST(EmulatedDevice, AThreadCarriesOutWhatManySubmit) {
  Inbox inbox;
  auto device = EmulatedDevice::create({.geometry = {64, 4, kBytes, 0},
                                        .drive = Drive::thread,
                                        .latency = 50us,
                                        .jitter = 200us,
                                        .seed = 5})
                    .value();
  ASSERT_TRUE(device->attach(&inbox).ok());
  constexpr int kThreads = 4;
  constexpr int kEach = 16;
  std::vector<Bytes> buffers(kThreads * kEach, Bytes(kBytes));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const auto n = static_cast<std::uint32_t>(t * kEach + i);
        device->write({n, 1}, page_content(n, kBytes));
        CopyBatch batch;
        batch.op_id = n + 1;
        batch.pages = {{{n, 1}, 0, buffers[n]}};
        device->submit(std::move(batch));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto answers = inbox.wait_for(kThreads * kEach);
  ASSERT_EQ(answers.size(), static_cast<std::size_t>(kThreads * kEach));
  std::set<std::uint64_t> seen;
  for (const CopyCompletion& answer : answers) {
    EXPECT_TRUE(seen.insert(answer.op_id).second);
    EXPECT_EQ(answer.pages, Codes{StatusCode::ok});
  }
  for (std::uint32_t n = 0; n < kThreads * kEach; ++n) {
    EXPECT_EQ(buffers[n], page_content(n, kBytes)) << n;
  }
  EXPECT_TRUE(device->faults().empty());
  const DeviceStream stream = device->make_stream();
  device->launch_write(stream, {0, 2}, page_content(9, kBytes));
  ASSERT_TRUE(device->synchronize(device->record(stream), soon()).ok());
  EXPECT_TRUE(device->filled({0, 2}));
}

TEST(EmulatedDevice, DetachAnswersWhatIsUnderWay) {
  Inbox inbox;
  auto device =
      EmulatedDevice::create({.geometry = kGeometry, .drive = Drive::thread, .latency = 1h})
          .value();
  ASSERT_TRUE(device->attach(&inbox).ok());
  Bytes buffer(kBytes);
  device->write(kPage, page_content(1, kBytes));
  for (std::uint64_t op = 1; op <= 2; ++op) {
    CopyBatch batch;
    batch.op_id = op;
    batch.direction = CopyDirection::to_device;
    batch.pages = {{{static_cast<std::uint32_t>(op), 1}, 0, buffer}};
    device->submit(std::move(batch));
  }
  device->detach();
  const auto answers = inbox.answers();
  ASSERT_EQ(answers.size(), 2u);
  for (const auto& answer : answers) EXPECT_EQ(answer.pages, Codes{StatusCode::cancelled});
  EXPECT_EQ(device->queued(), 0u);
}

// Whatever the seed: what is ordered ends well, what is not is found. The engine computes pages on
// a stream and copies them; now and then it forgets to wait, and that page alone is reported.
TEST(EmulatedDevice, FindsEveryForgottenWaitWhateverTheTimes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Inbox inbox;
    auto device = EmulatedDevice::create({.geometry = kGeometry,
                                          .drive = Drive::manual,
                                          .latency = 1us,
                                          .jitter = 20us,
                                          .seed = seed})
                      .value();
    ASSERT_TRUE(device->attach(&inbox).ok());
    const std::array<DeviceStream, 2> compute = {device->make_stream(), device->make_stream()};
    std::array<Bytes, 8> buffers;
    std::set<std::uint32_t> forgotten;
    for (std::uint32_t page = 0; page < 8; ++page) {
      buffers[page].resize(kBytes);
      const DeviceStream stream = compute[random.below(2)];
      device->launch_write(stream, {page, 1}, page_content(page, kBytes));
      CopyBatch batch;
      batch.op_id = page + 1;
      batch.pages = {{{page, 1}, 0, buffers[page]}};
      const std::uint64_t choice = random.below(4);
      const DeviceEvent event = device->record(stream);
      if (choice == 0) {
        forgotten.insert(page);
      } else if (choice == 1) {
        ASSERT_TRUE(device->synchronize(event, soon()).ok());
      } else {
        device->wait(kToHostStream, event);
      }
      device->submit(std::move(batch));
      while (random.below(2) == 0 && device->step()) {
      }
    }
    device->run();
    std::set<std::uint32_t> found;
    for (const DeviceFault& fault : device->faults()) {
      EXPECT_EQ(fault.kind, Kind::unordered_read) << fault.text;
      found.insert(fault.page.index);
    }
    EXPECT_EQ(found, forgotten);
    for (const CopyCompletion& answer : inbox.answers()) {
      const auto page = static_cast<std::uint32_t>(answer.op_id - 1);
      const bool lost = forgotten.count(page) != 0;
      EXPECT_EQ(answer.pages, Codes{lost ? StatusCode::internal : StatusCode::ok});
      if (!lost) {
        EXPECT_EQ(buffers[page], page_content(page, kBytes));
      }
    }
  }
}

}  // namespace
}  // namespace hitide
