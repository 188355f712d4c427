// PageStore over every backend: a logical or a physical anchor, an all-pages side pool, a trailing
// side pool and an optional draft; the same answers whatever keeps the objects.
//
// To run it over a backend, add a line to the list in the one file of a test program that includes
// this header.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/log.h"
#include "storage/marker.h"
#include "storage/page_store.h"
#include "tests/conformance/store_kind.h"
#include "tests/support/fault_store.h"
#include "tests/support/store_bytes.h"
#include "tests/support/synthetic_pages.h"

namespace hitide {

// Keeps the groups of what is put, and throws or miscounts on command.
class WatchedStore final : public ObjectStore {
 public:
  explicit WatchedStore(ObjectStore& inner) : inner_(inner) {}
  bool throws = false;
  bool adds_bytes_up = false;  // of a get: the first item is said to have the bytes of them all
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
    CallOutcome outcome = inner_.get(items, out, options);
    for (std::size_t i = 1; adds_bytes_up && i < out.size(); ++i) {
      out[0].bytes += std::exchange(out[i].bytes, 0);
    }
    return outcome;
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

class PageStoreSuite : public testing::TestWithParam<StoreKind> {
 protected:
  static constexpr auto kOk = StatusCode::ok;
  static constexpr auto kMiss = StatusCode::not_found;
  static constexpr auto kBad = StatusCode::invalid_argument;
  using Codes = std::vector<StatusCode>;
  enum : std::uint32_t { kKv = 0, kC4 = 1, kSwa = 2, kDraft = 3 };
  static constexpr std::uint32_t kWindow = 2;  // trailing pages of swa

  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
    under_test_ = GetParam().open();
    ASSERT_NE(under_test_.store, nullptr);
    inner_ = under_test_.store.get();
    faults_owned_ = std::make_unique<FaultStore>(std::move(under_test_.store));
    watched_ = std::make_unique<WatchedStore>(*faults_owned_);
    use(true);
  }
  void TearDown() override { set_log_sink({}); }

  ObjectStore& inner() { return *inner_; }
  FaultStore& faults() { return *faults_owned_; }
  WatchedStore& watched() { return *watched_; }

  static ModelSpec synthetic(bool logical) {
    ModelSpec model;
    model.weights_digest = "abc";
    model.pools = {synthetic_pool("kv", logical ? 0 : 400, ""), synthetic_pool("c4", 300, "kv"),
                   synthetic_pool("swa", 200, "kv"), synthetic_pool("draft", 100, "kv")};
    model.pools[kSwa].hit_policy = {HitPolicy::Kind::trailing_pages, kWindow};
    model.pools[kDraft].required = false;
    return model;
  }
  void use(bool logical) { use(synthetic(logical)); }
  void use(const ModelSpec& model) {
    model_ = model;
    ASSERT_TRUE(validate(model_).ok());
    pages_ = std::make_unique<PageStore>(watched(), model_, clock_);
  }

