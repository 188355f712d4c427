// PageStore over the pools of synthetic models: a logical or a physical anchor, an all-pages side
// pool, a trailing side pool, an optional draft.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/marker.h"
#include "storage/memory/memory_store.h"
#include "storage/page_store.h"
#include "tests/support/fault_store.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using Codes = std::vector<StatusCode>;
constexpr auto kOk = StatusCode::ok;
constexpr auto kMiss = StatusCode::not_found;

PoolSpec pool(std::string name, std::uint64_t page_bytes) {
  PoolSpec spec;
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  if (name != "kv") spec.index_source = "kv";
  spec.name = std::move(name);
  return spec;
}

enum : std::uint32_t { kKv = 0, kC4 = 1, kSwa = 2, kDraft = 3 };
constexpr std::uint32_t kWindow = 2;  // trailing pages of swa

ModelSpec synthetic(bool logical) {
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {pool("kv", logical ? 0 : 400), pool("c4", 300), pool("swa", 200),
                 pool("draft", 100)};
  model.pools[kSwa].hit_policy = {HitPolicy::Kind::trailing_pages, kWindow};
  model.pools[kDraft].required = false;
  return model;
}

PageKey page_key(int n) {
  PageKey key;
  key.bytes[0] = static_cast<std::uint8_t>(n);
  key.bytes[1] = static_cast<std::uint8_t>(n >> 8);
  return key;
}

// Keeps the groups of what is put, and throws on command.
class WatchedStore final : public ObjectStore {
 public:
  explicit WatchedStore(ObjectStore& inner) : inner_(inner) {}
  bool throws = false;
  std::vector<std::pair<std::string, std::string>> groups;  // object key, group

  StoreCapabilities capabilities() const override { return inner_.capabilities(); }
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    maybe_throw();
    return inner_.exists(keys, out, options);
  }
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    maybe_throw();
    return inner_.get(items, out, options);
  }
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    maybe_throw();
    for (const PutItem& item : items) groups.emplace_back(item.key, item.group);
    return inner_.put(items, out, options);
  }
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return inner_.remove(keys, out, options);
  }
  Status register_memory(const MemoryRegion& region) override {
    return inner_.register_memory(region);
  }
  Status unregister_memory(std::span<std::byte> bytes) override {
    return inner_.unregister_memory(bytes);
  }
  StoreStats stats() const override { return inner_.stats(); }
  Status close(TimePoint deadline) override { return inner_.close(deadline); }

 private:
  void maybe_throw() const {
    if (throws) throw std::runtime_error("own words");  // tidy: allow-throw that is what is tested
  }
  ObjectStore& inner_;
};

class PageStoreGroupTest : public testing::Test {
 protected:
  PageStoreGroupTest() {
    set_log_sink([](LogLevel, std::string_view) {});
    use(true);
  }
  ~PageStoreGroupTest() override { set_log_sink({}); }

  void use(bool logical) {
    model_ = synthetic(logical);
    ASSERT_TRUE(validate(model_).ok());
    pages_ = std::make_unique<PageStore>(watched_, model_, clock_);
  }

  // Pages of one pool with what each must hold (or must come to hold).
  struct Part {
    std::string pool;
    std::vector<PageKey> keys;
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::span<std::byte>> slots;
    Codes codes;

