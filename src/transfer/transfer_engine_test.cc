#include "transfer/transfer_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>

#include "base/random.h"
#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"

namespace hitide {
namespace {

constexpr std::uint64_t kPageBytes = 600;
constexpr std::uint32_t kPageCount = 64;

TimePoint soon(Duration in = std::chrono::seconds(60)) {
  return SystemClock::instance().now() + in;
}

// Keeps every completion, in the order of arrival.
class Answers {
 public:
  void take(Completion completion) {
    const std::lock_guard lock(mutex_);
    order_.push_back(completion.id);
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    threads_.push_back(name);
    answers_[completion.id].push_back(std::move(completion));
    changed_.notify_all();
  }
  // The answer, once it is there. Fails the test when it does not come.
  Completion wait(OpId id) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_until(lock, soon(), [&] { return answers_.count(id) != 0; });
    EXPECT_TRUE(came) << "no answer to operation " << id;
    return came ? answers_[id].front() : Completion{};
  }
  bool has(OpId id) {
    const std::lock_guard lock(mutex_);
    return answers_.count(id) != 0;
  }
  std::vector<OpId> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  std::vector<std::string> threads() {
    const std::lock_guard lock(mutex_);
    return threads_;
  }
  std::map<OpId, std::vector<Completion>> all() {
    const std::lock_guard lock(mutex_);
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<OpId, std::vector<Completion>> answers_;
  std::vector<OpId> order_;
  std::vector<std::string> threads_;
};

// Throws on command, as a broken backend does.
class ThrowingStore final : public ObjectStore {
 public:
  explicit ThrowingStore(std::unique_ptr<ObjectStore> inner) : inner_(std::move(inner)) {}
  enum class What { nothing, exception, other };
  std::atomic<What> next{What::nothing};

  StoreCapabilities capabilities() const override { return inner_->capabilities(); }
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    fail_on_command();
    return inner_->exists(keys, out, options);
  }
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    fail_on_command();
    return inner_->get(items, out, options);
  }
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    fail_on_command();
    return inner_->put(items, out, options);
  }
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return inner_->remove(keys, out, options);
  }
  Status register_memory(const MemoryRegion& region) override {
    return inner_->register_memory(region);
  }
  Status unregister_memory(std::span<std::byte> bytes) override {
    return inner_->unregister_memory(bytes);
  }
  StoreStats stats() const override { return inner_->stats(); }
  Status close(TimePoint deadline) override { return inner_->close(deadline); }

 private:
  void fail_on_command() {
    const What what = next.exchange(What::nothing);
    if (what == What::exception) {
      throw std::runtime_error("planted");  // tidy: allow-throw plays a broken backend
    }
    if (what == What::other) throw 42;  // tidy: allow-throw plays a broken backend
  }
  const std::unique_ptr<ObjectStore> inner_;
};

