// PageStore over a real Mooncake store, with a client of our own and with a thin client of a
// daemon: the contract, what markers cost, what an overfilled store does to pages, and whose keys
// are whose.
#include <array>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "storage/mooncake/mooncake_store.h"
#include "tests/conformance/page_store_suite.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/synthetic_pages.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;
using Mode = MooncakeStack::Mode;

constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;

TimePoint now() { return SystemClock::instance().now(); }
std::string name_of(Mode mode) { return mode == Mode::embedded ? "embedded" : "standalone"; }

std::unique_ptr<MooncakeStore> open_ready(const MooncakeOptions& options) {
  auto store = MooncakeStore::open(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  if (!store.ok()) return nullptr;
  const Status ready = (*store)->wait_until_ready(now() + 60s);
  EXPECT_TRUE(ready.ok()) << ready.to_string();
  return std::move(*store);
}

MooncakeStack& shared_stack(Mode mode) {
  return mode == Mode::embedded ? mooncake_stack() : mooncake_daemon_stack();
}

StoreUnderTest open_on(Mode mode) {
  shared_stack(mode).tell("clear");
  return {.surroundings = nullptr, .store = open_ready(shared_stack(mode).options())};
}

INSTANTIATE_TEST_SUITE_P(
    Mooncake, PageStoreSuite,
    testing::Values(StoreKind{.name = "embedded", .open = [] { return open_on(Mode::embedded); }},
                    StoreKind{.name = "standalone",
                              .open = [] { return open_on(Mode::standalone); }}),
    [](const auto& kind) { return kind.param.name; });

// kv without bytes, and two side pools.
ModelSpec two_objects(std::uint64_t page_bytes) {
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {synthetic_pool("kv", 0, ""), synthetic_pool("c4", page_bytes, "kv"),
                 synthetic_pool("indexer", page_bytes, "kv")};
  return model;
}

class MooncakePagesTest : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
    shared_stack(GetParam()).tell("clear");
    options_ = shared_stack(GetParam()).options();
  }
  void TearDown() override { set_log_sink({}); }
  MooncakeOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Modes, MooncakePagesTest,
                         testing::Values(Mode::embedded, Mode::standalone),
                         [](const auto& mode) { return name_of(mode.param); });

// One call of the store, and one of its client, to confirm 1,024 pages with their two side objects,
// and one to put their markers; to do so again costs the question alone.
TEST_P(MooncakePagesTest, AThousandMarkersAreOneQuestionAndOnePut) {
  constexpr int kPages = 1024;
  const auto store = open_ready(options_);
  ASSERT_TRUE(store);
  const ModelSpec model = two_objects(64);
  PageStore pages(*store, model);
  std::vector<PagePart> sides;
  sides.push_back(synthetic_part(model.pools[1], 0, kPages));
  sides.push_back(synthetic_part(model.pools[2], 0, kPages));
  ASSERT_TRUE(pages.store(views_of(sides), {}).status.ok());
  PagePart anchor = synthetic_part(model.pools[0], 0, kPages);
  const std::vector<StatusCode> all_ok(kPages, kOk);
  for (const bool again : {false, true}) {
    const MooncakeCounts before = store->counts();
    const TimePoint start = now();
    EXPECT_TRUE(pages.commit(anchor.view(), views_of(sides), {}).status.ok());
    const double ms = to_seconds(now() - start) * 1000;
    const MooncakeCounts after = store->counts();
    EXPECT_EQ(anchor.codes, all_ok);
    EXPECT_EQ(after.exists_calls - before.exists_calls, 1u);
    EXPECT_EQ(after.put_calls - before.put_calls, again ? 0u : 1u);
    std::cout << name_of(GetParam()) << ": " << kPages
              << (again ? " markers again: " : " markers: ")
              << after.exists_calls - before.exists_calls << " question, "
              << after.put_calls - before.put_calls << " put, " << ms << " ms\n";
  }
  EXPECT_EQ(pages.stats().markers, static_cast<std::uint64_t>(kPages));
  EXPECT_EQ(pages.stats().markers_present, static_cast<std::uint64_t>(kPages));
  const MooncakeCounts before = store->counts();
  PrefixStops stops;
  EXPECT_TRUE(pages.exists_prefix(anchor.keys, stops, {}).status.ok());
  EXPECT_EQ(stops.longest(), static_cast<std::uint32_t>(kPages));
  EXPECT_EQ(store->counts().exists_calls - before.exists_calls, 1u);
  std::vector<PagePart> markers;
  markers.push_back(synthetic_part(model.pools[0], 0, kPages));
  EXPECT_TRUE(pages.load(views_of(markers), {}).status.ok());
  EXPECT_EQ(markers[0].codes, all_ok);
  EXPECT_EQ(store->counts().get_calls - before.get_calls, 1u);
}