    PoolPages view() { return {.pool = pool, .keys = keys, .slots = slots, .out = codes}; }
  };
  std::vector<std::byte> payload(int page, std::uint32_t pool) const {
    return bytes_of(std::to_string(page) + "/" + model_.pools[pool].name,
                    model_.pools[pool].page_bytes);
  }
  Part part(std::uint32_t pool, int first, int count, bool filled = true) const {
    Part part;
    part.pool = model_.pools[pool].name;
    part.codes.assign(static_cast<std::size_t>(count), StatusCode::internal);
    const bool logical = model_.pools[pool].page_bytes == 0;
    for (int page = first; page < first + count; ++page) {
      part.keys.push_back(page_key(page));
      if (logical) continue;
      std::vector<std::byte> memory(page_layout(model_.pools[pool]).object_bytes());
      const auto bytes = payload(page, pool);
      if (filled) std::copy(bytes.begin(), bytes.end(), memory.begin() + kEnvelopeBytes);
      part.memory.push_back(std::move(memory));
    }
    for (auto& memory : part.memory) part.slots.emplace_back(memory);
    return part;
  }
  // The whole backup of pages [first, first + count): the window of swa at its end.
  std::vector<Part> backup(int first, int count, bool draft = true) const {
    const int window = std::min<int>(count, kWindow);
    std::vector<Part> parts;
    parts.push_back(part(kKv, first, count));
    parts.push_back(part(kC4, first, count));
    parts.push_back(part(kSwa, first + count - window, window));
    if (draft) parts.push_back(part(kDraft, first, count));
    return parts;
  }
  CallOutcome store(std::vector<Part>& parts) {
    std::vector<PoolPages> views;
    for (Part& part : parts) views.push_back(part.view());
    return pages_->store(views, {});
  }
  CallOutcome load(std::vector<Part>& parts) {
    std::vector<PoolPages> views;
    for (Part& part : parts) views.push_back(part.view());
    return pages_->load(views, {});
  }
  void store_all(int first, int count, bool draft = true) {
    auto parts = backup(first, count, draft);
    EXPECT_TRUE(store(parts).status.ok());
    for (const Part& part : parts) EXPECT_EQ(part.codes, Codes(part.codes.size(), kOk));
  }
  PrefixStops stops(int count) {
    std::vector<PageKey> keys;
    for (int page = 0; page < count; ++page) keys.push_back(page_key(page));
    PrefixStops answer;
    last_ = pages_->exists_prefix(keys, answer, {});
    return answer;
  }
  std::vector<bool> ends(int count) {
    std::vector<bool> ends;
    for (const StatusCode code : stops(count).codes) ends.push_back(code == kOk);
    return ends;
  }
  std::string object_key(int page, std::uint32_t pool) const {
    return pages_->keys().object_key(page_key(page), model_.pools[pool].name);
  }
  bool present(int page, std::uint32_t pool) {
    return exists_object(memory_, object_key(page, pool)) == kOk;
  }
  void lose(int page, std::uint32_t pool) {
    ASSERT_EQ(remove_object(memory_, object_key(page, pool)), kOk);
  }
  // Calls of that kind that name some object of the pool.
  std::size_t calls(StoreCall call, std::uint32_t pool) const {
    const std::string part = "/" + model_.pools[pool].name + ".";
    const auto log = faults_.log();
    return static_cast<std::size_t>(std::count_if(log.begin(), log.end(), [&](const auto& entry) {
      return entry.call == call &&
             std::any_of(entry.keys.begin(), entry.keys.end(), [&](const std::string& key) {
               return key.find(part) != std::string::npos;
             });
    }));
  }

  MemoryStore* memory_owned_ = new MemoryStore(64u << 20);
  MemoryStore& memory_ = *memory_owned_;
  FaultStore faults_{std::unique_ptr<ObjectStore>(memory_owned_)};
  WatchedStore watched_{faults_};
  ManualClock clock_;
  ModelSpec model_;
  std::unique_ptr<PageStore> pages_;
  CallOutcome last_;
};

std::vector<bool> bits(std::initializer_list<int> values) {
  std::vector<bool> out;
  for (const int value : values) out.push_back(value != 0);
  return out;
}

TEST_F(PageStoreGroupTest, ALogicalAnchorsPagesAreMarkers) {
  store_all(0, 4);
  StatusCode code = StatusCode::internal;
  const auto record = get_object(memory_, object_key(2, kKv), kMarkerBytes, code);
  ASSERT_EQ(code, kOk);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(record.data()), 4), "HTMK");
  EXPECT_EQ(pages_->stats().markers, 4u);
  EXPECT_EQ(ends(5), bits({0, 0, 0, 1, 0})) << "swa has the last two of four only";
  EXPECT_EQ(stops(5).anchor_pages, 4u);
  EXPECT_EQ(stops(5).longest(), 4u);
  std::vector<Part> parts;
  parts.push_back(part(kKv, 0, 4));
  parts.push_back(part(kC4, 0, 4, false));
  parts.push_back(part(kSwa, 2, 2, false));
  parts.push_back(part(kDraft, 0, 4, false));
  EXPECT_TRUE(load(parts).status.ok());
  for (std::uint32_t at = 0; at < 4; ++at) {
    EXPECT_EQ(parts[at].codes, Codes(parts[at].codes.size(), kOk));
  }
  const auto want = payload(3, kSwa);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), parts[2].memory[1].begin() + kEnvelopeBytes));
}

