#include "pool/registrability.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace hitide {
namespace {

using Verdict = RegistrationVerdict;
using Path = RegistrationPath;

// Addresses that nobody touches; descriptors that nobody uses.
std::span<std::byte> at(std::uintptr_t address, std::size_t bytes) {
  return {reinterpret_cast<std::byte*>(address), bytes};
}
constexpr std::uintptr_t kBase = 0x7000'0000'0000;
constexpr std::size_t kBytes = 1u << 20;

PoolMemory pool(std::string name, AllocatorKind allocator, std::uintptr_t address = kBase) {
  PoolMemory memory;
  memory.pool = std::move(name);
  memory.allocator = allocator;
  const int fd = allocator == AllocatorKind::shm || allocator == AllocatorKind::store ? 7 : -1;
  memory.regions = {{.bytes = at(address, kBytes), .fd = fd}};
  return memory;
}
PoolMemory draft(AllocatorKind allocator) {
  PoolMemory memory = pool("draft", allocator, kBase + 16 * kBytes);
  memory.required = false;
  return memory;
}
PoolMemory logical(std::string name) {
  PoolMemory memory;
  memory.pool = std::move(name);
  memory.logical = true;
  return memory;
}

const ClientCapabilities kEmbedded{.kind = ClientKind::embedded};
const ClientCapabilities kInProcess{.kind = ClientKind::embedded, .sees_private_memory = true};
const ClientCapabilities kStandalone{.kind = ClientKind::standalone};
const ClientCapabilities kLocal{.kind = ClientKind::local};

struct Row {
  std::string what;
  std::vector<PoolMemory> pools;
  ClientCapabilities client;
  bool staging = true;
  std::vector<Verdict> verdicts;
  std::vector<Path> paths;
  std::string reason = {};  // is part of the last pool's reason
  std::string advice = {};  // is part of the last pool's advice
};

PoolMemory changed(PoolMemory memory, auto change) {
  change(memory);
  return memory;
}
ClientCapabilities with(ClientCapabilities client, auto change) {
  change(client);
  return client;
}

// The table of the registration rule, as far as it is decided without an attempt.
const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"shm, embedded",
       {pool("kv", AllocatorKind::shm)},
       kEmbedded,
       true,
       {Verdict::ok},
       {Path::zero_copy}},
      {"store memory, embedded",
       {pool("kv", AllocatorKind::store)},
       kEmbedded,
       true,
       {Verdict::ok},
       {Path::zero_copy}},
      {"mmap, embedded",
       {pool("kv", AllocatorKind::mmap)},
       kEmbedded,
       true,
       {Verdict::not_shareable},
       {Path::staged},
       "mmap memory",
       "--host-allocator kv=shm"},
      {"mmap, a real client in this process",
       {pool("kv", AllocatorKind::mmap)},
       kInProcess,
       true,
       {Verdict::ok},
       {Path::zero_copy}},
      {"mmap, files of this machine",
       {pool("kv", AllocatorKind::mmap)},
       kLocal,
       false,
       {Verdict::ok},
       {Path::zero_copy}},
      {"whole store segment, standalone",
       {pool("kv", AllocatorKind::store)},
       kStandalone,
       true,
       {Verdict::ok},
       {Path::zero_copy}},
      {"shm, standalone",
       {pool("kv", AllocatorKind::shm)},
       kStandalone,
       true,
       {Verdict::ok},
       {Path::zero_copy},
       "adopted"},
      {"mmap, standalone",
       {pool("kv", AllocatorKind::mmap)},
       kStandalone,
       true,
       {Verdict::outside_store_segment},
       {Path::staged},
       "0x7000",
       "--host-allocator kv=shm"},
      {"draft mmap, standalone, staging off",
       {pool("kv", AllocatorKind::shm), draft(AllocatorKind::mmap)},
       kStandalone,
       false,
       {Verdict::ok, Verdict::outside_store_segment},
       {Path::zero_copy, Path::off},
       "1048576",
       "allow staging"},
      {"draft shm, standalone",
       {pool("kv", AllocatorKind::shm), draft(AllocatorKind::shm)},
       kStandalone,
       false,
       {Verdict::ok, Verdict::ok},
       {Path::zero_copy, Path::zero_copy}},
      {"no allocator",
       {pool("kv", AllocatorKind::none)},
       kStandalone,
       true,
       {Verdict::outside_store_segment},
       {Path::staged},
       "no named allocator"},
      {"unknown allocator",
       {pool("kv", AllocatorKind::unknown)},
       kEmbedded,
       true,
       {Verdict::not_shareable},
       {Path::staged},
       "unknown allocator"},
      {"shm without a descriptor",
       {changed(pool("kv", AllocatorKind::shm), [](PoolMemory& m) { m.regions[0].fd = -1; })},
       kEmbedded,
       true,
       {Verdict::not_shareable},
       {Path::staged}},
      {"logical anchor, embedded",
       {logical("kv"), pool("c4", AllocatorKind::shm)},
       kEmbedded,
       false,
       {Verdict::logical_no_buffer, Verdict::ok},
       {Path::markers_only, Path::zero_copy}},
      {"logical anchor, standalone",
       {logical("kv"), pool("c4", AllocatorKind::mmap)},
       kStandalone,
       true,
       {Verdict::logical_no_buffer, Verdict::outside_store_segment},
       {Path::markers_only, Path::staged}},
      {"a logical pool has no layout to check",
       {changed(logical("kv"), [](PoolMemory& m) { m.layout_supported = false; }),
        pool("c4", AllocatorKind::shm)},
       kEmbedded,
       true,
       {Verdict::logical_no_buffer, Verdict::ok},
       {Path::markers_only, Path::zero_copy}},
      {"no buffer, all in side pools",
       {changed(logical("kv"),
                [](PoolMemory& m) {
                  m.logical = false;
                  m.side_pools_only = true;
                }),
        pool("c4", AllocatorKind::shm)},
       kStandalone,
       true,
       {Verdict::no_buffer_side_pools_only, Verdict::ok},
       {Path::none, Path::zero_copy}},
      {"part of a segment, standalone",
       {changed(pool("kv", AllocatorKind::store), [](PoolMemory& m) { m.whole_segments = false; })},
       kStandalone,
       true,
       {Verdict::partial_segment},
       {Path::staged}},
      {"part of a segment, embedded",
       {changed(pool("kv", AllocatorKind::store), [](PoolMemory& m) { m.whole_segments = false; })},
       kEmbedded,
       true,
       {Verdict::ok},
       {Path::zero_copy}},
      {"the same region again",
       {pool("kv", AllocatorKind::shm), pool("twin", AllocatorKind::shm)},
       kEmbedded,
       true,
       {Verdict::ok, Verdict::ok},
       {Path::zero_copy, Path::zero_copy},
       "counted"},
      {"an overlapping region",
       {pool("kv", AllocatorKind::shm), pool("late", AllocatorKind::shm, kBase + kBytes / 2)},
       kEmbedded,
       true,
       {Verdict::ok, Verdict::overlaps_registered},
       {Path::zero_copy, Path::staged},
       "0x700000080000"},
      {"neighbours do not overlap",
       {pool("kv", AllocatorKind::shm), pool("late", AllocatorKind::shm, kBase + kBytes)},
       kEmbedded,
       true,
       {Verdict::ok, Verdict::ok},
       {Path::zero_copy, Path::zero_copy}},
      {"optional pool of zero bytes",
       {pool("kv", AllocatorKind::shm),
        changed(draft(AllocatorKind::shm), [](PoolMemory& m) { m.regions.clear(); })},
       kEmbedded,
       true,
       {Verdict::ok, Verdict::empty_buffer},
       {Path::zero_copy, Path::off}},
      {"required pool of zero bytes",
       {pool("kv", AllocatorKind::shm),
        changed(pool("side", AllocatorKind::shm), [](PoolMemory& m) { m.regions.clear(); })},
       kEmbedded,
       true,
       {Verdict::ok, Verdict::empty_buffer},
       {Path::off, Path::off}},
      {"a null pointer is no buffer",
       {changed(pool("kv", AllocatorKind::shm),
                [](PoolMemory& m) { m.regions[0].bytes = at(0, kBytes); })},
       kEmbedded,
       true,
       {Verdict::empty_buffer},
       {Path::off}},
      {"required pool that can be neither registered nor staged",
       {pool("kv", AllocatorKind::mmap), draft(AllocatorKind::shm)},
       kStandalone,
       false,
       {Verdict::outside_store_segment, Verdict::ok},
       {Path::off, Path::off},
       "required pool kv"},
      {"foreign layout",
       {changed(pool("kv", AllocatorKind::shm), [](PoolMemory& m) { m.layout_supported = false; })},
       kStandalone,
       true,
       {Verdict::layout_unsupported},
       {Path::staged}},
      {"too little memory to adopt",
       {pool("kv", AllocatorKind::shm)},
       with(kStandalone, [](ClientCapabilities& c) { c.adoption_bytes_max = kBytes - 1; }),
       true,
       {Verdict::adoption_failed},
       {Path::staged},
       "1048575",
       "kv=store"},
      {"a client that cannot adopt",
       {pool("kv", AllocatorKind::shm)},
       with(kStandalone, [](ClientCapabilities& c) { c.adopts = false; }),
       false,
       {Verdict::adoption_failed},
       {Path::off}},
      {"rdma without a device",
       {pool("kv", AllocatorKind::shm), draft(AllocatorKind::shm)},
       with(kEmbedded,
            [](ClientCapabilities& c) {
              c.transport_available = false;
              c.detail = "rdma: no device";
            }),
       true,
       {Verdict::transport_unavailable, Verdict::transport_unavailable},
       {Path::off, Path::off},
       "no device",
       "MOONCAKE_PROTOCOL=tcp"},
      {"store down",
       {logical("kv"), pool("c4", AllocatorKind::shm)},
       with(kStandalone, [](ClientCapabilities& c) { c.reachable = false; }),
       true,
       {Verdict::client_down, Verdict::client_down},
       {Path::off, Path::off}},
      {"unaligned",
       {pool("kv", AllocatorKind::shm, kBase + 1)},
       with(kEmbedded, [](ClientCapabilities& c) { c.alignment = 4096; }),
       true,
       {Verdict::unaligned},
       {Path::staged},
       "4096"},
      {"markers alone are of no use",
       {logical("kv"),
        changed(pool("c4", AllocatorKind::mmap), [](PoolMemory& m) { m.required = false; })},
       kStandalone,
       false,
       {Verdict::logical_no_buffer, Verdict::outside_store_segment},
       {Path::off, Path::off}},
  };
  return rows;
}