PageKey key_of(std::uint64_t number) {
  PageKey key;
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

ModelSpec one_pool_model() {
  ModelSpec model;
  model.weights_digest = "w";
  PoolSpec pool;
  pool.page_bytes = kPageBytes;
  model.pools = {pool};
  return model;
}

class TransferEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    const ModelSpec model = one_pool_model();
    ASSERT_TRUE(validate(model).ok());
    auto faults = std::make_unique<FaultStore>(std::make_unique<MemoryStore>(64u << 20));
    faults_ = faults.get();
    objects_ = std::make_unique<ThrowingStore>(std::move(faults));
    store_ = std::make_unique<PageStore>(*objects_, model);
    Result<std::unique_ptr<HostPool>> pool = HostPool::create(model.anchor(), kPageCount);
    ASSERT_TRUE(pool.ok()) << pool.status().to_string();
    pool_ = std::move(pool).value();
    for (std::uint32_t i = 0; i < kPageCount; ++i) pool_->on_allocated(PageId{i, 1});
  }
  void TearDown() override {
    if (faults_ != nullptr) {
      for (const StoreCall call : {StoreCall::exists, StoreCall::get, StoreCall::put}) {
        faults_->release(call);
      }
    }
    if (engine_) {
      EXPECT_TRUE(engine_->stop(soon()).ok());
    }
    for (const auto& [id, answers] : answers_.all()) {
      EXPECT_EQ(answers.size(), 1u) << "operation " << id << " was answered more than once";
    }
  }

  void start(const TransferOptions& options, const Clock& clock = SystemClock::instance()) {
    Result<std::unique_ptr<TransferEngine>> engine = TransferEngine::start(
        *store_, *pool_, options,
        [this](Completion answer) {
          if (on_answer_) on_answer_(answer.id);
          answers_.take(std::move(answer));
        },
        clock);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }

  static std::vector<PageKey> keys(std::uint64_t first, std::size_t count) {
    std::vector<PageKey> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(key_of(first + i));
    return keys;
  }
  static std::vector<PageId> pages(std::uint32_t first, std::size_t count) {
    std::vector<PageId> pages;
    for (std::uint32_t i = 0; i < count; ++i) pages.push_back(PageId{first + i, 1});
    return pages;
  }
  void fill(PageId page, int value) { std::memset(pool_->payload(page).data(), value, kPageBytes); }
  void write(OpId id, std::uint64_t first_key, std::size_t count = 1, std::uint32_t page = 0) {
    engine_->submit(
        StorageWriteOp{.id = id, .keys = keys(first_key, count), .host_pages = pages(page, count)});
  }
  void read(OpId id, std::uint64_t first_key, std::size_t count = 1, std::uint32_t page = 32,
            TimePoint deadline = kNoDeadline) {
    engine_->submit(StorageReadOp{.id = id,
                                  .keys = keys(first_key, count),
                                  .host_pages = pages(page, count),
                                  .deadline = deadline});
  }
  void read_unwaited(OpId id, std::uint64_t first_key) {
    engine_->submit(StorageReadOp{
        .id = id, .keys = keys(first_key, 1), .host_pages = pages(32, 1), .waited = false});
  }
  void query(OpId id, std::uint64_t first_key, std::size_t count = 1,
             TimePoint deadline = kNoDeadline) {
    engine_->submit(StorageQueryOp{.id = id, .keys = keys(first_key, count), .deadline = deadline});
  }
  bool held(StoreCall call, std::uint64_t count = 1) {
    return faults_->wait_until_held(call, count, soon());
  }

  ManualClock clock_;
  FaultStore* faults_ = nullptr;
  std::unique_ptr<ThrowingStore> objects_;
  std::unique_ptr<PageStore> store_;
  std::unique_ptr<HostPool> pool_;
  Answers answers_;
  std::function<void(OpId)> on_answer_;  // set before start()
  std::unique_ptr<TransferEngine> engine_;
};

using Codes = std::vector<StatusCode>;

TEST_F(TransferEngineTest, WhatIsWrittenIsFoundAndReadBack) {
  start({.threads = 2, .batch_pages = 2});
  for (std::uint32_t i = 0; i < 5; ++i) fill(PageId{i, 1}, static_cast<int>(i + 1));
  write(1, 100, 5);
  const Completion written = answers_.wait(1);
  EXPECT_EQ(written.pages, Codes(5, StatusCode::ok));
  EXPECT_EQ(written.bytes, 5 * (kPageBytes + kEnvelopeBytes));
  query(2, 100, 6);
  EXPECT_EQ(answers_.wait(2).pages, (Codes{StatusCode::ok, StatusCode::ok, StatusCode::ok,
                                           StatusCode::ok, StatusCode::ok, StatusCode::not_found}));
  query(20, 99, 7);
  EXPECT_EQ(answers_.wait(20).pages, Codes(7, StatusCode::not_found)) << "a prefix has no gap";
  read(3, 100, 6);
  const Completion loaded = answers_.wait(3);
  EXPECT_EQ(loaded.pages, (Codes{StatusCode::ok, StatusCode::ok, StatusCode::ok, StatusCode::ok,
                                 StatusCode::ok, StatusCode::not_found}));
  for (std::uint32_t i = 0; i < 5; ++i) {
    const std::span<std::byte> payload = pool_->payload(PageId{32 + i, 1});
    EXPECT_TRUE(std::all_of(payload.begin(), payload.end(), [i](std::byte byte) {
      return byte == static_cast<std::byte>(i + 1);
    })) << i;
  }
  const LaneStats reads = engine_->stats(TransferLane::read);
  EXPECT_EQ(reads.operations, 1u);
  EXPECT_EQ(reads.pages, 6u);
  EXPECT_EQ(reads.pages_ok, 5u);
  for (const std::string& name : answers_.threads()) {
    EXPECT_TRUE(name.starts_with("hitide-")) << name;
  }
}

