// A target and a sidecar draft over a real Mooncake store, in both modes: device, host memory and
// storage and back in every way that their pools can be registered, and what an absent draft costs.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "runtime/pool_memory.h"
#include "runtime/store_client.h"
#include "storage/mooncake/mooncake_store.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/fault_store.h"
#include "tests/support/registrar_double.h"
#include "tests/support/synthetic_stack.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;
using Mode = MooncakeStack::Mode;
using Path = RegistrationPath;
using Stack = SyntheticStack;
using Codes = std::vector<StatusCode>;
using enum AllocatorKind;

constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;
constexpr int kNothing = -1;

// A stack over the real store. The registrar's double stands before it, so that a case can make it
// refuse the region of that number.
class Tower {
 public:
  Tower(Mode mode, const StackCase& setup, int failing_region = kNothing,
        RegistrarDouble::Answer answer = RegistrarDouble::Answer::refuse) {
    MooncakeStack& daemon = mode == Mode::embedded ? mooncake_stack() : mooncake_daemon_stack();
    daemon.tell("clear");
    auto store = MooncakeStore::open(daemon.options());
    if (!store.ok()) {
      ADD_FAILURE() << store.status().to_string();
      return;
    }
    mooncake_ = store->get();
    OpenedStore opened =
        store_client(std::move(store).value(), SystemClock::instance().now() + 60s);
    EXPECT_TRUE(opened.status.ok()) << opened.status.to_string();
    store_ = std::make_unique<FaultStore>(std::move(opened.store));
    real_ = std::make_unique<StoreRegistrar>(*store_);
    registrar_ = std::make_unique<RegistrarDouble>(&*real_);
    if (failing_region != kNothing) {
      registrar_->fail_at(static_cast<std::size_t>(failing_region), answer);
    }
    stack_ = std::make_unique<Stack>(
        setup, *store_, *registrar_, opened.client,
        [this](AllocatorKind kind) { return allocator_of(kind, store_.get()).value(); });
  }

  Stack& operator*() { return *stack_; }
  Stack* operator->() { return stack_.get(); }
  MooncakeCounts counts() const { return mooncake_->counts(); }
  void lose(int page, std::size_t pool) {
    EXPECT_EQ(remove_object(*store_, stack_->object_key(page, pool)), kOk);
  }
  // True where some call has named an object of the pool.
  bool named(const std::string& pool) const {
    const auto log = store_->log();
    return std::any_of(log.begin(), log.end(), [&](const auto& entry) {
      return std::any_of(entry.keys.begin(), entry.keys.end(), [&](const std::string& key) {
        return key.find("/" + pool + ".") != std::string::npos;
      });
    });
  }
  // Nothing stays registered behind the stack.
  void end() {
    stack_.reset();
    EXPECT_TRUE(registrar_->registered().empty());
  }

 private:
  MooncakeStore* mooncake_ = nullptr;
  std::unique_ptr<FaultStore> store_;
  std::unique_ptr<StoreRegistrar> real_;
  std::unique_ptr<RegistrarDouble> registrar_;
  std::unique_ptr<Stack> stack_;
};

class MooncakeDraftTest : public testing::TestWithParam<Mode> {
 protected:
  MooncakeDraftTest() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~MooncakeDraftTest() override { set_log_sink({}); }