TEST(Registrability, TheTable) {
  for (const Row& row : table()) {
    SCOPED_TRACE(row.what);
    const auto plan = plan_registration(row.pools, row.client, {.staging_allowed = row.staging});
    ASSERT_EQ(plan.size(), row.pools.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      EXPECT_EQ(to_string(plan[i].verdict), to_string(row.verdicts[i])) << i;
      EXPECT_EQ(to_string(plan[i].path), to_string(row.paths[i])) << i;
      EXPECT_EQ(plan[i].pool, row.pools[i].pool);
      EXPECT_EQ(plan[i].bytes, row.pools[i].bytes());
      EXPECT_EQ(plan[i].client, row.client.kind);
    }
    EXPECT_NE(plan.back().reason.find(row.reason), std::string::npos) << plan.back().reason;
    EXPECT_NE(plan.back().advice.find(row.advice), std::string::npos) << plan.back().advice;
  }
}

TEST(Registrability, TheTableNamesEveryVerdictThatNeedsNoAttempt) {
  std::set<Verdict> seen;
  for (const Row& row : table()) seen.insert(row.verdicts.begin(), row.verdicts.end());
  EXPECT_FALSE(seen.contains(Verdict::register_failed)) << "only an attempt can find that out";
  EXPECT_EQ(seen.size(), 13u);
}

