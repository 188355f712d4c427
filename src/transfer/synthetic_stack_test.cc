// Pages of synthetic models through all tiers and back, for each way in which their pools can be
// registered, with a store in memory behind a client that is strict and fails on command.
#include "tests/support/synthetic_stack.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"
#include "tests/support/registrar_double.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using Path = RegistrationPath;
using Stack = SyntheticStack;
using Codes = std::vector<StatusCode>;
using enum AllocatorKind;

constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;

std::shared_ptr<HostAllocator> allocator(AllocatorKind kind) {
  return kind == shm ? shm_allocator() : mmap_allocator();
}

struct MemoryCase {
  StackCase stack;
  ClientKind client = ClientKind::embedded;
  int refused_region = -1;  // of the pools' regions, in order
};

const std::vector<MemoryCase>& cases() {
  constexpr auto kThin = ClientKind::standalone;
  constexpr auto kReal = ClientKind::embedded;
  static const std::vector<MemoryCase> all = {
      {{.what = "shm, real client"}, kReal},
      {{.what = "mmap, real client",
        .target = mmap,
        .draft = mmap,
        .target_path = Path::staged,
        .draft_path = Path::staged},
       kReal},
      {{.what = "shm, thin client", .staging = false}, kThin},
      {{.what = "mmap, thin client",
        .target = mmap,
        .draft = mmap,
        .target_path = Path::staged,
        .draft_path = Path::staged},
       kThin},
      {{.what = "draft mmap, staging off",
        .draft = mmap,
        .staging = false,
        .draft_path = Path::off},
       kThin},
      {{.what = "draft refused, staging", .draft_path = Path::staged}, kReal, 3},
      {{.what = "draft refused, none", .staging = false, .draft_path = Path::off}, kReal, 3},
      {{.what = "third of five regions of the draft refused",
        .draft_path = Path::staged,
        .draft_regions = 5},
       kReal,
       5},
      {{.what = "target refused, staging off",
        .staging = false,
        .target_path = Path::off,
        .draft_path = Path::off},
       kReal,
       0},
      {{.what = "logical, real client", .logical = true}, kReal},
      {{.what = "logical, thin client, mmap",
        .logical = true,
        .target = mmap,
        .draft = mmap,
        .target_path = Path::staged,
        .draft_path = Path::staged},
       kThin},
      {{.what = "logical, draft off",
        .logical = true,
        .draft = mmap,
        .staging = false,
        .draft_path = Path::off},
       kThin},
      {{.what = "logical, side pool refused",
        .logical = true,
        .staging = false,
        .target_path = Path::off,
        .draft_path = Path::off},
       kReal,
       0},
      {{.what = "a required draft that is on", .draft_required = true}, kReal},
      {{.what = "a required draft that is off",
        .draft = mmap,
        .staging = false,
        .target_path = Path::off,
        .draft_path = Path::off,
        .draft_required = true},
       kThin},
  };
  return all;
}

// A stack with a store in memory.
struct Tower {
  explicit Tower(const MemoryCase& setup) {
    if (setup.refused_region >= 0) {
      client.fail_at(static_cast<std::size_t>(setup.refused_region),
                     RegistrarDouble::Answer::refuse);
    }
    ClientCapabilities capabilities;
    capabilities.kind = setup.client;
    stack = std::make_unique<Stack>(setup.stack, store, client, capabilities, allocator);
  }
  void lose(int page, std::size_t pool) {
    EXPECT_EQ(remove_object(store, stack->object_key(page, pool)), kOk);
  }
  // Keys of the calls since the last clear_log() that name the pool.
  bool named(const std::string& pool) const {
    const auto log = store.log();
    return std::any_of(log.begin(), log.end(), [&](const auto& entry) {
      return std::any_of(entry.keys.begin(), entry.keys.end(), [&](const std::string& key) {
        return key.find("/" + pool + ".") != std::string::npos;
      });
    });
  }

  std::size_t calls_with_markers(StoreCall call) const {
    const auto log = store.log();
    return static_cast<std::size_t>(std::count_if(log.begin(), log.end(), [&](const auto& entry) {
      return entry.call == call &&
             std::any_of(entry.keys.begin(), entry.keys.end(), [](const std::string& key) {
               return key.find("/kv.") != std::string::npos;
             });
    }));
  }