  static void expect_goes_round(const StackCase& setup, int failing_region = kNothing,
                                RegistrarDouble::Answer answer = RegistrarDouble::Answer::refuse) {
    SCOPED_TRACE(setup.what);
    for (const bool logical : {false, true}) {
      StackCase one = setup;
      one.logical = logical;
      // The anchor of a logical group has no region: the draft's comes one earlier.
      const int failing =
          failing_region == kNothing ? kNothing : failing_region - (logical ? 1 : 0);
      Tower tower(GetParam(), one, failing, answer);
      const MooncakeCounts before = tower.counts();
      expect_all_tiers_and_back(*tower, one);
      EXPECT_EQ(tower.named("draft"), one.draft_path != Path::off);
      const MooncakeCounts after = tower.counts();
      const bool direct = one.target_path == Path::zero_copy || one.draft_path == Path::zero_copy;
      const bool copied = logical || one.target_path == Path::staged ||
                          one.draft_path == Path::staged;  // markers lie in bounce memory
      EXPECT_EQ(after.zero_copy_items > before.zero_copy_items, direct);
      EXPECT_EQ(after.staged_items > before.staged_items, copied);
      tower.end();
    }
  }
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

INSTANTIATE_TEST_SUITE_P(Modes, MooncakeDraftTest,
                         testing::Values(Mode::embedded, Mode::standalone), [](const auto& mode) {
                           return mode.param == Mode::embedded ? "embedded" : "standalone";
                         });

TEST_P(MooncakeDraftTest, AllInShmOrStoreMemoryGoesWithoutACopy) {
  expect_goes_round({.what = "shm"});
  expect_goes_round({.what = "store memory", .target = store, .draft = store});
  expect_goes_round({.what = "target in store memory, draft in shm", .target = store});
}

TEST_P(MooncakeDraftTest, PrivateMemoryIsStaged) {
  expect_goes_round({.what = "all private",
                     .target = mmap,
                     .draft = mmap,
                     .target_path = Path::staged,
                     .draft_path = Path::staged});
  expect_goes_round({.what = "the draft private", .draft = mmap, .draft_path = Path::staged});
}

// What ends start-ups elsewhere.
TEST_P(MooncakeDraftTest, ADraftInPrivateMemoryWithoutStagingIsOffAndNothingElse) {
  expect_goes_round(
      {.what = "draft off", .draft = mmap, .staging = false, .draft_path = Path::off});
}

TEST_P(MooncakeDraftTest, ADraftThatTheClientRefusesIsStagedOrOff) {
  using Answer = RegistrarDouble::Answer;
  constexpr int kDraftRegion = 3;
  for (const Answer answer : {Answer::refuse, Answer::throw_error, Answer::nothing}) {
    expect_goes_round({.what = "refused, staging", .draft_path = Path::staged}, kDraftRegion,
                      answer);
    expect_goes_round({.what = "refused, none", .staging = false, .draft_path = Path::off},
                      kDraftRegion, answer);
  }
}

TEST_P(MooncakeDraftTest, ADraftHalfRegisteredIsUndone) {
  expect_goes_round({.what = "third of five", .draft_path = Path::staged, .draft_regions = 5},
                    3 + 2);
}

// The other rows in which a draft can be: what the rule is told decides, and the bytes go round.
TEST_P(MooncakeDraftTest, TheOtherRowsGoRoundToo) {
  using Pools = std::vector<PoolToRegister>;
  const bool thin = GetParam() == Mode::standalone;
  expect_goes_round({.what = "foreign layout",
                     .draft_path = Path::staged,
                     .change = [](Pools& pools, ClientCapabilities&) {
                       pools[Stack::kDraft].memory.layout_supported = false;
                     }});
  expect_goes_round({.what = "no bytes",
                     .draft_path = Path::off,
                     .change = [](Pools& pools, ClientCapabilities&) {
                       pools[Stack::kDraft].memory.regions.clear();
                     }});
  expect_goes_round({.what = "overlaps",
                     .draft_path = Path::staged,
                     .change = [](Pools& pools, ClientCapabilities&) {
                       const MemoryRegion& other = pools[Stack::kC4].memory.regions.front();
                       pools[Stack::kDraft].memory.regions = {
                           {.bytes = other.bytes.subspan(4096),
                            .fd = other.fd,
                            .fd_offset = other.fd_offset + 4096}};
                     }});
  expect_goes_round({.what = "a part of a segment",
                     .draft = store,
                     .draft_path = thin ? Path::staged : Path::zero_copy,
                     .change = [](Pools& pools, ClientCapabilities&) {
                       pools[Stack::kDraft].memory.whole_segments = false;
                     }});
  expect_goes_round(
      {.what = "no memory to adopt",
       .target_path = thin ? Path::staged : Path::zero_copy,
       .draft_path = thin ? Path::staged : Path::zero_copy,
       .change = [](Pools&, ClientCapabilities& client) { client.adoption_bytes_max = 0; }});
  for (const bool down : {true, false}) {
    StackCase setup{.what = down ? "store down" : "no transport",
                    .target_path = Path::off,
                    .draft_path = Path::off,
                    .change = [down](Pools&, ClientCapabilities& client) {
                      (down ? client.reachable : client.transport_available) = false;
                    }};
    Tower tower(GetParam(), setup);
    expect_all_tiers_and_back(*tower, setup);
    tower.end();
  }
}

TEST_P(MooncakeDraftTest, ARequiredDraftThatIsOffTurnsStorageOff) {
  StackCase setup{.what = "required, off",
                  .draft = mmap,
                  .staging = false,
                  .target_path = Path::off,
                  .draft_path = Path::off,
                  .draft_required = true};
  Tower tower(GetParam(), setup);
  expect_all_tiers_and_back(*tower, setup);
  EXPECT_FALSE(tower.named("kv"));
  tower.end();
}

// K2 B021: saved and restored with the target; what is missing is said, and never taken.
TEST_P(MooncakeDraftTest, K2_B021_AnAbsentDraftPageIsSaidAndNeverTaken) {
  for (const bool logical : {false, true}) {
    Tower tower(GetParam(), {.what = "", .logical = logical});
    store_and_forget(*tower);
    tower.lose(1, Stack::kDraft);
    EXPECT_EQ(tower->query().pages.back(), kOk);
    const Completion read = tower->read();
    EXPECT_EQ(read.pages, Codes(Stack::kPages, kOk));
    EXPECT_EQ(tower->codes(read, Stack::kDraft), (Codes{kOk, kMiss, kOk, kOk, kOk}));
    const auto present = tower->present(read);
    tower->load_back(present);
    tower->expect_device_holds(present);
    // The next backup of the same pages brings it back.
    tower->release_device();
    tower->release_host();
    tower->reserve_device();
    tower->compute();
    tower->reserve_host();
    tower->back_up();
    EXPECT_EQ(tower->write().pages, Codes(Stack::kPages, kOk));
    EXPECT_EQ(tower->codes(tower->read(), Stack::kDraft), Codes(Stack::kPages, kOk));
  }
}

TEST_P(MooncakeDraftTest, ARequiredDraftPageThatIsAbsentShortensTheHit) {
  for (const bool logical : {false, true}) {
    Tower tower(GetParam(), {.what = "", .logical = logical, .draft_required = true});
    store_and_forget(*tower);
    tower.lose(3, Stack::kDraft);
    const Completion found = tower->query();
    EXPECT_EQ(found.pages[3], kMiss);
    EXPECT_EQ(found.pages[4], kMiss);
    EXPECT_EQ(tower->read().pages, (Codes{kOk, kOk, kOk, kMiss, kOk}));
  }
}

}  // namespace
}  // namespace hitide