// A later pool meets what is registered already.
TEST(Registrability, LaterPoolsMeetWhatIsRegistered) {
  const std::span<std::byte> registered[] = {at(kBase, kBytes)};
  EXPECT_EQ(registrability(pool("kv", AllocatorKind::shm), kEmbedded, registered).verdict,
            Verdict::ok);
  EXPECT_EQ(
      registrability(pool("kv", AllocatorKind::shm, kBase - 4096), kEmbedded, registered).verdict,
      Verdict::overlaps_registered);
  PoolMemory twice = pool("kv", AllocatorKind::shm, kBase + 4 * kBytes);
  twice.regions.push_back({.bytes = at(kBase + 4 * kBytes + 100, 10), .fd = 7});
  EXPECT_EQ(registrability(twice, kEmbedded, registered).verdict, Verdict::overlaps_registered);
}

// The words: what each allocator, pool and group answers (K2: the group's answer is its anchor's,
// and members have verdicts of their own).
TEST(RegistrationWords, AnswerAsTheFieldKnowsThem) {
  EXPECT_TRUE(is_mooncake_compatible(AllocatorKind::store));
  EXPECT_TRUE(is_mooncake_compatible(AllocatorKind::shm));
  EXPECT_FALSE(is_mooncake_compatible(AllocatorKind::mmap));
  EXPECT_FALSE(is_mooncake_compatible(AllocatorKind::none));
  EXPECT_FALSE(is_mooncake_compatible(allocator_kind("somebody else's")));
  EXPECT_TRUE(is_mooncake_registerable(pool("kv", AllocatorKind::shm)));
  EXPECT_FALSE(is_mooncake_registerable(pool("kv", AllocatorKind::mmap)));
  PoolMemory anchor = logical("kv");
  anchor.allocator = AllocatorKind::store;
  EXPECT_FALSE(is_mooncake_registerable(anchor)) << "there is nothing to register";
  EXPECT_TRUE(is_logical_anchor(anchor));
  const std::vector<PoolMemory> group = {anchor, pool("c4", AllocatorKind::shm),
                                         pool("swa", AllocatorKind::mmap)};
  EXPECT_TRUE(is_logical_anchor(group));
  EXPECT_FALSE(is_logical_anchor(std::span(group).subspan(1)));
  EXPECT_FALSE(is_logical_anchor(std::span<const PoolMemory>()));
  const auto plan = plan_registration(group, kStandalone, {.staging_allowed = true});
  EXPECT_EQ(plan[0].verdict, Verdict::logical_no_buffer);
  EXPECT_EQ(plan[1].verdict, Verdict::ok);
  EXPECT_EQ(plan[2].verdict, Verdict::outside_store_segment) << "exactly the wrong pool is named";
  PoolMemory null_buffer;
  null_buffer.pool = "kv";
  EXPECT_FALSE(is_logical_anchor(null_buffer)) << "never guessed from a missing buffer";
}