// The tag goes in front of every key of every pool, markers included: seen by a client without it.
TEST_P(MooncakePagesTest, KeysCarryTheBackendsTag) {
  const auto plain = open_ready(options_);
  options_.extra_backend_tag = "blue";
  const auto tagged = open_ready(options_);
  ASSERT_TRUE(plain && tagged);
  const ModelSpec model = two_objects(500);
  PageStore pages(*tagged, model);
  std::vector<PagePart> parts;
  for (const PoolSpec& pool : model.pools) parts.push_back(synthetic_part(pool, 0, 2));
  ASSERT_TRUE(pages.store(views_of(parts), {}).status.ok());
  for (const PagePart& part : parts) {
    EXPECT_EQ(part.codes, std::vector<StatusCode>(2, kOk));
    for (const PageKey& key : part.keys) {
      const std::string raw = pages.keys().object_key(key, part.pool);
      EXPECT_EQ(exists_object(*plain, "blue_" + raw), kOk);
      EXPECT_EQ(exists_object(*plain, raw), kMiss);
    }
  }
  PageStore others(*plain, model);
  PrefixStops stops;
  EXPECT_TRUE(others.exists_prefix(parts[0].keys, stops, {}).status.ok());
  EXPECT_EQ(stops.longest(), 0u) << "the same model without the tag";
}

// K15 B211: sixteen puts and gets at once through a staging buffer of two pages: each waits for its
// turn. What does not fit at all is refused, by its object and by the options.
TEST_P(MooncakePagesTest, K15_B211_SixteenPutsShareAStagingBufferOfTwoPages) {
  constexpr std::size_t kPage = 1u << 20;
  options_.bounce_bytes = 2 * kPage;
  options_.object_bytes_max = kPage;
  options_.write_lanes = 16;
  options_.read_lanes = 16;
  const auto store = open_ready(options_);
  ASSERT_TRUE(store);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 16; ++thread) {
    threads.emplace_back([&store, thread] {
      const std::string tag = "staged/" + std::to_string(thread) + "/";
      for (int i = 0; i < 4; ++i) {
        const std::string key = tag + std::to_string(i);
        EXPECT_EQ(put_object(*store, key, bytes_of(key, kPage)), kOk) << key;
      }
      for (int i = 0; i < 4; ++i)
        EXPECT_EQ(check_object(*store, tag + std::to_string(i), kPage), kOk);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->counts().staged_items, 128u);
  EXPECT_EQ(put_object(*store, "large", bytes_of("large", kPage + 1)),
            StatusCode::invalid_argument);
  EXPECT_EQ(exists_object(*store, "large"), kMiss);
  options_.object_bytes_max = options_.bounce_bytes + 4096;
  const auto refused = MooncakeStore::open(options_);
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.status().message().find("object_bytes_max"), std::string_view::npos);
}