  std::vector<std::byte> payload(int page, std::uint32_t pool) const {
    return synthetic_payload(model_.pools[pool], page);
  }
  PagePart part(std::uint32_t pool, int first, int count, bool filled = true) const {
    return synthetic_part(model_.pools[pool], first, count, filled);
  }
  // The whole backup of pages [first, first + count): the window of swa at its end.
  std::vector<PagePart> backup(int first, int count, bool draft = true) const {
    const int window = std::min<int>(count, kWindow);
    std::vector<PagePart> parts;
    parts.push_back(part(kKv, first, count));
    parts.push_back(part(kC4, first, count));
    parts.push_back(part(kSwa, first + count - window, window));
    if (draft) parts.push_back(part(kDraft, first, count));
    return parts;
  }
  CallOutcome store(std::vector<PagePart>& parts) { return pages_->store(views_of(parts), {}); }
  CallOutcome load(std::vector<PagePart>& parts) { return pages_->load(views_of(parts), {}); }
  void store_all(int first, int count, bool draft = true) {
    auto parts = backup(first, count, draft);
    EXPECT_TRUE(store(parts).status.ok());
    for (const PagePart& part : parts) EXPECT_EQ(part.codes, Codes(part.codes.size(), kOk));
  }
  PrefixStops stops(int count) {
    std::vector<PageKey> keys;
    for (int page = 0; page < count; ++page) keys.push_back(synthetic_key(page));
    PrefixStops answer;
    last_ = pages_->exists_prefix(keys, answer, {});
    return answer;
  }
  std::vector<bool> ends(int count) {
    std::vector<bool> ends;
    for (const StatusCode code : stops(count).codes) ends.push_back(code == kOk);
    return ends;
  }
  static std::vector<bool> bits(std::initializer_list<int> values) {
    std::vector<bool> out;
    for (const int value : values) out.push_back(value != 0);
    return out;
  }
  std::string object_key(int page, std::uint32_t pool) const {
    return pages_->keys().object_key(synthetic_key(page), model_.pools[pool].name);
  }
  bool present(int page, std::uint32_t pool) {
    return exists_object(inner(), object_key(page, pool)) == kOk;
  }
  void lose(int page, std::uint32_t pool) {
    ASSERT_EQ(remove_object(inner(), object_key(page, pool)), kOk);
  }
  // Calls of that kind that name some object of the pool.
  std::size_t calls(StoreCall call, std::uint32_t pool) const {
    const std::string part = "/" + model_.pools[pool].name + ".";
    const auto log = faults_owned_->log();
    return static_cast<std::size_t>(std::count_if(log.begin(), log.end(), [&](const auto& entry) {
      return entry.call == call &&
             std::any_of(entry.keys.begin(), entry.keys.end(), [&](const std::string& key) {
               return key.find(part) != std::string::npos;
             });
    }));
  }

  ManualClock clock_;
  ModelSpec model_;
  std::unique_ptr<PageStore> pages_;
  CallOutcome last_;

 private:
  StoreUnderTest under_test_;
  ObjectStore* inner_ = nullptr;
  std::unique_ptr<FaultStore> faults_owned_;
  std::unique_ptr<WatchedStore> watched_;
};

TEST_P(PageStoreSuite, ALogicalAnchorsPagesAreMarkers) {
  store_all(0, 4);
  StatusCode code = StatusCode::internal;
  const auto record = get_object(inner(), object_key(2, kKv), kMarkerBytes, code);
  ASSERT_EQ(code, kOk);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(record.data()), 4), "HTMK");
  EXPECT_EQ(pages_->stats().markers, 4u);
  EXPECT_EQ(ends(5), bits({0, 0, 0, 1, 0})) << "swa has the last two of four only";
  EXPECT_EQ(stops(5).anchor_pages, 4u);
  EXPECT_EQ(stops(5).longest(), 4u);
  std::vector<PagePart> parts;
  parts.push_back(part(kKv, 0, 4));
  parts.push_back(part(kC4, 0, 4, false));
  parts.push_back(part(kSwa, 2, 2, false));
  parts.push_back(part(kDraft, 0, 4, false));
  EXPECT_TRUE(load(parts).status.ok());
  for (std::uint32_t at = 0; at < 4; ++at) {
    EXPECT_EQ(parts[at].codes, Codes(parts[at].codes.size(), kOk));
  }
  EXPECT_TRUE(holds_page(parts[2], model_.pools[kSwa], 3, 1));
}