  RegistrarDouble client;
  FaultStore store{std::make_unique<MemoryStore>(16u << 20)};
  std::unique_ptr<Stack> stack;
};

class SyntheticStackTest : public testing::TestWithParam<int> {
 protected:
  SyntheticStackTest() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~SyntheticStackTest() override { set_log_sink({}); }
};

TEST_P(SyntheticStackTest, DownAllTiersAndBack) {
  const MemoryCase& setup = cases()[static_cast<std::size_t>(GetParam())];
  SCOPED_TRACE(setup.stack.what);
  Tower tower(setup);
  expect_all_tiers_and_back(*tower.stack, setup.stack);
  EXPECT_EQ(tower.named("draft"), setup.stack.draft_path != Path::off)
      << "a pool that is off is neither written nor asked for";
  tower.stack.reset();
  EXPECT_TRUE(tower.client.registered().empty());
}

INSTANTIATE_TEST_SUITE_P(Rows, SyntheticStackTest,
                         testing::Range(0, static_cast<int>(cases().size())));

class DraftTest : public SyntheticStackTest {
 protected:
  // Stored, and gone from the other tiers; ready to be read.
  static void store_and_forget(Stack& stack) {
    stack.reserve_device();
    stack.compute();
    stack.reserve_host();
    stack.back_up();
    EXPECT_EQ(stack.write().pages, Codes(Stack::kPages, kOk));
    stack.release_device();
    stack.release_host();
    stack.reserve_device();
    stack.reserve_host();
  }
};

// K2 B021: one page of the draft is gone. The target is restored whole, and the draft but for it.
TEST_F(DraftTest, K2_B021_AnAbsentDraftPageIsSaidAndNeverTaken) {
  for (const bool logical : {false, true}) {
    Tower tower({.stack = {.what = "", .logical = logical}});
    store_and_forget(*tower.stack);
    tower.lose(1, Stack::kDraft);
    EXPECT_EQ(tower.stack->query().pages.back(), kOk);
    const Completion read = tower.stack->read();
    EXPECT_EQ(read.pages, Codes(Stack::kPages, kOk));
    EXPECT_EQ(tower.stack->codes(read, Stack::kDraft), (Codes{kOk, kMiss, kOk, kOk, kOk}));
    const auto present = tower.stack->present(read);
    tower.stack->load_back(present);
    tower.stack->expect_device_holds(present);
  }
}

TEST_F(DraftTest, ARequiredDraftPageThatIsAbsentShortensTheHit) {
  for (const bool logical : {false, true}) {
    Tower tower({.stack = {.what = "", .logical = logical, .draft_required = true}});
    store_and_forget(*tower.stack);
    tower.lose(3, Stack::kDraft);
    const Completion found = tower.stack->query();
    EXPECT_EQ(found.pages[3], kMiss);
    EXPECT_EQ(found.pages[4], kMiss);
    // Lost between question and read: the same page ends what was read.
    EXPECT_EQ(tower.stack->read().pages, (Codes{kOk, kOk, kOk, kMiss, kOk}));
  }
}

// Whatever happens to the draft on its way to the store, the target is committed.
TEST_F(DraftTest, ADraftThatCannotBeWrittenCostsItselfAlone) {
  for (const bool required : {false, true}) {
    Tower tower({.stack = {.what = "", .draft_required = required}});
    tower.store.add(
        {.call = StoreCall::put, .code = StatusCode::resource_exhausted, .key_part = "/draft."});
    tower.stack->reserve_device();
    tower.stack->compute();
    tower.stack->reserve_host();
    tower.stack->back_up();
    const Completion written = tower.stack->write();
    EXPECT_EQ(written.pages, Codes(Stack::kPages, required ? kMiss : kOk));
    EXPECT_EQ(tower.stack->codes(written, Stack::kDraft),
              Codes(Stack::kPages, StatusCode::resource_exhausted));
  }
}