// K17 B217: what the store says that it holds follows what is put and removed, and never goes below
// nothing.
TEST_P(MooncakePagesTest, K17_B217_GaugesFollowPutsAndRemovals) {
  const auto store = open_ready(options_);
  ASSERT_TRUE(store);
  std::uint64_t limit = 0;
  const auto until_bytes = [&](std::uint64_t least, std::uint64_t most, std::uint64_t objects) {
    const TimePoint end = now() + 30s;
    for (;;) {
      const StoreStats stats = store->stats();
      limit = stats.bytes_limit;
      EXPECT_LE(stats.bytes_used, limit) << "below nothing is beyond all bounds";
      const bool there = stats.bytes_used >= least && stats.bytes_used <= most;
      if (there && stats.objects == objects) return true;
      if (now() > end) return false;
      std::this_thread::yield();
    }
  };
  ASSERT_TRUE(until_bytes(0, 0, 0));
  EXPECT_GT(limit, 0u);
  constexpr std::uint64_t kCount = 8;
  const auto key_of = [](std::uint64_t i) { return "gauge/" + std::to_string(i); };
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(put_object(*store, key_of(i), bytes_of(key_of(i), 11)), kOk);
      EXPECT_EQ(put_object(*store, key_of(i), bytes_of(key_of(i), 11)), StatusCode::already_exists);
    }
    EXPECT_TRUE(until_bytes(kCount * 11, kCount * 4096, kCount));
    if (round == 0) {
      EXPECT_EQ(remove_object(*store, key_of(0)), kOk);
      EXPECT_EQ(remove_object(*store, key_of(0)), kOk) << "once more";
      EXPECT_TRUE(until_bytes((kCount - 1) * 11, kCount * 4096, kCount - 1));
    }
    shared_stack(GetParam()).tell("clear");
    EXPECT_TRUE(until_bytes(0, 0, 0)) << store->stats().bytes_used;
  }
}

// K14 B191: what a store call has acknowledged, another client reads whole at once.
TEST_P(MooncakePagesTest, K14_B191_WhatIsStoredIsThereForOthersAtOnce) {
  constexpr int kRounds = 100;
  const auto one = open_ready(options_);
  const auto other = open_ready(options_);
  ASSERT_TRUE(one && other);
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {synthetic_pool("kv", 1u << 20, "")};
  PageStore writer(*one, model);
  PageStore reader(*other, model);
  int held = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<PagePart> source;
    source.push_back(synthetic_part(model.pools[0], round, 1));
    EXPECT_TRUE(writer.store(views_of(source), {}).status.ok());
    ASSERT_EQ(source[0].codes[0], kOk);
    for (PageStore* pages : {&reader, &writer}) {
      std::vector<PagePart> back;
      back.push_back(synthetic_part(model.pools[0], round, 1, false));
      EXPECT_TRUE(pages->load(views_of(back), {}).status.ok());
      if (back[0].codes[0] == kOk) {
        EXPECT_TRUE(holds_page(back[0], model.pools[0], round, 0));
        ++held;
      }
    }
  }
  EXPECT_EQ(held, 2 * kRounds);
  EXPECT_EQ(reader.stats().verification_failures_total(), 0u);
}

// ---- an overfilled store
// -------------------------------------------------------------------------

struct TornCase {
  Mode mode;
  bool groups;
};

// 600 pages of two objects of 200,000 bytes and a marker, into 64 MB, while somebody asks for the
// markers alone and so keeps them young.
class MooncakeTornPagesTest : public testing::TestWithParam<TornCase> {
 protected:
  static constexpr int kPages = 600;
  static constexpr int kProbeEvery = 20;
  static constexpr int kProbed = 400;

  MooncakeTornPagesTest() : stack_(mooncake_stack().python(), 64, GetParam().mode) {}
  void SetUp() override {
    ASSERT_TRUE(stack_.ready());
    set_log_sink([](LogLevel, std::string_view) {});
    MooncakeOptions options = stack_.options();
    options.group_semantics = GetParam().groups;
    store_ = open_ready(options);
    ASSERT_TRUE(store_);
    pages_ = std::make_unique<PageStore>(*store_, model_);
  }
  void TearDown() override { set_log_sink({}); }