// Any number of markers costs one existence call and one put; side objects come before them.
TEST_P(PageStoreSuite, ManyMarkersAreOneExistenceCallAndOnePut) {
  store_all(0, 1024);
  EXPECT_EQ(calls(StoreCall::exists, kKv), 1u);
  EXPECT_EQ(calls(StoreCall::put, kKv), 1u);
  const auto log = faults().log();
  ASSERT_GE(log.size(), 2u);
  const auto& confirmation = log[log.size() - 2];
  EXPECT_EQ(confirmation.call, StoreCall::exists);
  EXPECT_EQ(confirmation.keys.size(), 1024u * 2 + kWindow) << "markers, c4, and the swa window";
  EXPECT_EQ(log.back().call, StoreCall::put);
  EXPECT_EQ(log.back().keys.size(), 1024u);
  // Again: nothing is written.
  faults().clear_log();
  store_all(0, 1024);
  EXPECT_EQ(calls(StoreCall::exists, kKv), 1u);
  for (const auto& entry : faults().log()) EXPECT_NE(entry.call, StoreCall::put);
  EXPECT_EQ(pages_->stats().markers, 1024u);
  EXPECT_EQ(pages_->stats().markers_present, 1024u);
}

// The anchor alone, as the older calls have it: the same objects, the same rule.
TEST_P(PageStoreSuite, OneByOneOrTogetherTheAnswersAgree) {
  std::vector<PageSlot> markers;
  for (int page = 0; page < 3; ++page) markers.push_back({.key = synthetic_key(page), .slot = {}});
  Codes codes(3, StatusCode::internal);
  pages_->store(markers, codes, {});
  EXPECT_EQ(codes, Codes(3, kMiss)) << "no side objects, no marker";
  PagePart sides = part(kC4, 0, 3);
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
  std::vector<PagePart> together;
  together.push_back(part(kKv, 0, 4));
  load(together);
  EXPECT_EQ(together[0].codes, (Codes{kOk, kOk, kOk, kMiss}));
  faults().clear_log();
  store(together);
  EXPECT_EQ(together[0].codes, (Codes{kOk, kOk, kOk, kMiss}));
  EXPECT_EQ(calls(StoreCall::put, kKv), 0u);
}