TEST(RegistrationWords, NamesComeBack) {
  for (const auto kind : {AllocatorKind::none, AllocatorKind::mmap, AllocatorKind::shm,
                          AllocatorKind::store, AllocatorKind::unknown}) {
    EXPECT_EQ(allocator_kind(to_string(kind)), kind);
  }
  EXPECT_EQ(allocator_kind(""), AllocatorKind::none);
}

// For any pools, clients and states: one answer a pool, never a half-decided one, and the words
// agree with the rule.
TEST(RegistrationProperties, HoldForRandomPoolsAndClients) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(seed);
  Random random(seed);
  const auto chance = [&](std::uint64_t in) { return random.next() % in == 0; };
  for (int round = 0; round < 3000; ++round) {
    ClientCapabilities client;
    client.kind = static_cast<ClientKind>(random.next() % 3);
    client.reachable = !chance(10);
    client.transport_available = !chance(10);
    client.sees_private_memory = chance(3);
    client.adopts = !chance(4);
    client.adoption_bytes_max = chance(4) ? kBytes - 1 : UINT64_MAX;
    const bool staging = chance(2);
    std::vector<PoolMemory> pools;
    for (std::uint64_t i = 0; i < 1 + random.next() % 4; ++i) {
      PoolMemory memory =
          pool("p" + std::to_string(i), static_cast<AllocatorKind>(random.next() % 5),
               kBase + random.next() % 4 * (kBytes / 2));
      memory.required = chance(2);
      memory.logical = chance(4);
      memory.side_pools_only = chance(6);
      memory.layout_supported = !chance(6);
      memory.whole_segments = !chance(4);
      if (chance(6)) memory.regions.clear();
      pools.push_back(std::move(memory));
    }
    const auto plan = plan_registration(pools, client, {.staging_allowed = staging});
    ASSERT_EQ(plan.size(), pools.size());
    bool required_off = false;
    for (const PoolRegistration& entry : plan) required_off |= entry.required && !entry.on();
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const PoolRegistration& entry = plan[i];
      SCOPED_TRACE(registration_text(plan));
      EXPECT_TRUE(entry.path != Path::zero_copy || entry.verdict == Verdict::ok);
      EXPECT_TRUE(entry.path != Path::markers_only || pools[i].logical);
      EXPECT_TRUE(entry.path != Path::staged || staging);
      EXPECT_TRUE(!required_off || entry.path == Path::off);
      EXPECT_TRUE(entry.verdict == Verdict::ok || !client.reachable ||
                  !client.transport_available || !entry.reason.empty());
      // False forbids zero-copy with a thin client, and nothing else.
      if (!is_mooncake_registerable(pools[i]) && client.kind == ClientKind::standalone) {
        EXPECT_NE(entry.path, Path::zero_copy);
      }
      if (staging && client.reachable && client.transport_available && !required_off &&
          !pools[i].logical && !pools[i].side_pools_only && !pools[i].regions.empty()) {
        EXPECT_TRUE(entry.path == Path::zero_copy || entry.path == Path::staged);
      }
    }
    auto settled = plan;
    settle_registrations(settled);
    EXPECT_EQ(registration_json(settled), registration_json(plan)) << "settling is idempotent";
  }
}

