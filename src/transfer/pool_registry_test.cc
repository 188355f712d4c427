#include "transfer/pool_registry.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"
#include "pool/host_memory.h"
#include "storage/memory/memory_store.h"
#include "tests/support/fault_store.h"
#include "tests/support/registrar_double.h"

namespace hitide {
namespace {

using Verdict = RegistrationVerdict;
using Path = RegistrationPath;
using Answer = RegistrarDouble::Answer;

constexpr std::size_t kChunk = 1u << 20;

// Addresses that nobody touches: chunk `number` of all memory there is.
std::span<std::byte> chunk(std::size_t number) {
  return {reinterpret_cast<std::byte*>(0x7000'0000'0000 + number * kChunk), kChunk};
}
PoolMemory pool(std::string name, AllocatorKind allocator, std::size_t first,
                std::size_t chunks = 1) {
  PoolMemory memory;
  memory.pool = std::move(name);
  memory.allocator = allocator;
  for (std::size_t i = 0; i < chunks; ++i) {
    memory.regions.push_back(
        {.bytes = chunk(first + i), .fd = allocator == AllocatorKind::mmap ? -1 : 7});
  }
  return memory;
}
PoolMemory target(std::size_t chunks = 1) { return pool("kv", AllocatorKind::shm, 0, chunks); }
PoolMemory draft(std::size_t chunks = 1, AllocatorKind allocator = AllocatorKind::shm) {
  PoolMemory memory = pool("draft", allocator, 100, chunks);
  memory.required = false;
  return memory;
}
PoolMemory logical() {
  PoolMemory memory;
  memory.pool = "kv";
  memory.logical = true;
  return memory;
}

ClientCapabilities client(ClientKind kind) {
  ClientCapabilities capabilities;
  capabilities.kind = kind;
  return capabilities;
}
const ClientCapabilities kEmbedded = client(ClientKind::embedded);
const ClientCapabilities kStandalone = client(ClientKind::standalone);

class PoolRegistryTest : public testing::Test {
 protected:
  PoolRegistryTest() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      if (level >= LogLevel::warning) warnings_.emplace_back(line);
    });
    use({.staging_allowed = true});
  }
  ~PoolRegistryTest() override {
    registry_.reset();
    set_log_sink({});
  }
  void use(const RegistrationRules& rules) {
    registry_ = std::make_unique<PoolRegistry>(double_, rules);
  }
  std::vector<PoolRegistration> attach(std::vector<PoolMemory> memories,
                                       const ClientCapabilities& with) {
    std::vector<PoolToRegister> pools;
    for (PoolMemory& memory : memories) pools.push_back({.memory = std::move(memory)});
    return registry_->attach(pools, with);
  }
  bool warned_of(std::string_view part) const {
    return std::any_of(warnings_.begin(), warnings_.end(), [&](const std::string& line) {
      return line.find(part) != std::string::npos;
    });
  }

  std::vector<std::string> warnings_;
  RegistrarDouble double_;
  std::unique_ptr<PoolRegistry> registry_;
};

void expect(const PoolRegistration& row, Verdict verdict, Path path) {
  EXPECT_EQ(to_string(row.verdict), to_string(verdict)) << row.pool << ": " << row.reason;
  EXPECT_EQ(to_string(row.path), to_string(path)) << row.pool << ": " << row.reason;
}

TEST_F(PoolRegistryTest, RegistersAllAndUnregistersInReverse) {
  const auto rows = attach({target(2), draft()}, kEmbedded);
  expect(rows[0], Verdict::ok, Path::zero_copy);
  expect(rows[1], Verdict::ok, Path::zero_copy);
  EXPECT_TRUE(warnings_.empty());
  EXPECT_EQ(double_.registered().size(), 3u);
  EXPECT_TRUE(registry_->storage_on());
  registry_->detach_all();
  ASSERT_EQ(double_.unregistered().size(), 3u);
  EXPECT_EQ(double_.unregistered()[0].data(), chunk(100).data());
  EXPECT_EQ(double_.unregistered()[1].data(), chunk(1).data());
  EXPECT_EQ(double_.unregistered()[2].data(), chunk(0).data());
  EXPECT_FALSE(registry_->storage_on());
}