TEST_P(PageStoreSuite, APageIsNotCommittedBeforeItsSideObjectsAreConfirmed) {
  for (const bool logical : {true, false}) {
    SCOPED_TRACE(logical ? "logical" : "physical");
    use(logical);
    // An accepted put proves nothing: the object is gone when the store is asked.
    faults().add({.call = StoreCall::exists,
                  .kind = StoreFault::Kind::lost,
                  .key_part = object_key(1, kC4),
                  .skip = 1,
                  .times = 1});
    // A put that fails.
    faults().add({.call = StoreCall::put,
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
    faults().clear_faults();
    store_all(0, 4);
    EXPECT_EQ(stops(4).longest(), 4u);
  }
}

TEST_P(PageStoreSuite, AFailingMarkerFailsItsPageOnly) {
  faults().add({.call = StoreCall::put,
                .code = StatusCode::resource_exhausted,
                .key_part = object_key(1, kKv)});
  auto parts = backup(0, 4);
  store(parts);
  EXPECT_EQ(parts[0].codes, (Codes{kOk, StatusCode::resource_exhausted, kOk, kOk}));
  EXPECT_EQ(parts[1].codes, Codes(4, kOk));
  EXPECT_EQ(stops(4).anchor_pages, 1u);
}

TEST_P(PageStoreSuite, AStoreThatThrowsFailsTheCallAlone) {
  watched().throws = true;
  auto parts = backup(0, 3);
  const CallOutcome outcome = store(parts);
  EXPECT_EQ(outcome.status.code(), StatusCode::internal);
  EXPECT_NE(outcome.status.message().find("own words"), std::string::npos);
  for (const PagePart& part : parts) {
    EXPECT_EQ(part.codes, Codes(part.codes.size(), StatusCode::internal));
  }
  EXPECT_EQ(load(parts).status.code(), StatusCode::internal);
  EXPECT_EQ(stops(3).longest(), 0u);
  watched().throws = false;
  store_all(0, 3);
  EXPECT_EQ(stops(3).longest(), 3u);
}

TEST_P(PageStoreSuite, WhatIsMissingUnderAMarkerIsWrittenAgain) {
  store_all(0, 4);
  lose(1, kC4);
  lose(3, kSwa);
  ASSERT_TRUE(present(1, kKv)) << "the marker stays: it is no proof";
  EXPECT_EQ(stops(4).longest(), 0u);
  faults().clear_log();
  store_all(0, 4);
  EXPECT_TRUE(present(1, kC4));
  EXPECT_TRUE(present(3, kSwa));
  EXPECT_EQ(calls(StoreCall::put, kKv), 0u);
  EXPECT_EQ(stops(4).longest(), 4u);
}

TEST_P(PageStoreSuite, AllObjectsOfAPageShareOneGroup) {
  store_all(0, 3);
  ASSERT_EQ(watched().groups.size(), 3u + 3 + kWindow + 3);
  for (const auto& [key, group] : watched().groups) {
    bool found = false;
    for (int page = 0; page < 3; ++page) {
      if (key.find(synthetic_key(page).to_hex()) == std::string::npos) continue;
      EXPECT_EQ(group, pages_->keys().group(synthetic_key(page)));
      found = true;
    }
    EXPECT_TRUE(found);
  }
}

// A draft that is absent, refused or lost takes nothing from the target.
TEST_P(PageStoreSuite, AnAbsentDraftNeverVoidsTheTargetsHit) {
  for (const bool logical : {true, false}) {
    use(logical);
    store_all(0, 4, false);
    EXPECT_EQ(stops(4).longest(), 4u);
    faults().add({.call = StoreCall::put, .code = StatusCode::unavailable, .key_part = "/draft."});
    auto parts = backup(4, 2);
    store(parts);
    EXPECT_EQ(parts[0].codes, Codes(2, kOk));
    EXPECT_EQ(parts[3].codes, Codes(2, StatusCode::unavailable));
    EXPECT_EQ(stops(6).longest(), 6u);
    std::vector<PagePart> wanted;
    wanted.push_back(part(kC4, 0, 6, false));
    wanted.push_back(part(kDraft, 0, 6, false));
    load(wanted);
    EXPECT_EQ(wanted[0].codes, Codes(6, kOk));
    EXPECT_EQ(wanted[1].codes, Codes(6, kMiss)) << "the caller sees that they are absent";
    faults().clear_faults();
  }
}

TEST_P(PageStoreSuite, UnknownPoolsFailLoudly) {
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

TEST_P(PageStoreSuite, MarkersThatDoNotVerifyAreMissesAndGo) {
  store_all(0, 2);
  faults().add({.call = StoreCall::get,
                .kind = StoreFault::Kind::flipped_bit,
                .key_part = object_key(1, kKv),
                .times = 1,
                .bit = 400});
  std::vector<PagePart> parts;
  parts.push_back(part(kKv, 0, 2));
  load(parts);
  EXPECT_EQ(parts[0].codes, (Codes{kOk, StatusCode::data_loss}));
  EXPECT_FALSE(present(1, kKv));
  EXPECT_EQ(pages_->stats().verification_failures_total(), 1u);
  // A foreign one-byte marker.
  const std::byte one{'1'};
  ASSERT_EQ(put_object(inner(), object_key(1, kKv), std::span(&one, 1)), kOk);
  load(parts);
  EXPECT_EQ(parts[0].codes, (Codes{kOk, StatusCode::data_loss}));
}

TEST_P(PageStoreSuite, StopPointsAreASet) {
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

TEST_P(PageStoreSuite, AnExistenceQueryTouchesEveryRequiredObjectInOneCall) {
  store_all(0, 3);
  faults().clear_log();
  stops(3);
  const auto log = faults().log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].keys.size(), 3u * 3) << "kv, c4, swa; not the draft";
  faults().add(
      {.call = StoreCall::exists, .code = StatusCode::unavailable, .key_part = object_key(1, kC4)});
  EXPECT_EQ(stops(3).longest(), 0u) << "what is not known counts as absent";
  EXPECT_EQ(stops(0).longest(), 0u);
}

// K3 B027: a window shorter than the pool's is enough only where the prompt itself is shorter.
// Asked for the end of a prompt, what lies before it is not taken for granted.
TEST_P(PageStoreSuite, K3_B027_AWindowIsClippedAtThePromptsStartOnly) {
  store_all(0, 2);
  EXPECT_EQ(ends(2), bits({1, 1}));
  store_all(0, 6);  // the window of swa: 4 and 5; 2 and 3 have none
  const std::vector<PageKey> keys = {synthetic_key(4), synthetic_key(5)};
  PrefixStops answer;
  EXPECT_TRUE(pages_->exists_prefix(keys, answer, {}, 4).status.ok());
  EXPECT_EQ(answer.codes, (Codes{kMiss, kOk}));
  EXPECT_TRUE(pages_->exists_prefix(keys, answer, {}, 0).status.ok());
  EXPECT_EQ(answer.codes, (Codes{kOk, kOk}));
}

// Why a prefix cannot end somewhere is said by the first page in the way.
TEST_P(PageStoreSuite, WhatIsInTheWayIsSaid) {
  use(false);
  for (int end = 1; end <= 5; ++end) store_all(0, end);
  lose(3, kC4);
  faults().add({.call = StoreCall::exists,
                .code = StatusCode::unavailable,
                .key_part = object_key(1, kSwa)});
  constexpr auto kAway = StatusCode::unavailable;
  EXPECT_EQ(stops(5).codes, (Codes{kOk, kAway, kAway, kMiss, kMiss}));
  EXPECT_EQ(pages_->stats().failures_by_code[static_cast<std::size_t>(kAway)], 1u);
}

// ---- K2: pools ----------------------------------------------------------------------------------

// K2 B015: the anchor is an index space without bytes; the side pools carry the data and decide
// whether a page is there.
TEST_P(PageStoreSuite, K2_B015_AnAnchorWithoutBytesIsCarriedByItsSidePools) {
  ModelSpec model = synthetic(true);
  model.pools.push_back(synthetic_pool("indexer", 150, "kv"));
  model.pools.push_back(synthetic_pool("state", 700, ""));
  model.pools.back().kind = PoolKind::state;
  model.pools.back().hit_policy = {HitPolicy::Kind::trailing_pages, 1};
  use(model);
  constexpr std::uint32_t kIndexer = 4;
  constexpr std::uint32_t kState = 5;
  const auto whole = [&](bool filled) {
    std::vector<PagePart> parts;
    parts.push_back(part(kKv, 0, 3, filled));
    parts.push_back(part(kC4, 0, 3, filled));
    parts.push_back(part(kSwa, 1, 2, filled));
    parts.push_back(part(kIndexer, 0, 3, filled));
    parts.push_back(part(kState, 2, 1, filled));
    return parts;
  };
  auto parts = whole(true);
  EXPECT_TRUE(store(parts).status.ok());
  EXPECT_EQ(ends(3), bits({0, 0, 1}));
  auto back = whole(false);
  EXPECT_TRUE(load(back).status.ok());
  for (const PagePart& one : back) {
    EXPECT_EQ(one.codes, Codes(one.codes.size(), kOk)) << one.pool;
    if (one.memory.empty()) continue;
    const std::uint32_t pool = one.pool == "c4"        ? kC4
                               : one.pool == "swa"     ? kSwa
                               : one.pool == "indexer" ? kIndexer
                                                       : kState;
    const int first = 3 - static_cast<int>(one.codes.size());
    for (std::size_t i = 0; i < one.codes.size(); ++i) {
      EXPECT_TRUE(holds_page(one, model_.pools[pool], first + static_cast<int>(i), i)) << one.pool;
    }
  }
  for (const std::uint32_t pool : {kState, kIndexer}) {
    lose(2, pool);
    EXPECT_EQ(stops(3).longest(), 0u) << model_.pools[pool].name;
    EXPECT_TRUE(store(parts).status.ok());
    EXPECT_EQ(stops(3).longest(), 3u);
  }
}

// An anchor that is neither logical nor has bytes: calls for it succeed without I/O, and what can
// be restored is what its side pools say.
TEST_P(PageStoreSuite, AnAnchorOfSidePoolsOnlyNeedsNoCalls) {
  ModelSpec model = synthetic(true);
  model.pools[kKv].kind = PoolKind::side_pools_only;
  use(model);
  faults().clear_log();
  PagePart anchor = part(kKv, 0, 3);
  const std::vector<PoolPages> alone = {anchor.view()};
  EXPECT_TRUE(pages_->store(alone, {}).status.ok());
  EXPECT_EQ(anchor.codes, Codes(3, kOk));
  anchor.codes.assign(3, StatusCode::internal);
  EXPECT_TRUE(pages_->load(alone, {}).status.ok());
  EXPECT_EQ(anchor.codes, Codes(3, kOk));
  anchor.codes.assign(3, StatusCode::internal);
  EXPECT_TRUE(pages_->commit(alone.front(), {}, {}).status.ok());
  EXPECT_EQ(anchor.codes, Codes(3, kOk));
  EXPECT_TRUE(faults().log().empty());
  EXPECT_EQ(stops(3).longest(), 0u) << "no side pool has anything";

  auto parts = backup(0, 3);
  EXPECT_TRUE(store(parts).status.ok());
  EXPECT_EQ(stops(3).anchor_pages, 3u);
  EXPECT_EQ(stops(3).longest(), 3u);
  EXPECT_FALSE(present(0, kKv));
  lose(2, kC4);
  EXPECT_EQ(stops(3).longest(), 0u) << "the window of swa ends at page 3 alone";
}

// K2 B021: the draft's pages are saved and restored with the target's; one that is missing is said
// to be, and what lay in its place is nobody's page.
TEST_P(PageStoreSuite, K2_B021_TheDraftIsSavedAndRestoredWithTheTarget) {
  for (const bool logical : {true, false}) {
    use(logical);
    store_all(0, 4);
    lose(2, kDraft);
    EXPECT_EQ(stops(4).longest(), 4u);
    std::vector<PagePart> back;
    back.push_back(part(kC4, 0, 4, false));
    back.push_back(part(kDraft, 0, 4, false));
    EXPECT_TRUE(load(back).status.ok());
    EXPECT_EQ(back[0].codes, Codes(4, kOk));
    EXPECT_EQ(back[1].codes, (Codes{kOk, kOk, kMiss, kOk}));
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(holds_page(back[0], model_.pools[kC4], static_cast<int>(i), i));
      EXPECT_EQ(holds_page(back[1], model_.pools[kDraft], static_cast<int>(i), i), i != 2);
    }
  }
}

// Whether a pool is required is the model's choice: a required draft ends the hit where it does.
TEST_P(PageStoreSuite, ARequiredDraftShortensTheHit) {
  for (const bool logical : {true, false}) {
    ModelSpec model = synthetic(logical);
    model.pools[kDraft].required = true;
    model.pools.erase(model.pools.begin() + kSwa);
    use(model);
    constexpr std::uint32_t kRequiredDraft = 2;
    std::vector<PagePart> parts;
    parts.push_back(part(kKv, 0, 4));
    parts.push_back(part(kC4, 0, 4));
    parts.push_back(part(kRequiredDraft, 0, 4));
    EXPECT_TRUE(store(parts).status.ok());
    EXPECT_EQ(stops(4).longest(), 4u);
    lose(2, kRequiredDraft);
    EXPECT_EQ(ends(4), bits({1, 1, 0, 0}));
    parts.pop_back();
    lose(2, kKv);
    store(parts);
    EXPECT_EQ(parts[0].codes, (Codes{kOk, kOk, kMiss, kOk})) << "not committed without it";
  }
}

// ---- K11: the contract of batches
// ----------------------------------------------------------------

// K11 B145: a page of two objects of which one is missing is no page, and its partner is not
// counted for one.
TEST_P(PageStoreSuite, K11_B145_HalfAPageIsNoPage) {
  ModelSpec model = synthetic(false);
  model.pools.resize(2);  // two objects a page
  use(model);
  std::vector<PagePart> parts;
  parts.push_back(part(kKv, 0, 4));
  parts.push_back(part(kC4, 0, 4));
  EXPECT_TRUE(store(parts).status.ok());
  lose(2, kC4);
  lose(3, kC4);
  lose(3, kKv);
  EXPECT_EQ(ends(4), bits({1, 1, 0, 0}));
  lose(0, kC4);
  EXPECT_EQ(ends(4), bits({0, 0, 0, 0}));
  const std::uint64_t hits = pages_->stats().query_hits;
  EXPECT_EQ(hits, 2u) << "two pages of the first query, none of the second";
}

// K11 B147: what one item has too much does not make up for what another lacks.
TEST_P(PageStoreSuite, K11_B147_EveryItemsLengthIsLookedAtByItself) {
  store_all(0, 2);
  watched().adds_bytes_up = true;
  std::vector<PagePart> back;
  back.push_back(part(kC4, 0, 2, false));
  load(back);
  EXPECT_EQ(back[0].codes, Codes(2, StatusCode::data_loss));
  EXPECT_EQ(pages_->stats().verification_failures[static_cast<std::size_t>(EnvelopeFault::length)],
            2u);
}

// K11 B151: a page whose read failed, for whatever cause, is not loaded, and the cause is counted.
TEST_P(PageStoreSuite, K11_B151_AFailedReadIsNeverAPage) {
  struct Cause {
    StoreFault fault;
    StatusCode code;
  };
  using Kind = StoreFault::Kind;
  const std::vector<Cause> causes = {
      {{.kind = Kind::error, .code = StatusCode::unavailable}, StatusCode::unavailable},
      {{.kind = Kind::error, .code = StatusCode::deadline_exceeded}, StatusCode::deadline_exceeded},
      {{.kind = Kind::error, .code = StatusCode::resource_exhausted},
       StatusCode::resource_exhausted},
      {{.kind = Kind::error, .code = StatusCode::not_found}, kMiss},
      {{.kind = Kind::error, .code = StatusCode::data_loss}, StatusCode::data_loss},
      {{.kind = Kind::lost}, kMiss},
      {{.kind = Kind::short_bytes}, StatusCode::data_loss},
      {{.kind = Kind::flipped_bit, .bit = 1500}, StatusCode::data_loss},
      {{.kind = Kind::unanswered}, StatusCode::internal},
  };
  for (const Cause& cause : causes) {
    SCOPED_TRACE(to_string(cause.code));
    clock_.advance(std::chrono::minutes(2));
    store_all(0, 4);
    StoreFault fault = cause.fault;
    fault.call = StoreCall::get;
    fault.key_part = object_key(2, kC4);
    fault.times = 1;
    faults().add(fault);
    const PageStoreStats before = pages_->stats();
    std::vector<PagePart> back;
    back.push_back(part(kC4, 0, 4, false));
    load(back);
    EXPECT_EQ(back[0].codes, (Codes{kOk, kOk, cause.code, kOk}));
    const PageStoreStats after = pages_->stats();
    const std::size_t code = static_cast<std::size_t>(cause.code);
    EXPECT_EQ(after.loads - before.loads, 3u);
    EXPECT_EQ(after.load_misses - before.load_misses, cause.code == kMiss ? 1u : 0u);
    EXPECT_EQ(after.verification_failures_total() - before.verification_failures_total(),
              cause.code == StatusCode::data_loss ? 1u : 0u);
    EXPECT_EQ(after.failures_by_code[code] - before.failures_by_code[code],
              cause.code == kMiss || cause.code == StatusCode::data_loss ? 0u : 1u);
    faults().clear_faults();
  }
}

}  // namespace hitide