// Any number of markers costs one existence call and one put; side objects come before them.
TEST_F(PageStoreGroupTest, ManyMarkersAreOneExistenceCallAndOnePut) {
  store_all(0, 1024);
  EXPECT_EQ(calls(StoreCall::exists, kKv), 1u);
  EXPECT_EQ(calls(StoreCall::put, kKv), 1u);
  const auto log = faults_.log();
  ASSERT_GE(log.size(), 2u);
  const auto& confirmation = log[log.size() - 2];
  EXPECT_EQ(confirmation.call, StoreCall::exists);
  EXPECT_EQ(confirmation.keys.size(), 1024u * 2 + kWindow) << "markers, c4, and the swa window";
  EXPECT_EQ(log.back().call, StoreCall::put);
  EXPECT_EQ(log.back().keys.size(), 1024u);
  // Again: nothing is written.
  faults_.clear_log();
  store_all(0, 1024);
  EXPECT_EQ(calls(StoreCall::exists, kKv), 1u);
  for (const auto& entry : faults_.log()) EXPECT_NE(entry.call, StoreCall::put);
  EXPECT_EQ(pages_->stats().markers, 1024u);
  EXPECT_EQ(pages_->stats().markers_present, 1024u);
}

// The anchor alone, as the older calls have it: the same objects, the same rule.
TEST_F(PageStoreGroupTest, OneByOneOrTogetherTheAnswersAgree) {
  std::vector<PageSlot> markers;
  for (int page = 0; page < 3; ++page) markers.push_back({.key = page_key(page), .slot = {}});
  Codes codes(3, StatusCode::internal);
  pages_->store(markers, codes, {});
  EXPECT_EQ(codes, Codes(3, kMiss)) << "no side objects, no marker";
  Part sides = part(kC4, 0, 3);
  std::vector<PageSlot> slots;
  for (int i = 0; i < 3; ++i) {
    slots.push_back({.key = sides.keys[static_cast<std::size_t>(i)],
                     .slot = sides.slots[static_cast<std::size_t>(i)],
                     .pool = kC4});
  }
  pages_->store(slots, codes, {});
  ASSERT_EQ(codes, Codes(3, kOk));
  pages_->store(markers, codes, {});
  EXPECT_EQ(codes, Codes(3, kOk));
  pages_->load(markers, codes, {});
  EXPECT_EQ(codes, Codes(3, kOk));
  std::vector<Part> together;
  together.push_back(part(kKv, 0, 4));
  load(together);
  EXPECT_EQ(together[0].codes, (Codes{kOk, kOk, kOk, kMiss}));
  faults_.clear_log();
  store(together);
  EXPECT_EQ(together[0].codes, (Codes{kOk, kOk, kOk, kMiss}));
  EXPECT_EQ(calls(StoreCall::put, kKv), 0u);
}

TEST_F(PageStoreGroupTest, APageIsNotCommittedBeforeItsSideObjectsAreConfirmed) {
  for (const bool logical : {true, false}) {
    SCOPED_TRACE(logical ? "logical" : "physical");
    use(logical);
    // An accepted put proves nothing: the object is gone when the store is asked.
    faults_.add({.call = StoreCall::exists,
                 .kind = StoreFault::Kind::lost,
                 .key_part = object_key(1, kC4),
                 .skip = 1,
                 .times = 1});
    // A put that fails.
    faults_.add({.call = StoreCall::put,
                 .code = StatusCode::resource_exhausted,
                 .key_part = object_key(3, kSwa)});
    auto parts = backup(0, 4);
    store(parts);
    EXPECT_EQ(parts[0].codes, (Codes{kOk, kMiss, kOk, kMiss}));
    EXPECT_EQ(parts[2].codes, (Codes{kOk, StatusCode::resource_exhausted}));
    EXPECT_FALSE(present(1, kKv));
    EXPECT_FALSE(present(3, kKv));
    EXPECT_TRUE(present(2, kKv));
    EXPECT_EQ(pages_->stats().anchors_unconfirmed, 2u);
    faults_.clear_faults();
    store_all(0, 4);
    EXPECT_EQ(stops(4).longest(), 4u);
  }
}

TEST_F(PageStoreGroupTest, AFailingMarkerFailsItsPageOnly) {
  faults_.add({.call = StoreCall::put,
               .code = StatusCode::resource_exhausted,
               .key_part = object_key(1, kKv)});
  auto parts = backup(0, 4);
  store(parts);
  EXPECT_EQ(parts[0].codes, (Codes{kOk, StatusCode::resource_exhausted, kOk, kOk}));
  EXPECT_EQ(parts[1].codes, Codes(4, kOk));
  EXPECT_EQ(stops(4).anchor_pages, 1u);
}