TEST_F(TransferEngineTest, RefusesWrongOptionsAndWrongOperations) {
  for (const TransferOptions& options :
       {TransferOptions{.threads = 0}, TransferOptions{.write_queue_max = 0},
        TransferOptions{.batch_pages = 0}, TransferOptions{.call_time_max = Duration::zero()}}) {
    EXPECT_EQ(TransferEngine::start(*store_, *pool_, options, [](Completion) {}).status().code(),
              StatusCode::invalid_argument);
  }
  start({});
  engine_->submit(StorageReadOp{.id = 1, .keys = keys(1, 2), .host_pages = pages(0, 1)});
  EXPECT_EQ(answers_.wait(1).pages, Codes(2, StatusCode::invalid_argument));
  engine_->submit(StorageWriteOp{.id = 2, .keys = keys(1, 1), .host_pages = pages(0, 2)});
  EXPECT_EQ(answers_.wait(2).pages, Codes(1, StatusCode::invalid_argument));
  write(3, 1, 2, kPageCount - 1);  // the second page is not in the pool
  const Completion outside = answers_.wait(3);
  ASSERT_EQ(outside.pages.size(), 2u);
  EXPECT_EQ(outside.pages[0], StatusCode::ok);
  EXPECT_NE(outside.pages[1], StatusCode::ok);
  engine_->submit(StorageQueryOp{.id = 4, .keys = {}});
  EXPECT_TRUE(answers_.wait(4).pages.empty());
}

TEST_F(TransferEngineTest, NoDataCallDelaysAQuery) {
  start({.threads = 1});
  faults_->hold(StoreCall::get);
  faults_->hold(StoreCall::put);
  read(1, 1);
  ASSERT_TRUE(held(StoreCall::get));
  write(2, 2);
  query(3, 1);
  EXPECT_EQ(answers_.wait(3).pages, Codes{StatusCode::not_found});
  EXPECT_FALSE(answers_.has(1));
  EXPECT_FALSE(answers_.has(2));
}

TEST_F(TransferEngineTest, ReadsGoBeforeWrites) {
  start({.threads = 1});
  faults_->hold(StoreCall::put);
  write(1, 1);
  ASSERT_TRUE(held(StoreCall::put));
  write(2, 2);
  write(3, 3);
  read(4, 1);
  read(5, 1);
  faults_->release(StoreCall::put);
  answers_.wait(3);
  EXPECT_EQ(answers_.order(), (std::vector<OpId>{1, 4, 5, 2, 3}));
}

TEST_F(TransferEngineTest, AWaitingWriteGetsItsTurnAmongManyReads) {
  start({.threads = 1});
  faults_->hold(StoreCall::get);
  read(100, 1);
  ASSERT_TRUE(held(StoreCall::get));
  write(1, 1);
  for (OpId id = 101; id <= 130; ++id) read(id, 1);
  faults_->release(StoreCall::get);
  answers_.wait(1);
  answers_.wait(130);
  const std::vector<OpId> order = answers_.order();
  const auto place = std::find(order.begin(), order.end(), OpId{1}) - order.begin();
  EXPECT_EQ(place, 1 + TransferEngine::kReadsInARow);
}

