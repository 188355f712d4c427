// The table of docs/registration.md over a real store, row by row: what the rule answers, which way
// pages then take, and that nothing stays half-registered. Rows that need a failure on command put
// the double between rule and store, or use the agent's test variables.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "storage/registry.h"
#include "tests/integration/mooncake_pools.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;
using Verdict = RegistrationVerdict;
using Path = RegistrationPath;
using Answer = RegistrarDouble::Answer;
using Shape = MooncakePools::Shape;
using Mode = MooncakeStack::Mode;

constexpr auto kMmap = AllocatorKind::mmap;
constexpr auto kShm = AllocatorKind::shm;
constexpr auto kStore = AllocatorKind::store;

MooncakeOptions options_of(Mode mode) {
  MooncakeOptions options =
      mode == Mode::embedded ? mooncake_stack().options() : mooncake_daemon_stack().options();
  options.bounce_bytes = 8u << 20;
  return options;
}

Shape draft_of(AllocatorKind allocator, std::uint32_t segments = 1) {
  return {.allocator = allocator,
          .segments = segments,
          .slots_per_segment = segments == 1 ? 4u : 1u,
          .required = false};
}

void expect_warnings(const MooncakePools& pools, std::size_t count,
                     const std::vector<std::string>& named = {}) {
  const std::vector<std::string> lines = pools.warnings();
  EXPECT_EQ(lines.size(), count);
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  for (const std::string& part : named) EXPECT_NE(all.find(part), std::string::npos) << all;
}