TEST_F(PageStoreGroupTest, AStoreThatThrowsFailsTheCallAlone) {
  watched_.throws = true;
  auto parts = backup(0, 3);
  const CallOutcome outcome = store(parts);
  EXPECT_EQ(outcome.status.code(), StatusCode::internal);
  EXPECT_NE(outcome.status.message().find("own words"), std::string::npos);
  for (const Part& part : parts) {
    EXPECT_EQ(part.codes, Codes(part.codes.size(), StatusCode::internal));
  }
  EXPECT_EQ(load(parts).status.code(), StatusCode::internal);
  EXPECT_EQ(stops(3).longest(), 0u);
  watched_.throws = false;
  store_all(0, 3);
  EXPECT_EQ(stops(3).longest(), 3u);
}

TEST_F(PageStoreGroupTest, WhatIsMissingUnderAMarkerIsWrittenAgain) {
  store_all(0, 4);
  lose(1, kC4);
  lose(3, kSwa);
  ASSERT_TRUE(present(1, kKv)) << "the marker stays: it is no proof";
  EXPECT_EQ(stops(4).longest(), 0u);
  faults_.clear_log();
  store_all(0, 4);
  EXPECT_TRUE(present(1, kC4));
  EXPECT_TRUE(present(3, kSwa));
  EXPECT_EQ(calls(StoreCall::put, kKv), 0u);
  EXPECT_EQ(stops(4).longest(), 4u);
}

TEST_F(PageStoreGroupTest, AllObjectsOfAPageShareOneGroup) {
  store_all(0, 3);
  ASSERT_EQ(watched_.groups.size(), 3u + 3 + kWindow + 3);
  for (const auto& [key, group] : watched_.groups) {
    bool found = false;
    for (int page = 0; page < 3; ++page) {
      if (key.find(page_key(page).to_hex()) == std::string::npos) continue;
      EXPECT_EQ(group, pages_->keys().group(page_key(page)));
      found = true;
    }
    EXPECT_TRUE(found);
  }
}

// A draft that is absent, refused or lost takes nothing from the target.
TEST_F(PageStoreGroupTest, AnAbsentDraftNeverVoidsTheTargetsHit) {
  for (const bool logical : {true, false}) {
    use(logical);
    store_all(0, 4, false);
    EXPECT_EQ(stops(4).longest(), 4u);
    faults_.add({.call = StoreCall::put, .code = StatusCode::unavailable, .key_part = "/draft."});
    auto parts = backup(4, 2);
    store(parts);
    EXPECT_EQ(parts[0].codes, Codes(2, kOk));
    EXPECT_EQ(parts[3].codes, Codes(2, StatusCode::unavailable));
    EXPECT_EQ(stops(6).longest(), 6u);
    std::vector<Part> wanted;
    wanted.push_back(part(kC4, 0, 6, false));
    wanted.push_back(part(kDraft, 0, 6, false));
    load(wanted);
    EXPECT_EQ(wanted[0].codes, Codes(6, kOk));
    EXPECT_EQ(wanted[1].codes, Codes(6, kMiss)) << "the caller sees that they are absent";
    faults_.clear_faults();
  }
}