TEST_F(TransferEngineTest, OneDataThreadIsLeftForReads) {
  start({.threads = 2});
  faults_->hold(StoreCall::put);
  write(1, 1);
  write(2, 2);
  ASSERT_TRUE(held(StoreCall::put));
  read(3, 9);
  EXPECT_EQ(answers_.wait(3).pages, Codes{StatusCode::not_found});
  EXPECT_EQ(engine_->stats(TransferLane::write).running, 1u);
  EXPECT_EQ(engine_->stats(TransferLane::write).waiting, 1u);
  faults_->release(StoreCall::put);
  EXPECT_EQ(answers_.wait(2).pages, Codes{StatusCode::ok});
}

TEST_F(TransferEngineTest, BackupsAreDroppedWhereTooManyWaitAndReadsNever) {
  start({.threads = 1, .write_queue_max = 2});
  faults_->hold(StoreCall::get);
  read(1, 1);
  ASSERT_TRUE(held(StoreCall::get));
  for (OpId id = 2; id < 40; ++id) read(id, 1);
  write(50, 1);
  write(51, 2);
  write(52, 3, 3);
  ASSERT_TRUE(answers_.has(52)) << "at once";
  EXPECT_EQ(answers_.wait(52).pages, Codes(3, StatusCode::resource_exhausted));
  EXPECT_EQ(engine_->stats(TransferLane::write).rejected, 1u);
  query(60, 1);
  EXPECT_EQ(answers_.wait(60).pages, Codes{StatusCode::not_found});
  faults_->release(StoreCall::get);
  for (OpId id = 1; id < 40; ++id) {
    EXPECT_NE(answers_.wait(id).pages.front(), StatusCode::resource_exhausted) << id;
  }
  EXPECT_EQ(answers_.wait(51).pages, Codes{StatusCode::ok});
  write(53, 3);
  EXPECT_EQ(answers_.wait(53).pages, Codes{StatusCode::ok}) << "offered again, it is taken";
}

// Pages that wait to be written cannot be evicted.
TEST_F(TransferEngineTest, WaitingBackupsHoldSoManyPagesAtMost) {
  start({.threads = 1, .write_pages_max = 6});
  faults_->hold(StoreCall::get);
  read(1, 1);
  ASSERT_TRUE(held(StoreCall::get));
  write(2, 10, 8);  // alone it has room, however large it is
  write(3, 20, 1);
  EXPECT_EQ(answers_.wait(3).pages, Codes{StatusCode::resource_exhausted});
  engine_->cancel(2);
  write(4, 30, 4);
  write(5, 40, 2);
  write(6, 50, 1);
  EXPECT_EQ(answers_.wait(6).pages, Codes{StatusCode::resource_exhausted});
  EXPECT_FALSE(answers_.has(5));
  faults_->release(StoreCall::get);
  EXPECT_EQ(answers_.wait(4).pages, Codes(4, StatusCode::ok));
  EXPECT_EQ(answers_.wait(5).pages, Codes(2, StatusCode::ok));
  write(7, 50, 6);
  EXPECT_EQ(answers_.wait(7).pages, Codes(6, StatusCode::ok));
}

TEST_F(TransferEngineTest, AReadThatARequestWaitsForGoesFirst) {
  start({.threads = 1});
  faults_->hold(StoreCall::get);
  read(1, 1);
  ASSERT_TRUE(held(StoreCall::get));
  for (OpId id = 2; id <= 4; ++id) read_unwaited(id, 1);
  for (OpId id = 5; id <= 7; ++id) read(id, 1);
  faults_->release(StoreCall::get);
  answers_.wait(4);
  EXPECT_EQ(answers_.order(), (std::vector<OpId>{1, 5, 6, 7, 2, 3, 4}));
}

// One thread for everything: the rest of a long backup waits for the read, and nothing of it is
// written twice or left out.
TEST_F(TransferEngineTest, ALongBackupMakesWayForARead) {
  start({.threads = 1, .batch_pages = 2});
  faults_->hold(StoreCall::put);
  write(1, 1, 8);
  ASSERT_TRUE(held(StoreCall::put));
  read(2, 100);
  faults_->release(StoreCall::put);
  EXPECT_EQ(answers_.wait(1).pages, Codes(8, StatusCode::ok));
  EXPECT_EQ(answers_.order(), (std::vector<OpId>{2, 1}));
  EXPECT_EQ(engine_->stats(TransferLane::write).gave_way, 1u);
  EXPECT_EQ(faults_->stats().puts, 8u);
  read(3, 1, 8);
  EXPECT_EQ(answers_.wait(3).pages, Codes(8, StatusCode::ok));
}