// A transfer that names a pool which is not registered: false for it alone, said and counted.
TEST_F(DraftTest, TransfersOfUnregisteredPoolsFailLoudly) {
  Tower tower({.stack = {.what = "", .draft = mmap, .staging = false, .draft_path = Path::off},
               .client = ClientKind::standalone});
  store_and_forget(*tower.stack);
  std::vector<std::string> said;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level >= LogLevel::error) said.emplace_back(line);
  });
  const std::vector<PageKey> keys = {synthetic_key(0), synthetic_key(1)};
  const std::vector<PageId> pages = {PageId{0, 1}, PageId{1, 1}};
  // One that is off and one that no model has.
  StorageReadOp op{.keys = keys, .host_pages = pages};
  op.sides = {{.pool = 3, .first = 0, .host_pages = pages},
              {.pool = 9, .first = 1, .host_pages = {pages[1]}}};
  const Completion answer = tower.stack->carry_out(std::move(op));
  EXPECT_EQ(answer.pages, Codes(2, kOk)) << "the others go on";
  EXPECT_EQ(answer.sides[0], Codes(2, StatusCode::invalid_argument));
  EXPECT_EQ(answer.sides[1], Codes(1, StatusCode::invalid_argument));
  EXPECT_EQ(tower.stack->engine().stats(TransferLane::read).unknown_pools, 2u);
  ASSERT_FALSE(said.empty());
  EXPECT_NE(said[0].find("draft"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("c4, swa"), std::string::npos) << said[0];
}

// However many pages an operation has, its markers are one question and one put, and one get.
TEST_F(DraftTest, MarkersOfAnOperationGoTogether) {
  Tower tower({.stack = {.what = "", .logical = true}});
  store_and_forget(*tower.stack);
  EXPECT_EQ(tower.calls_with_markers(StoreCall::exists), 1u);
  EXPECT_EQ(tower.calls_with_markers(StoreCall::put), 1u);
  EXPECT_GT(tower.store.log().size(), 4u) << "the side pages went in parts";
  EXPECT_EQ(tower.stack->read().pages, Codes(Stack::kPages, kOk));
  EXPECT_EQ(tower.calls_with_markers(StoreCall::get), 1u);
}

// A write that ends early commits nothing; the next one finds what is there.
TEST_F(DraftTest, AWriteThatEndsEarlyCommitsNothing) {
  Tower tower({.stack = {.what = "", .logical = true}});
  Stack& stack = *tower.stack;
  stack.reserve_device();
  stack.compute();
  stack.reserve_host();
  stack.back_up();
  tower.store.hold(StoreCall::put);
  const OpId id = stack.begin_write();
  ASSERT_TRUE(tower.store.wait_until_held(
      StoreCall::put, 1, SystemClock::instance().now() + std::chrono::seconds(60)));
  stack.engine().cancel(id);
  tower.store.release(StoreCall::put);
  const Completion ended = stack.wait();
  EXPECT_EQ(ended.pages, Codes(Stack::kPages, StatusCode::cancelled));
  EXPECT_EQ(stack.codes(ended, Stack::kC4)[0], kOk) << "the part that had begun";
  EXPECT_EQ(stack.codes(ended, Stack::kC4)[4], StatusCode::cancelled);
  EXPECT_EQ(tower.calls_with_markers(StoreCall::put), 0u);
  const auto before = stack.page_store().stats();
  EXPECT_EQ(stack.write().pages, Codes(Stack::kPages, kOk));
  EXPECT_GT(stack.page_store().stats().stores_present, before.stores_present);
}

// A draft that is attached while the target runs: from then on its pages travel.
TEST_F(DraftTest, ADraftThatComesLaterTravelsFromThenOn) {
  Tower tower({.stack = {.what = ""}});
  ASSERT_TRUE(tower.stack->engine().set_pool(Stack::kDraft, nullptr).ok());
  tower.stack->reserve_device();
  tower.stack->compute();
  tower.stack->reserve_host();
  tower.stack->back_up();
  EXPECT_EQ(tower.stack->codes(tower.stack->write(), Stack::kDraft),
            Codes(Stack::kPages, StatusCode::invalid_argument));
  ASSERT_TRUE(tower.stack->attach_draft().ok());
  const Completion written = tower.stack->write();
  EXPECT_EQ(written.pages, Codes(Stack::kPages, kOk));
  EXPECT_EQ(tower.stack->codes(written, Stack::kDraft), Codes(Stack::kPages, kOk));
  EXPECT_EQ(tower.stack->engine().set_pool(0, nullptr).code(), StatusCode::invalid_argument);
  EXPECT_EQ(tower.stack->engine().set_pool(4, nullptr).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace hitide