TEST_F(PageStoreGroupTest, UnknownPoolsFailLoudly) {
  auto parts = backup(0, 2);
  parts.push_back(parts[1]);
  parts.back().pool = "mamba";
  parts.back().slots.clear();
  for (auto& memory : parts.back().memory) parts.back().slots.emplace_back(memory);
  const CallOutcome outcome = store(parts);
  EXPECT_EQ(outcome.status.code(), StatusCode::invalid_argument);
  EXPECT_NE(outcome.status.message().find("'mamba'"), std::string::npos);
  EXPECT_NE(outcome.status.message().find("kv, c4, swa, draft"), std::string::npos);
  EXPECT_EQ(parts.back().codes, Codes(2, StatusCode::invalid_argument));
  EXPECT_EQ(parts[0].codes, Codes(2, kOk)) << "the others go on";
  EXPECT_EQ(pages_->stats().unknown_pools, 1u);
  parts.back().codes.assign(2, kOk);
  load(parts);
  EXPECT_EQ(parts.back().codes, Codes(2, StatusCode::invalid_argument));
  EXPECT_EQ(pages_->stats().unknown_pools, 2u);
  // Spans that do not fit together.
  parts = backup(0, 2);
  parts[1].slots.pop_back();
  EXPECT_EQ(store(parts).status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(parts[1].codes, Codes(2, StatusCode::invalid_argument));
  EXPECT_EQ(pages_->stats().unknown_pools, 2u);
}

TEST_F(PageStoreGroupTest, MarkersThatDoNotVerifyAreMissesAndGo) {
  store_all(0, 2);
  faults_.add({.call = StoreCall::get,
               .kind = StoreFault::Kind::flipped_bit,
               .key_part = object_key(1, kKv),
               .times = 1,
               .bit = 400});
  std::vector<Part> parts;
  parts.push_back(part(kKv, 0, 2));
  load(parts);
  EXPECT_EQ(parts[0].codes, (Codes{kOk, StatusCode::data_loss}));
  EXPECT_FALSE(present(1, kKv));
  EXPECT_EQ(pages_->stats().verification_failures_total(), 1u);
  // A foreign one-byte marker.
  const std::byte one{'1'};
  ASSERT_EQ(put_object(memory_, object_key(1, kKv), std::span(&one, 1)), kOk);
  load(parts);
  EXPECT_EQ(parts[0].codes, (Codes{kOk, StatusCode::data_loss}));
}

TEST_F(PageStoreGroupTest, StopPointsAreASet) {
  use(true);
  for (int end = 1; end <= 6; ++end) {
    if (end != 3) store_all(0, end);  // windows end at 1, 2, 4, 5, 6: all swa pages are there
  }
  EXPECT_EQ(ends(7), bits({1, 1, 1, 1, 1, 1, 0}));
  lose(3, kSwa);
  EXPECT_EQ(ends(7), bits({1, 1, 1, 0, 0, 1, 0})) << "trailing pools make holes";
  EXPECT_EQ(stops(7).longest(), 6u);
  lose(0, kSwa);
  EXPECT_EQ(ends(7), bits({0, 0, 1, 0, 0, 1, 0})) << "the window is clipped at 0";
  lose(5, kC4);
  EXPECT_EQ(ends(7), bits({0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(stops(7).anchor_pages, 6u);
  lose(2, kKv);
  EXPECT_EQ(ends(7), bits({0, 0, 0, 0, 0, 0, 0})) << "pages 0 and 1 have no window";
  EXPECT_EQ(stops(7).anchor_pages, 2u);
}

TEST_F(PageStoreGroupTest, AnExistenceQueryTouchesEveryRequiredObjectInOneCall) {
  store_all(0, 3);
  faults_.clear_log();
  stops(3);
  const auto log = faults_.log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].keys.size(), 3u * 3) << "kv, c4, swa; not the draft";
  faults_.add(
      {.call = StoreCall::exists, .code = StatusCode::unavailable, .key_part = object_key(1, kC4)});
  EXPECT_EQ(stops(3).longest(), 0u) << "what is not known counts as absent";
  EXPECT_EQ(stops(0).longest(), 0u);
}

// Why a prefix cannot end somewhere is said by the first page in the way.
TEST_F(PageStoreGroupTest, WhatIsInTheWayIsSaid) {
  use(false);
  for (int end = 1; end <= 5; ++end) store_all(0, end);
  lose(3, kC4);
  faults_.add({.call = StoreCall::exists,
               .code = StatusCode::unavailable,
               .key_part = object_key(1, kSwa)});
  constexpr auto kAway = StatusCode::unavailable;
  EXPECT_EQ(stops(5).codes, (Codes{kOk, kAway, kAway, kMiss, kMiss}));
  EXPECT_EQ(pages_->stats().failures_by_code[static_cast<std::size_t>(kAway)], 1u);
}

// Random losses: what is announced as restorable is there, and nothing restorable is held back.
TEST_F(PageStoreGroupTest, StopPointsAgreeWithTheirDefinition) {
  const std::uint64_t seed = 4711;
  SCOPED_TRACE(seed);
  Random random(seed);
  constexpr int kPages = 8;
  for (int round = 0; round < 300; ++round) {
    use(round % 2 == 0);
    for (int end = 1; end <= kPages; ++end) store_all(0, end);
    for (std::uint64_t i = 0; i < random.next() % 4; ++i) {
      const int page = static_cast<int>(random.next() % kPages);
      const auto which = static_cast<std::uint32_t>(random.next() % 4);
      remove_object(memory_, object_key(page, which));
    }
    const PrefixStops answer = stops(kPages);
    for (int end = 1; end <= kPages; ++end) {
      bool want = true;
      for (int page = 0; page < end; ++page) {
        want = want && present(page, kKv) && present(page, kC4);
        if (page >= end - static_cast<int>(kWindow)) want = want && present(page, kSwa);
      }
      ASSERT_EQ(answer.codes[static_cast<std::size_t>(end - 1)] == kOk, want)
          << round << " " << end;
    }
  }
}

}  // namespace
}  // namespace hitide