TEST_F(TransferEngineTest, OneKeyThatIsQueuedTwiceIsWrittenOnce) {
  start({.threads = 4});
  faults_->hold(StoreCall::put);
  write(1, 1, 3);
  ASSERT_TRUE(held(StoreCall::put));
  write(2, 2, 3, 8);  // shares two of them, while the first is under way
  write(3, 1, 1, 16);
  faults_->release(StoreCall::put);
  for (const OpId id : {1, 2, 3}) {
    for (const StatusCode code : answers_.wait(id).pages) EXPECT_EQ(code, StatusCode::ok);
  }
  std::map<std::string, int> puts;
  for (const auto& entry : faults_->log()) {
    if (entry.call != StoreCall::put) continue;
    for (const std::string& key : entry.keys) ++puts[key];
  }
  EXPECT_EQ(puts.size(), 4u);
  for (const auto& [key, count] : puts) EXPECT_EQ(count, 1) << key;
}

TEST_F(TransferEngineTest, WithSecondTouchAPageIsWrittenWhenItIsOfferedAgain) {
  start({.threads = 2, .second_touch = true, .batch_pages = 8});
  write(1, 1, 3);
  EXPECT_EQ(answers_.wait(1).pages, Codes(3, StatusCode::cancelled));
  EXPECT_TRUE(faults_->log().empty()) << "no call for what is not admitted";
  EXPECT_EQ(engine_->stats(TransferLane::write).not_admitted, 3u);
  write(2, 0, 5);  // the middle ones a second time
  EXPECT_EQ(answers_.wait(2).pages, (Codes{StatusCode::cancelled, StatusCode::ok, StatusCode::ok,
                                           StatusCode::ok, StatusCode::cancelled}));
  write(3, 0, 5);
  EXPECT_EQ(answers_.wait(3).pages, Codes(5, StatusCode::ok));
  EXPECT_EQ(faults_->stats().objects, 5u);
}

// A disk that hangs: every data thread is lost in a call, and reads that wait are answered in time.
TEST_F(TransferEngineTest, AHungStoreHoldsNoWaitingReadBeyondItsDeadline) {
  start({.threads = 1});
  faults_->hold(StoreCall::get, false);  // heeds no deadline
  read(1, 1, 1, 32, soon(std::chrono::milliseconds(20)));
  ASSERT_TRUE(held(StoreCall::get));
  read(2, 1, 2, 32, soon(std::chrono::milliseconds(20)));
  EXPECT_EQ(answers_.wait(2).pages, Codes(2, StatusCode::deadline_exceeded));
  EXPECT_FALSE(answers_.has(1)) << "its pages are the store's as long as it hangs";
  EXPECT_EQ(engine_->stats(TransferLane::read).expired, 1u);
  query(3, 1);
  EXPECT_EQ(answers_.wait(3).pages, Codes{StatusCode::not_found});
  faults_->release(StoreCall::get);
  EXPECT_EQ(answers_.wait(1).pages, Codes{StatusCode::deadline_exceeded});
  read(4, 1);
  EXPECT_EQ(answers_.wait(4).pages, Codes{StatusCode::not_found}) << "and it serves again";
}

TEST_F(TransferEngineTest, AnExpiredOperationCostsNoCall) {
  start({.threads = 1}, clock_);
  clock_.advance(std::chrono::seconds(5));
  read(1, 1, 3, 32, clock_.now());
  query(2, 1, 2, clock_.now() - std::chrono::seconds(1));
  EXPECT_EQ(answers_.wait(1).pages, Codes(3, StatusCode::deadline_exceeded));
  EXPECT_EQ(answers_.wait(2).pages, Codes(2, StatusCode::deadline_exceeded));
  EXPECT_TRUE(faults_->log().empty());
  EXPECT_EQ(engine_->stats(TransferLane::read).expired, 1u);
  EXPECT_EQ(engine_->stats(TransferLane::query).expired, 1u);
}