// The draft that lies outside the segment. What crashes elsewhere costs the draft its L3.
TEST_F(PoolRegistryTest, K1_B001_ADraftOutsideTheSegmentLeavesTheTargetAlone) {
  use({.staging_allowed = false});
  const auto rows = attach({target(2), draft(1, AllocatorKind::mmap)}, kStandalone);
  expect(rows[0], Verdict::ok, Path::zero_copy);
  expect(rows[1], Verdict::outside_store_segment, Path::off);
  EXPECT_EQ(double_.registered().size(), 2u) << "no attempt for what the rule forbids";
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_TRUE(warned_of("draft"));
  EXPECT_TRUE(warned_of("--host-allocator draft=shm"));
}

// Every way in which a call can fail, for the draft and for the target, with and without staging.
TEST_F(PoolRegistryTest, K1_B005_AFailingCallIsUndoneAndBecomesTheNextPath) {
  struct Failure {
    const char* what;
    Answer answer;
    std::size_t at;  // of the pool's five regions
    const char* reason;
  };
  const Failure failures[] = {
      {"answers -1", Answer::refuse, 0, "-1"},
      {"third chunk of five", Answer::refuse, 2, "region 2 of 5"},
      {"last chunk of five", Answer::refuse, 4, "-1"},
      {"throws", Answer::throw_error, 0, "the client's own words"},
      {"throws at the third", Answer::throw_error, 2, "the client's own words"},
      {"answers nothing", Answer::nothing, 0, "answered for 0 of 5"},
      {"answers nothing after three", Answer::nothing, 3, "answered for 0 of 5"},
      {"answers once too often", Answer::too_many, 4, "answered for 6 of 5"},
  };
  for (const Failure& failure : failures) {
    for (const bool staging : {true, false}) {
      for (const bool of_draft : {true, false}) {
        SCOPED_TRACE(std::string(failure.what) + (staging ? ", staging" : "") +
                     (of_draft ? ", draft" : ", target"));
        RegistrarDouble registrar;
        warnings_.clear();
        PoolRegistry registry(registrar, {.staging_allowed = staging});
        registrar.fail_at((of_draft ? 3 : 0) + failure.at, failure.answer);
        const std::vector<PoolToRegister> pools = {{.memory = target(of_draft ? 3 : 5)},
                                                   {.memory = draft(of_draft ? 5 : 3)}};
        const auto rows = registry.attach(pools, kEmbedded);
        const Path bad = staging ? Path::staged : Path::off;
        const bool all_off = !of_draft && !staging;
        expect(rows[of_draft ? 1 : 0], Verdict::register_failed, bad);
        expect(rows[of_draft ? 0 : 1], Verdict::ok, all_off ? Path::off : Path::zero_copy);
        EXPECT_NE(rows[of_draft ? 1 : 0].reason.find(failure.reason), std::string::npos)
            << rows[of_draft ? 1 : 0].reason;
        EXPECT_EQ(registrar.registered().size(), all_off ? 0u : 3u) << "nothing half-registered";
        EXPECT_EQ(registry.region_count(), registrar.registered().size());
        EXPECT_EQ(warnings_.size(), 1u);
      }
    }
  }
}

// A pool's memory as it is cut into regions, in the order of its slots.
PoolMemory cut(const HostMemory& memory) {
  PoolMemory told;
  told.pool = "kv";
  told.allocator = memory.allocator();
  for (const HostSegment& segment : memory.segments()) {
    told.regions.push_back({.bytes = segment.bytes, .fd = segment.fd.get()});
  }
  return told;
}

// K1 B007: a pool of several regions, of which one fails; no empty region at the end.
TEST_F(PoolRegistryTest, K1_B007_ARegionThatFailsTakesTheOthersOfItsPoolBack) {
  for (const auto& [slots, regions] : {std::pair{10u, 4u}, {9u, 3u}, {2u, 1u}}) {
    SCOPED_TRACE(slots);
    const auto memory = HostMemory::create(
        {.stride_bytes = 4096, .slot_count = slots, .segment_bytes_max = 3 * 4096});
    ASSERT_TRUE(memory.ok());
    const PoolMemory told = cut(**memory);
    ASSERT_EQ(told.regions.size(), regions);
    EXPECT_EQ(told.bytes(), slots * 4096u);
    for (const MemoryRegion& region : told.regions) EXPECT_FALSE(region.bytes.empty());
    RegistrarDouble registrar;
    PoolRegistry registry(registrar, {.staging_allowed = true});
    warnings_.clear();
    if (regions == 4) registrar.fail_at(2, Answer::refuse);
    const PoolToRegister pool{.memory = told};
    const auto rows = registry.attach({&pool, 1}, kEmbedded);
    if (regions < 4) {
      expect(rows[0], Verdict::ok, Path::zero_copy);
      EXPECT_EQ(registrar.registered().size(), regions);
      continue;
    }
    expect(rows[0], Verdict::register_failed, Path::staged);
    EXPECT_EQ(warnings_.size(), 1u);
    EXPECT_TRUE(warned_of("region 2 of 4")) << rows[0].reason;
    EXPECT_TRUE(registrar.registered().empty());
    ASSERT_EQ(registrar.unregistered().size(), 3u) << "the last one had been registered too";
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t region[] = {3, 1, 0};
      EXPECT_EQ(registrar.unregistered()[i].data(), told.regions[region[i]].bytes.data());
    }
  }
}