  std::string object_key(int page, std::size_t pool) const {
    return pages_->keys().object_key(synthetic_key(page), model_.pools[pool].name);
  }
  void probe_markers(int first, int end) {
    std::vector<std::string> keys;
    for (int page = std::max(first, 0); page < end; ++page) keys.push_back(object_key(page, 0));
    std::vector<ItemResult> results(keys.size());
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    EXPECT_TRUE(store_->exists(views, results, {}).status.ok());
  }
  // Pages that were committed; a full store takes some, and refuses others for a while.
  int fill() {
    int committed = 0;
    std::vector<PagePart> parts;
    for (int page = 0; page < kPages; ++page) {
      parts.clear();
      for (const PoolSpec& pool : model_.pools) parts.push_back(synthetic_part(pool, page, 1));
      pages_->store(views_of(parts), {}).status.ignore();
      committed += parts[0].codes[0] == kOk ? 1 : 0;
      if (page % kProbeEvery == 0) probe_markers(page - kProbed, page);
    }
    return committed;
  }
  struct Census {
    int whole = 0;
    int torn = 0;  // a marker, and not all of the data
    int bare = 0;  // no marker
  };
  // Of the pages [first, first + count): whether each of their objects is there.
  std::vector<std::array<bool, 3>> present(int first, int count) {
    std::vector<std::string> keys;
    for (int page = first; page < first + count; ++page) {
      for (std::size_t pool = 0; pool < 3; ++pool) keys.push_back(object_key(page, pool));
    }
    std::vector<ItemResult> results(keys.size());
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    EXPECT_TRUE(store_->exists(views, results, {}).status.ok());
    std::vector<std::array<bool, 3>> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < results.size(); ++i) out[i / 3][i % 3] = results[i].code == kOk;
    return out;
  }
  static bool is_torn(const std::array<bool, 3>& page) { return page[0] && !(page[1] && page[2]); }
  // Asked twice, so that a page that just goes is none.
  bool is_torn(int page) {
    return is_torn(present(page, 1).front()) && is_torn(present(page, 1).front());
  }
  Census count() {
    Census census;
    const auto pages = present(0, kPages);
    for (int page = 0; page < kPages; ++page) {
      const auto& here = pages[static_cast<std::size_t>(page)];
      if (!here[0]) {
        ++census.bare;
      } else {
        ++(is_torn(here) && is_torn(page) ? census.torn : census.whole);
      }
    }
    return census;
  }

  const ModelSpec model_ = two_objects(200'000 - kEnvelopeBytes);
  MooncakeStack stack_;
  std::unique_ptr<MooncakeStore> store_;
  std::unique_ptr<PageStore> pages_;
};

INSTANTIATE_TEST_SUITE_P(Modes, MooncakeTornPagesTest,
                         testing::Values(TornCase{Mode::embedded, true},
                                         TornCase{Mode::standalone, true},
                                         TornCase{Mode::embedded, false},
                                         TornCase{Mode::standalone, false}),
                         [](const auto& row) {
                           return name_of(row.param.mode) + (row.param.groups ? "" : "_ungrouped");
                         });

TEST_P(MooncakeTornPagesTest, NoMarkerOutlivesItsDataAndNoReaderTrustsOne) {
  const TimePoint start = now();
  const int committed = fill();
  const Census census = count();
  std::cout << committed << " of " << kPages << " pages committed in " << to_seconds(now() - start)
            << " s; now " << census.whole << " whole, " << census.torn << " torn, " << census.bare
            << " gone or never committed\n";
  EXPECT_GT(committed, 150) << "more than the store can hold";
  EXPECT_GT(census.bare + census.torn, 0) << "the store was not overfilled";
  if (GetParam().groups) {
    EXPECT_EQ(census.torn, 0);
    EXPECT_GT(census.whole, 20);
  } else {
    EXPECT_GT(census.torn, 0) << "this test could not fail";
  }
  int restored = 0;
  for (int page = 0; page < kPages; ++page) {
    const PageKey key = synthetic_key(page);
    PrefixStops stops;
    EXPECT_TRUE(pages_->exists_prefix({&key, 1}, stops, {}).status.ok());
    if (stops.longest() == 1) {
      EXPECT_FALSE(is_torn(page)) << page;
    }
    std::vector<PagePart> back;
    for (const PoolSpec& pool : model_.pools) back.push_back(synthetic_part(pool, page, 1, false));
    pages_->load(views_of(back), {}).status.ignore();
    for (const std::size_t pool : {1u, 2u}) {
      const StatusCode code = back[pool].codes[0];
      EXPECT_TRUE(code == kOk || code == kMiss) << to_string(code);
      EXPECT_EQ(holds_page(back[pool], model_.pools[pool], page, 0), code == kOk) << page;
    }
    restored += back[1].codes[0] == kOk && back[2].codes[0] == kOk ? 1 : 0;
  }
  std::cout << restored << " restored: the store goes on evicting meanwhile\n";
  EXPECT_GT(restored, GetParam().groups ? 20 : 0);
  EXPECT_EQ(pages_->stats().verification_failures_total(), 0u);
}

}  // namespace
}  // namespace hitide