TEST_F(TransferEngineTest, TheDeadlineReachesTheStore) {
  start({.threads = 1, .batch_pages = 1});
  faults_->hold(StoreCall::get);  // gives up at its deadline
  read(1, 1, 3, 32, soon(std::chrono::milliseconds(20)));
  EXPECT_EQ(answers_.wait(1).pages, Codes(3, StatusCode::deadline_exceeded));
  EXPECT_EQ(faults_->log().size(), 1u);
}

TEST_F(TransferEngineTest, ACallHasALimitWithoutADeadlineToo) {
  start({.threads = 1, .call_time_max = std::chrono::milliseconds(20)});
  faults_->hold(StoreCall::put);
  faults_->hold(StoreCall::exists);
  write(1, 1, 2);
  EXPECT_EQ(answers_.wait(1).pages, Codes(2, StatusCode::deadline_exceeded));
}

TEST_F(TransferEngineTest, AStoreThatIsAwayIsAskedOnceForAnOperation) {
  start({.threads = 1, .batch_pages = 1});
  faults_->set_batch_items_max(1);
  EXPECT_TRUE(faults_->close(soon()).ok());  // from now on: failed_precondition
  write(1, 1, 4);
  read(2, 1, 4);
  for (const OpId id : {1, 2}) {
    const Completion answer = answers_.wait(id);
    ASSERT_EQ(answer.pages.size(), 4u);
    for (const StatusCode code : answer.pages) EXPECT_EQ(code, StatusCode::failed_precondition);
  }
  EXPECT_LE(faults_->log().size(), 2u);
}

TEST_F(TransferEngineTest, AFailingPageHidesNoOther) {
  start({.threads = 1, .batch_pages = 2});
  write(1, 1, 6);
  answers_.wait(1);
  faults_->add({.call = StoreCall::get,
                .kind = StoreFault::Kind::flipped_bit,
                .skip = 2,
                .times = 1,
                .bit = 2000});
  read(2, 1, 6);
  EXPECT_EQ(answers_.wait(2).pages, (Codes{StatusCode::ok, StatusCode::ok, StatusCode::data_loss,
                                           StatusCode::ok, StatusCode::ok, StatusCode::ok}));
}

TEST_F(TransferEngineTest, CancelAnswersWhatWaitsAndCutsWhatRuns) {
  start({.threads = 1, .batch_pages = 2});
  write(1, 1, 6);
  answers_.wait(1);
  faults_->hold(StoreCall::get);
  read(2, 1, 6);
  ASSERT_TRUE(held(StoreCall::get));
  read(3, 1, 2);
  engine_->cancel(3);
  ASSERT_TRUE(answers_.has(3));
  EXPECT_EQ(answers_.wait(3).pages, Codes(2, StatusCode::cancelled));
  engine_->cancel(2);
  engine_->cancel(1);    // answered already
  engine_->cancel(999);  // never there
  EXPECT_FALSE(answers_.has(2));
  faults_->release(StoreCall::get);
  EXPECT_EQ(answers_.wait(2).pages,
            (Codes{StatusCode::ok, StatusCode::ok, StatusCode::cancelled, StatusCode::cancelled,
                   StatusCode::cancelled, StatusCode::cancelled}));
  EXPECT_EQ(engine_->stats(TransferLane::read).cancelled, 2u);
}

TEST_F(TransferEngineTest, DrainWaitsForWritesAndNotForLonger) {
  start({.threads = 1});
  EXPECT_TRUE(engine_->drain(soon(Duration::zero())).ok());
  faults_->hold(StoreCall::put);
  write(1, 1);
  write(2, 2);
  ASSERT_TRUE(held(StoreCall::put));
  EXPECT_EQ(engine_->drain(soon(std::chrono::milliseconds(5))).code(),
            StatusCode::deadline_exceeded);
  faults_->release(StoreCall::put);
  EXPECT_TRUE(engine_->drain(kNoDeadline).ok());
  EXPECT_TRUE(answers_.has(1));
  EXPECT_TRUE(answers_.has(2));
}