// K1 B009: 37 blocks of 768 KiB under a limit of 5 MiB: no block lies in two regions.
TEST_F(PoolRegistryTest, K1_B009_EveryCutLiesOnABlockBoundary) {
  constexpr std::uint64_t kBlock = 768u << 10;
  constexpr std::uint32_t kBlocks = 37;
  const auto memory = HostMemory::create(
      {.stride_bytes = kBlock, .slot_count = kBlocks, .segment_bytes_max = 5u << 20});
  ASSERT_TRUE(memory.ok());
  const PoolMemory told = cut(**memory);
  EXPECT_EQ(told.bytes(), kBlocks * kBlock);
  std::uint32_t block = 0;
  for (const MemoryRegion& region : told.regions) {
    EXPECT_LE(region.bytes.size(), 5u << 20);
    EXPECT_EQ(region.bytes.size() % kBlock, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.bytes.data()) % 4096, 0u);
    for (std::uint64_t at = 0; at < region.bytes.size(); at += kBlock) {
      EXPECT_EQ((*memory)->slot(block++).data(), region.bytes.data() + at);
    }
  }
  EXPECT_EQ(block, kBlocks);
  ASSERT_EQ(told.regions.size(), 7u);
  double_.fail_at(5, Answer::throw_error);
  expect(attach({told}, kEmbedded)[0], Verdict::register_failed, Path::staged);
  EXPECT_TRUE(double_.registered().empty());
  ASSERT_EQ(double_.unregistered().size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(double_.unregistered()[i].data(), told.regions[4 - i].bytes.data());
  }
}

TEST_F(PoolRegistryTest, UndoingGoesInReverse) {
  double_.fail_at(2, Answer::throw_error);
  attach({target(5)}, kEmbedded);
  ASSERT_EQ(double_.unregistered().size(), 2u);
  EXPECT_EQ(double_.unregistered()[0].data(), chunk(1).data());
  EXPECT_EQ(double_.unregistered()[1].data(), chunk(0).data());
}

TEST_F(PoolRegistryTest, ARequiredPoolThatIsOffTurnsTheModelOffBeforeAnyAttempt) {
  use({.staging_allowed = false});
  const auto rows = attach({pool("kv", AllocatorKind::mmap, 0), draft()}, kStandalone);
  expect(rows[0], Verdict::outside_store_segment, Path::off);
  expect(rows[1], Verdict::ok, Path::off);
  EXPECT_EQ(double_.calls(), 0u);
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_FALSE(registry_->storage_on());
}

TEST_F(PoolRegistryTest, TheModelIsTurnedOffAfterAnAttemptToo) {
  use({.staging_allowed = false});
  PoolMemory side = pool("side", AllocatorKind::shm, 50, 2);
  double_.fail_at(3, Answer::refuse);  // its second region
  const auto rows = attach({target(2), side, draft()}, kEmbedded);
  expect(rows[0], Verdict::ok, Path::off);
  expect(rows[1], Verdict::register_failed, Path::off);
  expect(rows[2], Verdict::ok, Path::off);
  EXPECT_TRUE(double_.registered().empty());
  EXPECT_NE(rows[0].reason.find("required pool side"), std::string::npos);
}