TEST(RegistrationText, FitsOneScreenAndNamesEverything) {
  const std::vector<PoolMemory> pools = {pool("kv", AllocatorKind::shm),
                                         draft(AllocatorKind::mmap)};
  const auto plan = plan_registration(pools, kStandalone, {.staging_allowed = false});
  const std::string text = registration_text(plan);
  EXPECT_EQ(text.find("L3 is on\n"), 0u) << text;
  for (const char* part : {"kv", "draft", "1.0 MiB", "mmap", "standalone", "adopted",
                           "outside_store_segment", "off", "--host-allocator draft=shm"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 24);
}

TEST(RegistrationText, JsonHasTheNamesOfTheVerdicts) {
  PoolRegistration entry{.pool = "kv", .bytes = 5, .verdict = Verdict::register_failed};
  entry.allocator = AllocatorKind::shm;
  entry.client = ClientKind::standalone;
  entry.path = Path::staged;
  entry.reason = "a \"quoted\"\nline \\";
  entry.measured = "tried";
  EXPECT_EQ(registration_json(std::span(&entry, 1)),
            R"([{"pool":"kv","bytes":5,"required":true,"allocator":"shm","client":"standalone",)"
            R"("verdict":"register_failed","path":"staged",)"
            R"("reason":"a \"quoted\"\u000aline \\",)"
            R"("cost":"one more copy of each page, both ways; tried","advice":""}])");
  EXPECT_EQ(registration_json({}), "[]");
}

}  // namespace
}  // namespace hitide