// Rows for every client.
class MooncakeRegistrationTest : public testing::TestWithParam<Mode> {
 protected:
  MooncakeOptions options() const { return options_of(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Clients, MooncakeRegistrationTest,
                         testing::Values(Mode::embedded, Mode::standalone), [](const auto& mode) {
                           return mode.param == Mode::embedded ? "embedded" : "standalone";
                         });

// target, shm or store memory, embedded; target, shm (adopted) or store memory, standalone.
TEST_P(MooncakeRegistrationTest, ATargetInShmOrStoreMemoryIsZeroCopy) {
  for (const AllocatorKind kind : {kShm, kStore}) {
    SCOPED_TRACE(to_string(kind));
    MooncakePools pools(options());
    const auto rows = pools.attach({pools.add("kv", {.allocator = kind, .segments = 2})});
    expect_row(rows[0], Verdict::ok, Path::zero_copy);
    const bool adopted = kind == kShm && GetParam() == Mode::standalone;
    EXPECT_EQ(rows[0].reason, adopted ? "adopted" : "");
    EXPECT_EQ(rows[0].allocator, kind);
    EXPECT_EQ(rows[0].bytes, 8 * kSlotBytes);
    expect_warnings(pools, 0);
    EXPECT_EQ(pools.registry().region_count(), 2u);
    pools.expect_travels("kv", Path::zero_copy);
    pools.registry().detach_all();
    pools.expect_travels("kv", Path::staged);
  }
}

// target, plain mmap: not_shareable or outside_store_segment; one warning that names the option.
TEST_P(MooncakeRegistrationTest, ATargetInPrivateMemoryIsStaged) {
  MooncakePools pools(options());
  const auto rows =
      pools.attach({pools.add("kv", {.allocator = kMmap}), pools.add("draft", draft_of(kShm))});
  expect_row(rows[0],
             GetParam() == Mode::embedded ? Verdict::not_shareable : Verdict::outside_store_segment,
             Path::staged,
             {"mmap memory", std::to_string(4 * kSlotBytes) + " bytes", "--host-allocator kv=shm"});
  expect_row(rows[1], Verdict::ok, Path::zero_copy);
  expect_warnings(pools, 1, {"pool=kv", "--host-allocator kv=shm"});
  EXPECT_EQ(pools.registry().region_count(), 1u);
  pools.expect_travels("kv", Path::staged);
  pools.expect_travels("draft", Path::zero_copy);
}

// K1 B001: draft, plain mmap, staging off. It ends start-ups elsewhere; here it costs the draft L3.
TEST_P(MooncakeRegistrationTest, K1_B001_ADraftOutsideTheSegmentLosesItsL3Alone) {
  MooncakePools pools(options(), false);
  const auto rows =
      pools.attach({pools.add("kv", {.segments = 2}), pools.add("draft", draft_of(kMmap))});
  expect_row(rows[0], Verdict::ok, Path::zero_copy);
  expect_row(rows[1],
             GetParam() == Mode::embedded ? Verdict::not_shareable : Verdict::outside_store_segment,
             Path::off, {"mmap memory", "0x", "--host-allocator draft=shm"});
  expect_warnings(pools, 1, {"pool=draft"});
  EXPECT_EQ(pools.registrar().calls(), 1u) << "no attempt for what the rule forbids";
  EXPECT_EQ(pools.registry().region_count(), 2u);
  pools.expect_travels("kv", Path::zero_copy);
  pools.expect_host_works("draft");
}

// draft, shm: what crashes elsewhere simply works. It comes after the target, when that runs.
TEST_P(MooncakeRegistrationTest, ADraftInShmMemoryIsZeroCopyAlsoWhenItComesLater) {
  MooncakePools pools(options());
  expect_row(pools.attach({pools.add("kv", {})})[0], Verdict::ok, Path::zero_copy);
  pools.expect_travels("kv", Path::zero_copy);
  const auto rows = pools.attach({pools.add("draft", draft_of(kShm))});
  expect_row(rows[0], Verdict::ok, Path::zero_copy);
  expect_warnings(pools, 0);
  pools.expect_travels("draft", Path::zero_copy);
  pools.expect_travels("kv", Path::zero_copy);
}

// draft, register answers -1, throws, answers nothing; third chunk of five fails (K1 B005, B007).
TEST_P(MooncakeRegistrationTest, K1_B005_B007_AFailingRegistrationIsUndoneAndTheTargetUntouched) {
  struct Failure {
    const char* what;
    Answer answer;
    std::size_t at;  // of the draft's five regions
    std::vector<std::string> named;
  };
  const std::string place = std::to_string(kSlotBytes) + " bytes at 0x";
  const Failure failures[] = {
      {"answers -1", Answer::refuse, 0, {"region 0 of 5", place, "-1"}},
      {"third chunk of five", Answer::refuse, 2, {"region 2 of 5", place, "-1"}},
      {"throws", Answer::throw_error, 0, {"the client's own words"}},
      {"throws at the third", Answer::throw_error, 2, {"the client's own words"}},
      {"answers nothing", Answer::nothing, 2, {"answered for 0 of 5"}},
  };
  for (const bool staging : {true, false}) {
    for (const Failure& failure : failures) {
      SCOPED_TRACE(std::string(failure.what) + (staging ? "" : ", staging off"));
      MooncakePools pools(options(), staging);
      pools.registrar().fail_at(2 + failure.at, failure.answer);
      const auto rows =
          pools.attach({pools.add("kv", {.segments = 2}), pools.add("draft", draft_of(kShm, 5))});
      expect_row(rows[0], Verdict::ok, Path::zero_copy);
      expect_row(rows[1], Verdict::register_failed, staging ? Path::staged : Path::off,
                 failure.named);
      expect_warnings(pools, 1, {"pool=draft", "register_failed"});
      EXPECT_EQ(pools.registry().region_count(), 2u);
      EXPECT_EQ(pools.registrar().registered().size(), 2u) << "nothing stays half-registered";
      pools.expect_travels("kv", Path::zero_copy);
      // Also the store has forgotten the draft: its bytes are copied.
      pools.expect_travels("draft", Path::staged);
    }
  }
}

// The same of the target: it is staged, or L3 is off for the model.
TEST_P(MooncakeRegistrationTest, ATargetWhoseRegistrationFailsIsStagedOrTurnsL3Off) {
  for (const bool staging : {true, false}) {
    MooncakePools pools(options(), staging);
    pools.registrar().fail_at(1, Answer::refuse);
    const auto rows =
        pools.attach({pools.add("kv", {.segments = 2}), pools.add("draft", draft_of(kShm))});
    expect_row(rows[0], Verdict::register_failed, staging ? Path::staged : Path::off);
    expect_row(rows[1], Verdict::ok, staging ? Path::zero_copy : Path::off);
    EXPECT_EQ(pools.registry().storage_on(), staging);
    EXPECT_EQ(pools.registry().region_count(), staging ? 1u : 0u);
    expect_warnings(pools, 1, {"pool=kv"});
    pools.expect_travels("kv", Path::staged);
    pools.expect_travels("draft", staging ? Path::zero_copy : Path::staged);
  }
}

// target, adoption's self-test fails, pool still empty; in use; or no memory to adopt.
TEST(MooncakeAdoption, AFailedSelfTestMovesAnEmptyPoolToStoreMemory) {
  MooncakeOptions options = options_of(Mode::standalone);
  options.agent_environment = {{"HITIDE_TEST_ADOPTIONS_MAX", "1"}};  // bounce memory's
  MooncakePools pools(options, false);
  const auto rows = pools.attach({pools.add("kv", {.segments = 2})});
  expect_row(rows[0], Verdict::adoption_failed, Path::zero_copy, {"moved to store memory"});
  EXPECT_EQ(rows[0].allocator, kStore);
  EXPECT_EQ(pools.registry().region_count(), 2u);
  expect_warnings(pools, 1, {"pool=kv", "adoption_failed"});
  pools.expect_travels("kv", Path::zero_copy);
}

TEST(MooncakeAdoption, AFailedSelfTestStagesAPoolInUse) {
  for (const bool staging : {true, false}) {
    MooncakeOptions options = options_of(Mode::standalone);
    options.agent_environment = {{"HITIDE_TEST_ADOPTIONS_MAX", "1"}};
    MooncakePools pools(options, staging);
    PoolToRegister used = pools.add("kv", {});
    used.memory.in_use = true;
    const auto rows = pools.attach({used});
    expect_row(
        rows[0], Verdict::adoption_failed, staging ? Path::staged : Path::off,
        {"region 0 of 1", std::to_string(4 * kSlotBytes) + " bytes", "--host-allocator kv=store"});
    EXPECT_EQ(rows[0].allocator, kShm);
    EXPECT_EQ(pools.registry().region_count(), 0u);
    expect_warnings(pools, 1, {"pool=kv"});
    pools.expect_travels("kv", Path::staged);
  }
}

TEST(MooncakeAdoption, TooLittleFreeMemoryStagesThePool) {
  // As the agent sees it when it is asked: then there is no store memory to be had either.
  MooncakeOptions options = options_of(Mode::standalone);
  options.bounce_bytes = 4u << 20;
  options.agent_environment = {{"HITIDE_TEST_AVAILABLE_BYTES", std::to_string(69u << 20)}};
  const Shape large{.segments = 1, .slots_per_segment = 64};
  {
    MooncakePools pools(options);
    const auto rows = pools.attach({pools.add("kv", large), pools.add("draft", draft_of(kShm))});
    expect_row(rows[0], Verdict::adoption_failed, Path::staged,
               {"too little free memory", std::to_string(64 * kSlotBytes)});
    expect_row(rows[1], Verdict::ok, Path::zero_copy);
    expect_warnings(pools, 1, {"pool=kv"});
    EXPECT_EQ(pools.registry().region_count(), 1u);
    pools.expect_travels("kv", Path::staged);
    pools.expect_travels("draft", Path::zero_copy);
  }
  // As the rule sees it before any attempt.
  MooncakePools pools(options_of(Mode::standalone));
  ClientCapabilities client = pools.client();
  client.adoption_bytes_max = 4u << 20;
  const auto rows = pools.attach({pools.add("kv", large)}, client);
  expect_row(rows[0], Verdict::adoption_failed, Path::staged,
             {"too little free memory", std::to_string(4u << 20)});
  EXPECT_EQ(pools.registrar().calls(), 0u);
  expect_warnings(pools, 1, {"pool=kv"});
  pools.expect_travels("kv", Path::staged);
}

// logical anchor: no registration, no layout check; the side pools carry the data (K2 B015).
TEST_P(MooncakeRegistrationTest, K2_B015_ALogicalAnchorIsMarkersOnly) {
  MooncakePools pools(options());
  PoolToRegister anchor = MooncakePools::logical("kv");
  anchor.memory.layout_supported = false;  // nobody's business: it has no bytes
  const auto rows = pools.attach({anchor, pools.add("c4", {}), pools.add("swa", {})});
  expect_row(rows[0], Verdict::logical_no_buffer, Path::markers_only);
  expect_row(rows[1], Verdict::ok, Path::zero_copy);
  expect_row(rows[2], Verdict::ok, Path::zero_copy);
  expect_warnings(pools, 0);
  EXPECT_EQ(pools.registry().region_count(), 2u);
  pools.expect_travels("c4", Path::zero_copy);
  pools.expect_travels("swa", Path::zero_copy);
}

PoolSpec pool_spec(const std::string& name, std::uint64_t page_bytes) {
  PoolSpec spec;
  spec.name = name;
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  if (name != "kv") spec.index_source = "kv";
  return spec;
}

// Its pages are really in the store: markers beside the side pools' objects.
TEST_P(MooncakeRegistrationTest, MarkersAndSidePoolsGoToTheStoreAndBack) {
  RegistrationCheck check;
  check.model.weights_digest = "abc";
  check.model.pools = {pool_spec("kv", 0), pool_spec("c4", 100'000), pool_spec("swa", 50'000)};
  check.model.pools[2].hit_policy = {HitPolicy::Kind::trailing_pages, 2};
  check.pages = 6;
  StorageOptions storage;
  storage.backend = "mooncake";
  storage.mooncake = options();
  const auto rows = check_registration(check, storage);
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  expect_row((*rows)[0], Verdict::logical_no_buffer, Path::markers_only);
  expect_row((*rows)[1], Verdict::ok, Path::zero_copy);
  expect_row((*rows)[2], Verdict::ok, Path::zero_copy);
  for (const PoolRegistration& row : *rows) {
    EXPECT_NE(row.measured.find("6 pages put in"), std::string::npos) << row.measured;
  }
}

// no buffer, not logical, all bytes in side pools.
TEST_P(MooncakeRegistrationTest, AnAnchorWhoseBytesAreAllInSidePoolsHasNoneOfItsOwn) {
  MooncakePools pools(options());
  PoolToRegister anchor = MooncakePools::logical("kv");
  anchor.memory.logical = false;
  anchor.memory.side_pools_only = true;
  const auto rows = pools.attach({anchor, pools.add("c4", {})});
  expect_row(rows[0], Verdict::no_buffer_side_pools_only, Path::none);
  expect_row(rows[1], Verdict::ok, Path::zero_copy);
  expect_warnings(pools, 0);
  EXPECT_EQ(pools.registry().region_count(), 1u);
  pools.expect_travels("c4", Path::zero_copy);
}

// a part of a store segment, standalone.
TEST(MooncakeSegments, APartOfASegmentIsStaged) {
  for (const AllocatorKind kind : {kStore, kShm}) {
    MooncakePools pools(options_of(Mode::standalone));
    PoolToRegister part = pools.add("kv", {.allocator = kind});
    part.memory.regions[0].bytes = part.memory.regions[0].bytes.first(2 * kSlotBytes);
    part.memory.whole_segments = false;
    const auto rows = pools.attach({part});
    expect_row(rows[0], Verdict::partial_segment, Path::staged,
               {std::to_string(2 * kSlotBytes) + " bytes at 0x", "whole ones"});
    expect_warnings(pools, 1, {"pool=kv"});
    EXPECT_EQ(pools.registrar().calls(), 0u);
    pools.expect_travels("kv", Path::staged);
  }
}

// the same region again: counted; memory stays until the last unregister (K1 B003).
TEST_P(MooncakeRegistrationTest, K1_B003_TheSameRegionAgainIsCountedUntilTheLastUnregister) {
  MooncakePools pools(options());
  const PoolToRegister target = pools.add("kv", {});
  PoolToRegister twin = target;
  twin.memory.pool = "twin";
  pools.attach({target});
  const auto rows = pools.attach({twin});
  expect_row(rows[0], Verdict::ok, Path::zero_copy, {"counted"});
  EXPECT_EQ(pools.registrar().calls(), 1u);
  EXPECT_EQ(pools.registry().region_count(), 1u);
  expect_warnings(pools, 0);
  EXPECT_TRUE(pools.registry().detach("kv").ok());
  pools.expect_travels("kv", Path::zero_copy);
  EXPECT_TRUE(pools.registry().detach("twin").ok());
  EXPECT_EQ(pools.registry().region_count(), 0u);
  pools.expect_travels("kv", Path::staged);
  EXPECT_EQ(pools.registry().detach("twin").code(), StatusCode::not_found) << "a surplus one";
}

// The store's own part of it: two threads at once, true overlaps, a surplus unregister.
TEST_P(MooncakeRegistrationTest, K1_B003_TheStoreCountsRefusesOverlapsAndMindsNoSurplus) {
  MooncakePools pools(options());
  const MemoryRegion whole = pools.add("kv", {}).memory.regions[0];
  MooncakeStore& store = pools.store();
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] { failed += store.register_memory(whole).ok() ? 0 : 1; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  MemoryRegion half = whole;
  half.bytes = whole.bytes.first(2 * kSlotBytes);
  EXPECT_EQ(store.register_memory(half).code(), StatusCode::invalid_argument);
  half.bytes = whole.bytes.subspan(kSlotBytes);
  half.fd_offset = kSlotBytes;
  EXPECT_EQ(store.register_memory(half).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(store.unregister_memory(whole.bytes).ok());
  pools.expect_travels("kv", Path::zero_copy);
  EXPECT_TRUE(store.unregister_memory(whole.bytes).ok());
  pools.expect_travels("kv", Path::staged);
  EXPECT_EQ(store.unregister_memory(whole.bytes).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(store.register_memory(whole).ok());
  pools.expect_travels("kv", Path::zero_copy);
  EXPECT_TRUE(store.unregister_memory(whole.bytes).ok());
}

// an overlapping region.
TEST_P(MooncakeRegistrationTest, AnOverlappingRegionIsStaged) {
  MooncakePools pools(options());
  const PoolToRegister target = pools.add("kv", {});
  PoolToRegister half = target;
  half.memory.pool = "half";
  half.memory.required = false;
  half.memory.regions[0].bytes = target.memory.regions[0].bytes.first(2 * kSlotBytes);
  pools.attach({target});
  const auto rows = pools.attach({half});
  expect_row(rows[0], Verdict::overlaps_registered, Path::staged,
             {std::to_string(2 * kSlotBytes) + " bytes at 0x",
              std::to_string(4 * kSlotBytes) + " bytes at 0x"});
  expect_warnings(pools, 1, {"pool=half"});
  EXPECT_EQ(pools.registrar().calls(), 1u);
  pools.expect_travels("kv", Path::zero_copy);
}

// optional pool of zero bytes: off, all others on.
TEST_P(MooncakeRegistrationTest, AnOptionalPoolOfNoBytesIsOff) {
  MooncakePools pools(options());
  PoolToRegister empty;
  empty.memory.pool = "draft";
  empty.memory.required = false;
  empty.memory.allocator = kShm;
  const auto rows = pools.attach({pools.add("kv", {}), empty});
  expect_row(rows[0], Verdict::ok, Path::zero_copy);
  expect_row(rows[1], Verdict::empty_buffer, Path::off);
  expect_warnings(pools, 1, {"pool=draft"});
  pools.expect_travels("kv", Path::zero_copy);
}

// required pool of zero bytes, or one that can be neither registered nor staged: L3 is off.
TEST_P(MooncakeRegistrationTest, ARequiredPoolThatCannotGoTurnsL3Off) {
  for (const bool is_empty : {true, false}) {
    MooncakePools pools(options(), false);
    PoolToRegister bad;
    if (is_empty) {
      bad.memory.pool = "side";
      bad.memory.allocator = kShm;
    } else {
      bad = pools.add("side", {.allocator = kMmap});
    }
    const auto rows = pools.attach({pools.add("kv", {}), bad});
    expect_row(rows[0], Verdict::ok, Path::off, {"required pool side"});
    EXPECT_EQ(rows[1].path, Path::off);
    EXPECT_EQ(rows[1].verdict, is_empty                       ? Verdict::empty_buffer
                               : GetParam() == Mode::embedded ? Verdict::not_shareable
                                                              : Verdict::outside_store_segment);
    EXPECT_FALSE(pools.registry().storage_on());
    EXPECT_EQ(pools.registry().region_count(), 0u);
    expect_warnings(pools, 1, {"pool=side", "L3 is off for the model; L1 and L2 go on"});
    pools.expect_host_works("kv");
  }
}

// foreign pool with a layout the store cannot take.
TEST_P(MooncakeRegistrationTest, AForeignLayoutIsStaged) {
  MooncakePools pools(options());
  PoolToRegister foreign = pools.add("kv", {});
  foreign.memory.layout_supported = false;
  const auto rows = pools.attach({foreign});
  expect_row(rows[0], Verdict::layout_unsupported, Path::staged);
  expect_warnings(pools, 1, {"pool=kv"});
  pools.expect_travels("kv", Path::staged);
}

// protocol rdma without a device: one line that names MOONCAKE_PROTOCOL=tcp.
TEST(MooncakeTransport, RdmaWithoutADeviceIsSeenBeforeAnyAttempt) {
  RegistrationCheck check;
  check.model.weights_digest = "abc";
  check.model.pools = {pool_spec("kv", 4096), pool_spec("draft", 4096)};
  check.model.pools[1].required = false;
  StorageOptions storage;
  storage.backend = "mooncake";
  storage.mooncake = options_of(Mode::embedded);
  storage.mooncake.protocol = "rdma";
  storage.mooncake.device_name = "mlx5_77";
  const auto rows = check_registration(check, storage);
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  for (const PoolRegistration& row : *rows) {
    expect_row(row, Verdict::transport_unavailable, Path::off,
               {"mlx5_77", "MOONCAKE_PROTOCOL=tcp"});
  }
  EXPECT_FALSE(storage_on(*rows));
}

// store down at attach, then back.
TEST(MooncakeDown, AStoreThatIsDownIsAVerdictAndAttachesWhenItIsBack) {
  MooncakeStack stack(mooncake_stack().python(), 64);
  ASSERT_TRUE(stack.ready());
  stack.tell("kill-master");
  auto store = MooncakeStore::open(stack.options());
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  OpenedStore opened = store_client(std::move(*store), SystemClock::instance().now() + 100ms);
  EXPECT_FALSE(opened.status.ok());
  StoreRegistrar registrar(*opened.store);
  PoolRegistry registry(registrar, {.staging_allowed = true});
  const auto memory = HostMemory::create({.stride_bytes = 4096, .slot_count = 4});
  ASSERT_TRUE(memory.ok());
  PoolToRegister pool;
  pool.memory = {.pool = "kv", .allocator = kShm};
  const HostSegment& segment = (*memory)->segments()[0];
  pool.memory.regions = {{.bytes = segment.bytes, .fd = segment.fd.get()}};
  expect_row(registry.attach({&pool, 1}, opened.client)[0], Verdict::client_down, Path::off);
  EXPECT_EQ(registry.region_count(), 0u);
  stack.tell("start-master");
  ASSERT_TRUE(opened.store->wait_until_ready(SystemClock::instance().now() + 60s).ok());
  expect_row(registry.attach({&pool, 1}, client_of(*opened.store))[0], Verdict::ok,
             Path::zero_copy);
  EXPECT_EQ(registry.region_count(), 1u);
}

// K1 B011: what is registered is what was allocated, rounding included.
TEST_P(MooncakeRegistrationTest, K1_B011_TheRegisteredLengthIsTheAllocatedOne) {
  for (const AllocatorKind kind : {kShm, kStore}) {
    MooncakePools pools(options());
    pools.attach({pools.add("kv", {.allocator = kind, .segments = 2, .slots_per_segment = 3})});
    ASSERT_EQ(pools.registrar().registered().size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(pools.registrar().registered()[i].data(), pools.segment("kv", i).data());
      EXPECT_EQ(pools.registrar().registered()[i].size(), pools.segment("kv", i).size());
    }
    pools.expect_travels("kv", Path::zero_copy);  // the last slot ends where the segment does
  }
}

// K1 B013: a new agent is given every region again; memory that was never registered is copied,
// and not a line is said for it.
TEST_P(MooncakeRegistrationTest, K1_B013_AReconnectRegistersAgainAndStrayMemoryIsNoError) {
  MooncakePools pools(options());
  pools.attach({pools.add("kv", {.segments = 2})});
  pools.add("stray", {.allocator = kMmap});
  pools.expect_travels("kv", Path::zero_copy);
  ASSERT_EQ(::kill(pools.store().agent_pid(), SIGKILL), 0);
  while (pools.store().counts().agent_starts < 2) std::this_thread::yield();
  ASSERT_TRUE(pools.store().wait_until_ready(SystemClock::instance().now() + 60s).ok());
  pools.expect_travels("kv", Path::zero_copy);
  pools.expect_travels("stray", Path::staged);
  expect_warnings(pools, 0);
}

// Memory as an engine may come with it: named, mapped, bound to the first node or not.
class EnginesMemory {
 public:
  struct Kind {
    const char* name;
    AllocatorKind allocator;
    bool on_heap = false;
    bool file = false;
    bool huge = false;
    bool bound = false;
  };
  static constexpr std::size_t kBytes = 4u << 20;

  explicit EnginesMemory(const Kind& kind) : kind_(kind) {
    void* at = MAP_FAILED;
    if (kind.on_heap) {
      at = std::aligned_alloc(4096, kBytes);
    } else if (kind.file) {
      const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (kind.huge ? MFD_HUGETLB : 0u);
      fd_ = UniqueFd(::memfd_create("engine", flags));
      if (::ftruncate(fd_.get(), kBytes) == 0 &&
          ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
      }
    } else {
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (kind.huge ? MAP_HUGETLB : 0);
      at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    }
    if (at == MAP_FAILED || at == nullptr) return;
    bytes_ = {static_cast<std::byte*>(at), kBytes};
    const unsigned long first_node = 1;
    if (kind.bound && ::syscall(SYS_mbind, at, kBytes, 2, &first_node, 64ul, 0u) != 0) unbound_ = 1;
  }
  ~EnginesMemory() {
    if (bytes_.empty()) return;
    kind_.on_heap ? std::free(bytes_.data())
                  : static_cast<void>(::munmap(bytes_.data(), bytes_.size()));
  }
  EnginesMemory(const EnginesMemory&) = delete;
  EnginesMemory& operator=(const EnginesMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }  // empty: this machine has none of it
  bool bound() const { return kind_.bound && unbound_ == 0; }
  PoolMemory told() const {
    PoolMemory memory;
    memory.pool = "kv";
    memory.in_use = true;
    memory.allocator = kind_.allocator;
    memory.regions = {{.bytes = bytes_, .fd = fd_.get()}};
    return memory;
  }

 private:
  const Kind kind_;
  UniqueFd fd_;
  std::span<std::byte> bytes_;
  int unbound_ = 0;
};

// K16 B215: memory of every kind has a verdict, and its pages travel: as they lie where the client
// can map them, else by way of others.
TEST_P(MooncakeRegistrationTest, K16_B215_MemoryOfEveryKindHasAVerdictAndTravels) {
  using Kind = EnginesMemory::Kind;
  for (const Kind& kind :
       {Kind{.name = "malloc", .allocator = AllocatorKind::none, .on_heap = true},
        Kind{.name = "mmap", .allocator = kMmap},
        Kind{.name = "mmap on a node", .allocator = kMmap, .bound = true},
        Kind{.name = "mmap, hugetlb", .allocator = kMmap, .huge = true},
        Kind{.name = "memfd", .allocator = kShm, .file = true},
        Kind{.name = "memfd on a node", .allocator = kShm, .file = true, .bound = true},
        Kind{.name = "memfd, hugetlb", .allocator = kShm, .file = true, .huge = true}}) {
    SCOPED_TRACE(kind.name);
    const EnginesMemory memory(kind);
    if (memory.bytes().empty() || (kind.bound && !memory.bound())) {
      std::cout << "not tried: " << kind.name << ": this machine has none\n";
      EXPECT_TRUE(kind.huge || kind.bound);
      continue;
    }
    MooncakePools pools(options());
    const auto rows = pools.attach({{.memory = memory.told(), .move_to_store_memory = {}}});
    // What becomes of files of huge pages has not been seen; that they travel must hold all the
    // same.
    const bool unseen = kind.file && kind.huge;
    const bool direct = unseen ? rows[0].path == Path::zero_copy : kind.allocator == kShm;
    const Verdict refused =
        GetParam() == Mode::embedded ? Verdict::not_shareable : Verdict::outside_store_segment;
    if (!unseen) {
      expect_row(rows[0], direct ? Verdict::ok : refused, direct ? Path::zero_copy : Path::staged);
    }
    const std::string key = std::string("kind/") + kind.name + std::to_string(::getpid()) +
                            (GetParam() == Mode::embedded ? "e" : "s");
    const auto source = memory.bytes().subspan(8192, 300'000);
    const auto target = memory.bytes().subspan(2u << 20, 300'000);
    const auto content = bytes_of(key, source.size());
    std::copy(content.begin(), content.end(), source.begin());
    const MooncakeCounts before = pools.store().counts();
    EXPECT_EQ(put_object(pools.store(), key, source), StatusCode::ok);
    const GetItem item{.key = key, .buffers = std::span(&target, 1)};
    ItemResult result;
    EXPECT_TRUE(pools.store().get({&item, 1}, {&result, 1}, {}).status.ok());
    EXPECT_EQ(result.code, StatusCode::ok);
    EXPECT_TRUE(std::equal(content.begin(), content.end(), target.begin()));
    const MooncakeCounts after = pools.store().counts();
    EXPECT_EQ(after.zero_copy_items - before.zero_copy_items, direct ? 2u : 0u);
    EXPECT_EQ(after.staged_items - before.staged_items, direct ? 0u : 2u);
    remove_object(pools.store(), key);
    pools.registry().detach_all();
  }
}

// K2 B019: in a group exactly the wrong pool is named, not the anchor, which has no allocator.
TEST_P(MooncakeRegistrationTest, K2_B019_ExactlyTheWrongPoolOfAGroupIsNamed) {
  MooncakePools pools(options());
  const auto rows = pools.attach({MooncakePools::logical("kv"), pools.add("right", {}),
                                  pools.add("wrong", {.allocator = kMmap})});
  EXPECT_EQ(rows[0].verdict, Verdict::logical_no_buffer);
  EXPECT_EQ(rows[1].verdict, Verdict::ok);
  EXPECT_EQ(rows[2].path, Path::staged);
  expect_warnings(pools, 1, {"pool=wrong", "--host-allocator wrong=shm"});
  pools.expect_travels("wrong", Path::staged);
}

// K2 B023: every backend that has a name can be made with the least configuration, and answers each
// call of the interface.
TEST(StorageBackends, K2_B023_EachCanBeMadeAndAnswersEveryCall) {
  set_log_sink([](LogLevel, std::string_view) {});
  const TempDirectory directory;
  for (const std::string_view name : storage_backends()) {
    SCOPED_TRACE(name);
    StorageOptions options;
    options.backend = name;
    options.path = directory / "store";
    options.mooncake = options_of(Mode::embedded);
    auto opened = open_object_store(options);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    ObjectStore& store = **opened;
    EXPECT_TRUE(store.wait_until_ready(SystemClock::instance().now() + 60s).ok());
    EXPECT_EQ(store.capabilities().name, name);
    EXPECT_GT(store.capabilities().object_bytes_max, 0u);
    const auto memory = HostMemory::create({.stride_bytes = 4096, .slot_count = 1});
    ASSERT_TRUE(memory.ok());
    const HostSegment& segment = (*memory)->segments()[0];
    EXPECT_TRUE(store.register_memory({.bytes = segment.bytes, .fd = segment.fd.get()}).ok());
    const bool keeps = name != "null";
    EXPECT_EQ(put_object(store, "b023", bytes_of("b023", 100)), StatusCode::ok);
    EXPECT_EQ(exists_object(store, "b023"), keeps ? StatusCode::ok : StatusCode::not_found);
    EXPECT_EQ(check_object(store, "b023", 100), keeps ? StatusCode::ok : StatusCode::not_found);
    EXPECT_EQ(remove_object(store, "b023"), StatusCode::ok);
    EXPECT_EQ(exists_object(store, "b023"), StatusCode::not_found);
    const auto handed_out = store.allocate_memory("b023", 4096);
    EXPECT_TRUE(handed_out.ok() || handed_out.status().code() == StatusCode::unimplemented);
    if (handed_out.ok()) store.release_memory(handed_out->bytes);
    EXPECT_EQ(store.stats().puts, 1u);
    EXPECT_TRUE(store.unregister_memory(segment.bytes).ok());
    EXPECT_TRUE(store.close(SystemClock::instance().now() + 60s).ok());
  }
  set_log_sink({});
}

}  // namespace
}  // namespace hitide