// An anchor without a buffer is no error and is never registered.
TEST_F(PoolRegistryTest, K2_B015_LogicalAnchorsAreMarkersOnly) {
  for (const ClientCapabilities& with : {kEmbedded, kStandalone}) {
    const auto rows = attach({logical(), pool("c4", AllocatorKind::shm, 0, 2)}, with);
    expect(rows[0], Verdict::logical_no_buffer, Path::markers_only);
    expect(rows[1], Verdict::ok, Path::zero_copy);
    EXPECT_EQ(double_.registered().size(), 2u);
    registry_->detach_all();
  }
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(PoolRegistryTest, AdoptionFailsIntoStoreMemoryWhileThePoolIsEmpty) {
  double_.fail_at(0, Answer::refuse, Status(StatusCode::data_loss, "self-test: other bytes"));
  int moves = 0;
  PoolToRegister empty{.memory = target(2)};
  empty.move_to_store_memory = [&]() -> Result<PoolMemory> {
    ++moves;
    return pool("kv", AllocatorKind::store, 20, 3);
  };
  const auto rows = registry_->attach(std::span(&empty, 1), kStandalone);
  expect(rows[0], Verdict::adoption_failed, Path::zero_copy);
  EXPECT_EQ(rows[0].allocator, AllocatorKind::store);
  EXPECT_EQ(rows[0].bytes, 3 * kChunk);
  EXPECT_EQ(moves, 1);
  EXPECT_EQ(double_.registered().size(), 3u);
  EXPECT_EQ(double_.registered()[0].data(), chunk(20).data());
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(PoolRegistryTest, AdoptionFailsIntoStagingOtherwise) {
  const Status self_test(StatusCode::data_loss, "self-test: other bytes");
  PoolToRegister used{.memory = target()};
  used.memory.in_use = true;
  used.move_to_store_memory = []() -> Result<PoolMemory> {
    ADD_FAILURE() << "a pool in use must not be moved";
    return Status(StatusCode::internal, "");
  };
  double_.fail_at(0, Answer::refuse, self_test);
  expect(registry_->attach(std::span(&used, 1), kStandalone)[0], Verdict::adoption_failed,
         Path::staged);
  // The client has no memory to hand out.
  PoolToRegister poor{.memory = target()};
  poor.move_to_store_memory = []() -> Result<PoolMemory> {
    return Status(StatusCode::resource_exhausted, "the client has no memory");
  };
  double_.fail_at(1, Answer::refuse, Status(StatusCode::resource_exhausted, "no room to adopt"));
  const auto rows = registry_->attach(std::span(&poor, 1), kStandalone);
  expect(rows[0], Verdict::adoption_failed, Path::staged);
  EXPECT_NE(rows[0].reason.find("the client has no memory"), std::string::npos);
  // Store memory that is refused as well.
  PoolToRegister refused{.memory = target()};
  refused.move_to_store_memory = []() -> Result<PoolMemory> {
    return pool("kv", AllocatorKind::store, 30);
  };
  double_.refuse_all(self_test);
  expect(registry_->attach(std::span(&refused, 1), kStandalone)[0], Verdict::adoption_failed,
         Path::staged);
  EXPECT_TRUE(double_.registered().empty());
}

// Usable until the last unregister; a surplus one changes nothing.
TEST_F(PoolRegistryTest, K1_B003_TheSameRegionAgainIsCounted) {
  attach({target()}, kEmbedded);
  PoolMemory twin = target();
  twin.pool = "twin";
  const auto rows = attach({twin}, kEmbedded);
  expect(rows[0], Verdict::ok, Path::zero_copy);
  attach({target()}, kEmbedded);
  EXPECT_EQ(double_.registered().size(), 1u);
  EXPECT_EQ(double_.calls(), 1u);
  EXPECT_TRUE(registry_->detach("kv").ok());
  EXPECT_TRUE(registry_->detach("twin").ok());
  EXPECT_EQ(double_.registered().size(), 1u) << "stays until the last one lets go";
  EXPECT_TRUE(registry_->detach("kv").ok());
  EXPECT_TRUE(double_.registered().empty());
  EXPECT_EQ(registry_->detach("kv").code(), StatusCode::not_found);
  EXPECT_EQ(double_.unregistered().size(), 1u);
}

TEST_F(PoolRegistryTest, OverlapsAreStagedAndNeverAttempted) {
  attach({target(2)}, kEmbedded);
  PoolMemory half = target();
  half.pool = "half";
  half.required = false;
  half.regions[0].bytes = {chunk(0).data() + kChunk / 2, kChunk};
  expect(attach({half}, kEmbedded)[0], Verdict::overlaps_registered, Path::staged);
  EXPECT_EQ(double_.calls(), 1u);
  EXPECT_EQ(double_.registered().size(), 2u);
}

TEST_F(PoolRegistryTest, TwoThreadsRegisterTheSameRegion) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const PoolToRegister same{.memory = target()};
        expect(registry_->attach(std::span(&same, 1), kEmbedded)[0], Verdict::ok, Path::zero_copy);
        EXPECT_TRUE(registry_->detach("kv").ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(double_.registered().empty());
}

// A draft attached after the start goes through the same door, and cannot hurt what runs.
TEST_F(PoolRegistryTest, ALatePoolLeavesEarlierOnesAlone) {
  use({.staging_allowed = false});
  attach({target(2)}, kStandalone);
  expect(attach({draft(1, AllocatorKind::mmap)}, kStandalone)[0], Verdict::outside_store_segment,
         Path::off);
  EXPECT_TRUE(registry_->storage_on());
  double_.fail_at(2, Answer::refuse);
  expect(attach({draft(2)}, kStandalone)[0], Verdict::register_failed, Path::off);
  EXPECT_EQ(double_.registered().size(), 2u);
  expect(attach({draft(2)}, kStandalone)[0], Verdict::ok, Path::zero_copy);
  EXPECT_EQ(double_.registered().size(), 4u);
  ASSERT_EQ(registry_->pools().size(), 2u);
  expect(registry_->pools()[0], Verdict::ok, Path::zero_copy);
}

TEST_F(PoolRegistryTest, AStoreThatIsDownIsOneLineAndAttachesLater) {
  ClientCapabilities down = kStandalone;
  down.reachable = false;
  down.detail = "no answer from 127.0.0.1:1";
  const auto rows = attach({logical(), pool("c4", AllocatorKind::shm, 0), draft()}, down);
  for (const PoolRegistration& row : rows) expect(row, Verdict::client_down, Path::off);
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(double_.calls(), 0u);
  const auto later = attach({logical(), pool("c4", AllocatorKind::shm, 0), draft()}, kStandalone);
  expect(later[0], Verdict::logical_no_buffer, Path::markers_only);
  expect(later[1], Verdict::ok, Path::zero_copy);
  EXPECT_EQ(registry_->pools().size(), 3u);
}

TEST_F(PoolRegistryTest, MetricsNamePoolVerdictAndPath) {
  double_.fail_at(1, Answer::refuse);
  attach({target(), draft(2)}, kEmbedded);
  MetricsText text;
  registry_->write_metrics(text);
  const std::string metrics = std::move(text).text();
  for (const char* part :
       {"hitide_registration_attempts_total 3", "hitide_registration_failures_total 1",
        "hitide_registration_undone_total 1",
        R"(hitide_pool_registration{pool="draft",verdict="register_failed",path="staged"} 1)"}) {
    EXPECT_NE(metrics.find(part), std::string::npos) << part << "\n" << metrics;
  }
}

// Whatever fails: what is registered is exactly the regions of zero_copy pools, and all is given
// back at the end.
TEST_F(PoolRegistryTest, RandomFailuresNeverLeaveAPoolHalfRegistered) {
  const std::uint64_t seed = 471100;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    RegistrarDouble registrar;
    const bool staging = random.next() % 2 == 0;
    PoolRegistry registry(registrar, {.staging_allowed = staging});
    std::vector<PoolToRegister> pools;
    std::size_t first = 0;
    for (std::uint64_t i = 0; i < 1 + random.next() % 4; ++i) {
      const std::size_t chunks = 1 + random.next() % 4;
      PoolToRegister one{.memory =
                             pool("p" + std::to_string(i), AllocatorKind::shm, first, chunks)};
      one.memory.required = random.next() % 2 == 0;
      first += chunks;
      pools.push_back(std::move(one));
    }
    for (std::uint64_t i = 0; i < random.next() % 3; ++i) {
      registrar.fail_at(random.next() % first, static_cast<Answer>(random.next() % 4));
    }
    const auto rows = registry.attach(pools, random.next() % 2 == 0 ? kEmbedded : kStandalone);
    std::size_t want = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].path == Path::zero_copy) want += pools[i].memory.regions.size();
    }
    ASSERT_EQ(registrar.registered().size(), want) << registration_text(rows);
    ASSERT_EQ(registry.region_count(), want);
    registry.detach_all();
    ASSERT_TRUE(registrar.registered().empty());
  }
}

// Over a store: the regions arrive there, and leave again.
TEST(StoreRegistrar, PassesRegionsOn) {
  FaultStore store(std::make_unique<MemoryStore>(1u << 20));
  StoreRegistrar registrar(store);
  {
    PoolRegistry registry(registrar, {.staging_allowed = true});
    const PoolToRegister one{.memory = target(3)};
    expect(registry.attach(std::span(&one, 1), client(ClientKind::local))[0], Verdict::ok,
           Path::zero_copy);
    EXPECT_EQ(store.registrations(), 3u);
  }
  EXPECT_EQ(store.registrations(), 0u);
}

}  // namespace
}  // namespace hitide