TEST_F(TransferEngineTest, StopAnswersEverythingOnceAndIsIdempotent) {
  start({.threads = 1, .batch_pages = 1});
  faults_->hold(StoreCall::put);
  write(1, 1, 3);
  ASSERT_TRUE(held(StoreCall::put));
  write(2, 2);
  read(3, 1);
  std::thread stopper([this] { EXPECT_TRUE(engine_->stop(soon()).ok()); });
  EXPECT_EQ(answers_.wait(2).pages, Codes{StatusCode::cancelled});
  EXPECT_EQ(answers_.wait(3).pages, Codes{StatusCode::cancelled});
  EXPECT_FALSE(answers_.has(1));  // the store still has its pages
  faults_->release(StoreCall::put);
  stopper.join();
  ASSERT_TRUE(answers_.has(1));
  EXPECT_EQ(answers_.wait(1).pages,
            (Codes{StatusCode::ok, StatusCode::cancelled, StatusCode::cancelled}));
  EXPECT_TRUE(engine_->stop(soon()).ok());
  query(4, 1, 2);
  ASSERT_TRUE(answers_.has(4));
  EXPECT_EQ(answers_.wait(4).pages, Codes(2, StatusCode::cancelled));
  EXPECT_TRUE(engine_->drain(soon(Duration::zero())).ok());
}

TEST_F(TransferEngineTest, StopSaysWhenItTookTooLong) {
  start({.threads = 1}, clock_);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(engine_->stop(clock_.now() - Duration(1)).code(), StatusCode::deadline_exceeded);
  EXPECT_TRUE(engine_->stop(clock_.now() - Duration(1)).ok());  // nothing was left to do
}

TEST_F(TransferEngineTest, ThreadsSurviveWhateverIsThrown) {
  start({.threads = 1});
  using What = ThrowingStore::What;
  OpId id = 0;
  for (const What what : {What::exception, What::other}) {
    objects_->next = what;
    write(++id, 1);
    EXPECT_NE(answers_.wait(id).pages, Codes{StatusCode::ok});
    objects_->next = what;
    read(++id, 1);
    EXPECT_NE(answers_.wait(id).pages, Codes{StatusCode::ok});
    objects_->next = what;
    query(++id, 1);
    EXPECT_NE(answers_.wait(id).pages, Codes{StatusCode::ok});
  }
  write(++id, 1);
  EXPECT_EQ(answers_.wait(id).pages, Codes{StatusCode::ok});
  query(++id, 1);
  EXPECT_EQ(answers_.wait(id).pages, Codes{StatusCode::ok});
}

TEST_F(TransferEngineTest, BusyBuffersAreReported) {
  start({.threads = 1, .batch_pages = 1});
  const TimePoint busy = soon();
  faults_->set_buffers_busy_until(busy);
  write(1, 1, 2);
  EXPECT_EQ(answers_.wait(1).buffers_busy_until, busy);
  faults_->set_buffers_busy_until(TimePoint::min());
  write(2, 9, 2);
  EXPECT_EQ(answers_.wait(2).buffers_busy_until, TimePoint::min());
}

TEST_F(TransferEngineTest, MetricsNameEveryLane) {
  start({});
  write(1, 1, 2);
  answers_.wait(1);
  ASSERT_TRUE(engine_->drain(soon()).ok());
  MetricsText metrics;
  engine_->write_metrics(metrics);
  const std::string text = std::move(metrics).text();
  EXPECT_NE(text.find("hitide_transfer_pages_ok_total{lane=\"write\"} 2"), std::string::npos)
      << text;
  EXPECT_NE(text.find("hitide_transfer_operations_total{lane=\"query\"} 0"), std::string::npos);
  EXPECT_NE(text.find("hitide_transfer_write_seconds_count 1"), std::string::npos);
}

// Host pages in use by operations: handed out before, taken back at the answer and not earlier.
class PagesInUse {
 public:
  // Contiguous runs are not needed: any `count` free pages, or none.
  std::vector<PageId> take(OpId id, std::uint32_t count) {
    const std::lock_guard lock(mutex_);
    std::vector<PageId> pages;
    if (pages_.free_count() < count) return pages;
    EXPECT_TRUE(pages_.allocate(count, PageOwner::operation, pages).ok());
    used_[id] = pages;
    return pages;
  }
  void give_back(OpId id) {
    const std::lock_guard lock(mutex_);
    const auto used = used_.find(id);
    if (used == used_.end()) return;
    EXPECT_TRUE(pages_.free(used->second, PageOwner::operation).ok());
    used_.erase(used);
  }
  bool all_free() {
    const std::lock_guard lock(mutex_);
    return pages_.free_count() == kPageCount;
  }

 private:
  std::mutex mutex_;
  PageAllocator pages_{kPageCount};
  std::map<OpId, std::vector<PageId>> used_;
};

// Several threads submit and take back at once, the store fails at random, and the engine is
// stopped in the middle: one answer each, of the right length, and no page is touched after it.
TEST_F(TransferEngineTest, EveryOperationIsAnsweredOnceWhateverHappens) {
  constexpr std::uint64_t kSeed = 20261130;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  PagesInUse pages;
  on_answer_ = [&pages](OpId id) { pages.give_back(id); };
  start({.threads = 3, .write_queue_max = 16, .batch_pages = 2});
  for (const StoreCall call : {StoreCall::get, StoreCall::put, StoreCall::exists}) {
    for (std::uint64_t skip = 3; skip < 400; skip += 7) {
      faults_->add({.call = call, .code = StatusCode::unavailable, .skip = skip, .times = 1});
    }
  }
  constexpr OpId kEach = 400;
  std::map<OpId, std::size_t> sizes[3];
  const auto client = [&](std::uint64_t number) {
    Random random(kSeed + number);
    for (OpId i = 0; i < kEach; ++i) {
      const OpId id = number * kEach + i;
      const auto count = static_cast<std::uint32_t>(1 + random.below(5));
      const std::uint64_t first_key = random.below(100);
      sizes[number][id] = count;
      std::vector<PageId> own;
      if (random.chance(0.7)) own = pages.take(id, count);
      if (own.empty()) {
        query(id, first_key, count);
      } else if (random.chance(0.5)) {
        for (const PageId page : own) fill(page, static_cast<int>(random.below(256)));
        engine_->submit(
            StorageWriteOp{.id = id, .keys = keys(first_key, count), .host_pages = std::move(own)});
      } else {
        engine_->submit(
            StorageReadOp{.id = id, .keys = keys(first_key, count), .host_pages = std::move(own)});
      }
      if (random.chance(0.3)) engine_->cancel(number * kEach + random.below(i + 1));
      if (number == 0 && random.chance(0.02)) objects_->next = ThrowingStore::What::exception;
      if (number == 2 && i == kEach / 2) {
        EXPECT_TRUE(engine_->stop(soon()).ok());
      }
    }
  };
  std::vector<std::thread> clients;
  for (std::uint64_t number = 0; number < 3; ++number) clients.emplace_back(client, number);
  for (std::thread& thread : clients) thread.join();
  EXPECT_TRUE(engine_->stop(soon()).ok());
  const auto answers = answers_.all();
  EXPECT_EQ(answers.size(), 3 * kEach);
  for (const auto& [id, completions] : answers) {
    ASSERT_EQ(completions.size(), 1u) << id;
    EXPECT_EQ(completions[0].pages.size(), sizes[id / kEach].at(id)) << id;
  }
  std::uint64_t operations = 0;
  for (const auto lane : {TransferLane::query, TransferLane::read, TransferLane::write}) {
    const LaneStats stats = engine_->stats(lane);
    operations += stats.operations;
    EXPECT_EQ(stats.waiting, 0u);
    EXPECT_EQ(stats.running, 0u);
  }
  EXPECT_EQ(operations, 3 * kEach);
  EXPECT_TRUE(pages.all_free());
}

}  // namespace
}  // namespace hitide
