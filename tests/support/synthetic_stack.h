// SyntheticStack: pages of a synthetic model on all tiers, with the parts that are really used.
//
//   FakeDevice a pool (L1) --copies--> HostPool a pool (L2) --TransferEngine--> PageStore --> store
//
// kv (logical or not) hands out ids, c4 has them too, swa has ids of its own and is needed for the
// last pages only, draft is a sidecar on kv's ids. Pools are registered by the rule; one that is
// off is not handed to the engine. Every page holds bytes that are a function of page and pool;
// host pages are poisoned when they are given up, and device pages of an older generation are
// nobody's.
//
// The store is passed in: tests of this layer use one in memory, integration tests a real one.
// Threading: one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "pool/host_pool.h"
#include "pool/pool_group.h"
#include "storage/page_store.h"
#include "tests/support/fake_device.h"
#include "tests/support/synthetic_pages.h"
#include "transfer/pool_registry.h"
#include "transfer/transfer_engine.h"

namespace hitide {

struct StackCase {
  std::string what;
  bool logical = false;
  AllocatorKind target = AllocatorKind::shm;
  AllocatorKind draft = AllocatorKind::shm;
  bool staging = true;
  RegistrationPath target_path = RegistrationPath::zero_copy;  // what is expected
  RegistrationPath draft_path = RegistrationPath::zero_copy;
  bool draft_required = false;
  std::uint32_t draft_regions = 1;  // the draft's memory is registered in so many parts
  // What else the rule is told than what is so.
  std::function<void(std::vector<PoolToRegister>&, ClientCapabilities&)> change = {};
};

class SyntheticStack final : private CompletionSink {
 public:
  static constexpr std::size_t kKv = 0, kC4 = 1, kSwa = 2, kDraft = 3, kPools = 4;
  static constexpr int kPages = 5;
  static constexpr std::uint32_t kWindow = 2;

  static ModelSpec model_of(const StackCase& setup) {
    ModelSpec model;
    model.weights_digest = "abc";
    model.pools = {synthetic_pool("kv", setup.logical ? 0 : 8000, ""),
                   synthetic_pool("c4", 6000, "kv"), synthetic_pool("swa", 4000, ""),
                   synthetic_pool("draft", 3000, "kv")};
    model.pools[kSwa].hit_policy = {HitPolicy::Kind::trailing_pages, kWindow};
    model.pools[kDraft].required = setup.draft_required;
    return model;
  }

  // `allocator`: who hands out memory of a kind. `store` and `registrar` outlive the stack.
  using Allocators = std::function<std::shared_ptr<HostAllocator>(AllocatorKind)>;
  SyntheticStack(const StackCase& setup, ObjectStore& store, Registrar& registrar,
                 const ClientCapabilities& client, const Allocators& allocator)
      : model_(model_of(setup)),
        registry_(registrar, {.staging_allowed = setup.staging}),
        pages_(store, model_) {
    const std::vector<std::uint32_t> capacities = {kPages + 2, 0, kWindow + 1, 0};
    device_ids_ = PoolGroup::create(model_, capacities).value();
    host_ids_ = PoolGroup::create(model_, capacities).value();
    std::vector<PoolToRegister> wanted;
    for (std::size_t p = 0; p < kPools; ++p) {
      devices_.push_back(nullptr);
      host_.push_back(nullptr);
      wanted.push_back({.memory = describe_without_memory(model_.pools[p])});
      if (!has(p)) continue;
      const std::uint32_t count = capacities[host_ids_->source(p)];
      devices_[p] =
          std::make_unique<FakeDevice>(DeviceGeometry{.page_count = count,
                                                      .page_size = model_.page_size(),
                                                      .page_bytes = model_.pools[p].page_bytes},
                                       true);
      EXPECT_TRUE(devices_[p]->attach(this).ok());
      host_[p] = HostPool::create(model_.pools[p], count,
                                  allocator(p == kDraft ? setup.draft : setup.target))
                     .value();
      wanted[p].memory = host_[p]->describe();
      if (p == kDraft) wanted[p].memory.regions = cut(wanted[p].memory, setup.draft_regions);
      if (HostPool::kChecksFreePages) {
        observers_[host_ids_->source(p)].pools.push_back(host_[p].get());
      }
    }
    for (auto& [source, observer] : observers_) {
      host_ids_->allocator(source).set_observer(&observer).ignore();
    }
    ClientCapabilities told = client;
    if (setup.change) setup.change(wanted, told);
    rows_ = registry_.attach(wanted, told);
    start_engine();
  }
  ~SyntheticStack() override {
    if (engine_) {
      EXPECT_TRUE(engine_->stop(soon()).ok());
    }
    registry_.detach_all();
    for (std::size_t p = 0; p < kPools; ++p) {
      if (!devices_[p]) continue;
      EXPECT_EQ(devices_[p]->violations(), std::vector<std::string>()) << model_.pools[p].name;
      devices_[p]->detach();
    }
    EXPECT_TRUE(device_ids_->check().ok());
    EXPECT_TRUE(host_ids_->check().ok());
  }
  SyntheticStack(const SyntheticStack&) = delete;
  SyntheticStack& operator=(const SyntheticStack&) = delete;

  const std::vector<PoolRegistration>& rows() const { return rows_; }
  bool storage_on() const { return registry_.storage_on(); }
  bool has(std::size_t p) const { return model_.pools[p].page_bytes > 0; }
  // True where the pool's pages travel to storage.
  bool travels(std::size_t p) const { return has(p) && rows_[p].on(); }
  PageStore& page_store() { return pages_; }
  TransferEngine& engine() { return *engine_; }
  std::string object_key(int page, std::size_t p) const {
    return pages_.keys().object_key(synthetic_key(page), model_.pools[p].name);
  }

  // ---- L1 and L2 ----

  void reserve_device() {
    ASSERT_TRUE(device_ids_->reserve(demand(), PageOwner::request, l1_).ok());
  }
  void reserve_host() { ASSERT_TRUE(host_ids_->reserve(demand(), PageOwner::node, l2_).ok()); }
  void release_device() { ASSERT_TRUE(device_ids_->free(l1_, PageOwner::request).ok()); }
  void release_host() {
    for_each_page([&](std::size_t p, int page) {
      const auto bytes = host_[p]->payload(id(*host_ids_, l2_, p, page));
      std::fill(bytes.begin(), bytes.end(), kPoison);
    });
    ASSERT_TRUE(host_ids_->free(l2_, PageOwner::node).ok());
  }
  void compute() {
    for_each_page([&](std::size_t p, int page) {
      devices_[p]->fill(id(*device_ids_, l1_, p, page), content(p, page));
    });
  }
  void back_up() {
    for_each_page([&](std::size_t p, int page) { copy(CopyDirection::to_host, p, page); });
  }
  // Of each pool, only the pages that are said to be in host memory.
  using Present = std::vector<std::vector<bool>>;  // [pools][pages of the prefix]
  void load_back(const Present& present) {
    for_each_page([&](std::size_t p, int page) {
      if (present[p][static_cast<std::size_t>(page)]) copy(CopyDirection::to_device, p, page);
    });
  }
  static Present all_present() { return Present(kPools, std::vector<bool>(kPages, true)); }
  // Each page is there with its own bytes, or it is not there at all.
  void expect_device_holds(const Present& present) {
    for_each_page([&](std::size_t p, int page) {
      const auto bytes = devices_[p]->bytes(id(*device_ids_, l1_, p, page));
      const bool there = present[p][static_cast<std::size_t>(page)];
      EXPECT_EQ(bytes, there ? page_content(content(p, page), model_.pools[p].page_bytes)
                             : std::vector<std::byte>())
          << model_.pools[p].name << " page " << page;
    });
  }

  // ---- L2 and L3 ----

  Completion write() {
    begin_write();
    return wait();
  }
  OpId begin_write() {
    engine_->submit(
        StorageWriteOp{.id = ++last_op_, .keys = keys(), .host_pages = ids(kKv), .sides = sides()});
    return last_op_;
  }
  Completion read() {
    engine_->submit(
        StorageReadOp{.id = ++last_op_, .keys = keys(), .host_pages = ids(kKv), .sides = sides()});
    return wait();
  }
  Completion query() {
    engine_->submit(StorageQueryOp{.id = ++last_op_, .keys = keys()});
    return wait();
  }
  // For the answer to the latest operation.
  Completion wait() {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_until(lock, soon(), [&] { return answers_.contains(last_op_); });
    EXPECT_TRUE(came) << "no answer to operation " << last_op_;
    return came ? answers_[last_op_] : Completion{};
  }
  // The draft's pages travel from now on.
  Status attach_draft() {
    return engine_->set_pool(static_cast<std::uint32_t>(kDraft), host_[kDraft].get());
  }
  // An operation of the test's own.
  Completion carry_out(StorageReadOp op) {
    op.id = ++last_op_;
    engine_->submit(std::move(op));
    return wait();
  }
  // What a completion says of a pool's pages; false where the pool did not travel.
  Present present(const Completion& completion) const {
    Present out(kPools, std::vector<bool>(kPages, false));
    for (int page = 0; page < kPages; ++page) {
      const auto at = static_cast<std::size_t>(page);
      out[kKv][at] = has(kKv) && completion.pages[at] == StatusCode::ok;
    }
    const std::vector<SidePages> asked = sides();
    for (std::size_t i = 0; i < asked.size(); ++i) {
      for (std::size_t j = 0; j < asked[i].host_pages.size(); ++j) {
        out[asked[i].pool][asked[i].first + j] = completion.sides[i][j] == StatusCode::ok;
      }
    }
    return out;
  }
  // All codes of the pool in a completion of write() or read().
  std::vector<StatusCode> codes(const Completion& completion, std::size_t p) const {
    if (p == kKv) return completion.pages;
    const std::vector<SidePages> asked = sides();
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].pool == p) return completion.sides[i];
    }
    return {};
  }

 private:
  // Tells every pool that shares ids.
  struct Observers final : PageObserver {
    std::vector<HostPool*> pools;
    void on_allocated(PageId page) override {
      for (HostPool* one : pools) one->on_allocated(page);
    }
    void on_freed(PageId page) override {
      for (HostPool* one : pools) one->on_freed(page);
    }
  };

  static TimePoint soon() { return SystemClock::instance().now() + std::chrono::seconds(60); }
  static std::uint64_t content(std::size_t p, int page) {
    return p * 1000 + static_cast<std::uint64_t>(page);
  }
  static std::vector<std::uint32_t> demand() { return {kPages, 0, kWindow, 0}; }
  static int first_page(std::size_t p) {
    return p == kSwa ? kPages - static_cast<int>(kWindow) : 0;
  }
  static std::vector<PageKey> keys() {
    std::vector<PageKey> out;
    for (int page = 0; page < kPages; ++page) out.push_back(synthetic_key(page));
    return out;
  }
  // The one region of a pool in `parts` regions, in whole memory pages.
  static std::vector<MemoryRegion> cut(const PoolMemory& memory, std::uint32_t parts) {
    if (parts == 1) return memory.regions;
    EXPECT_EQ(memory.regions.size(), 1u);
    const MemoryRegion& whole = memory.regions.front();
    constexpr std::size_t kUnit = 4096;
    EXPECT_GE(whole.bytes.size(), parts * kUnit);
    std::vector<MemoryRegion> out;
    for (std::uint32_t i = 0; i < parts; ++i) {
      const std::size_t begin = i * kUnit;
      const std::size_t bytes = i + 1 < parts ? kUnit : whole.bytes.size() - begin;
      out.push_back({.bytes = whole.bytes.subspan(begin, bytes),
                     .fd = whole.fd,
                     .fd_offset = whole.fd_offset + begin});
    }
    return out;
  }

  void start_engine() {
    if (!storage_on()) return;
    std::vector<const HostPool*> pools;
    for (std::size_t p = 0; p < kPools; ++p) pools.push_back(travels(p) ? host_[p].get() : nullptr);
    auto engine =
        TransferEngine::start(pages_, pools, {.batch_pages = 3}, [this](Completion completion) {
          const std::lock_guard lock(mutex_);
          answers_[completion.id] = std::move(completion);
          changed_.notify_all();
        });
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }
  PageId id(const PoolGroup& group, const GroupPages& pages, std::size_t p, int page) const {
    return group.pages(pages, p)[static_cast<std::size_t>(page - first_page(p))];
  }
  std::vector<PageId> ids(std::size_t p) const {
    const auto pages = host_ids_->pages(l2_, p);
    return {pages.begin(), pages.end()};
  }
  std::vector<SidePages> sides() const {
    std::vector<SidePages> out;
    for (std::size_t p = 1; p < kPools; ++p) {
      if (!travels(p)) continue;
      out.push_back({.pool = static_cast<std::uint32_t>(p),
                     .first = static_cast<std::uint32_t>(first_page(p)),
                     .host_pages = ids(p)});
    }
    return out;
  }
  template <typename Do>
  void for_each_page(const Do& action) {
    for (std::size_t p = 0; p < kPools; ++p) {
      for (int page = first_page(p); has(p) && page < kPages; ++page) action(p, page);
    }
  }
  void copy(CopyDirection direction, std::size_t p, int page) {
    CopyBatch batch;
    batch.direction = direction;
    batch.pages.push_back({.page = id(*device_ids_, l1_, p, page),
                           .position = static_cast<std::uint32_t>(page),
                           .payload = host_[p]->payload(id(*host_ids_, l2_, p, page))});
    devices_[p]->submit(std::move(batch));
  }
  void post(CopyCompletion completion) override {
    EXPECT_EQ(completion.pages, std::vector<StatusCode>(1, StatusCode::ok));
  }
  const ModelSpec model_;
  std::map<std::size_t, Observers> observers_;
  std::vector<std::unique_ptr<FakeDevice>> devices_;  // [pools]; null: logical
  std::vector<std::unique_ptr<HostPool>> host_;       // [pools]; null: logical
  PoolRegistry registry_;
  PageStore pages_;
  std::unique_ptr<PoolGroup> device_ids_, host_ids_;
  std::vector<PoolRegistration> rows_;
  GroupPages l1_, l2_;
  std::unique_ptr<TransferEngine> engine_;
  OpId last_op_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<OpId, Completion> answers_;  // guarded by mutex_
};

// The way of a prefix down all tiers and back, as it must go in every case. Ends with the prefix in
// host and device memory, restored from storage where storage is on.
inline void expect_all_tiers_and_back(SyntheticStack& stack, const StackCase& setup) {
  EXPECT_EQ(to_string(stack.rows()[SyntheticStack::kC4].path), to_string(setup.target_path))
      << stack.rows()[SyntheticStack::kC4].reason;
  EXPECT_EQ(to_string(stack.rows()[SyntheticStack::kDraft].path), to_string(setup.draft_path))
      << stack.rows()[SyntheticStack::kDraft].reason;
  if (setup.logical && setup.target_path != RegistrationPath::off) {
    EXPECT_EQ(stack.rows()[SyntheticStack::kKv].path, RegistrationPath::markers_only);
  }
  const auto everything = SyntheticStack::all_present();
  stack.reserve_device();
  stack.compute();
  stack.reserve_host();
  stack.back_up();
  // L2 works whatever the store says, for the draft too.
  stack.release_device();
  stack.reserve_device();
  stack.load_back(everything);
  stack.expect_device_holds(everything);
  ASSERT_EQ(stack.storage_on(), setup.target_path != RegistrationPath::off);
  if (!stack.storage_on()) return;

  const std::vector<StatusCode> all_ok(SyntheticStack::kPages, StatusCode::ok);
  const Completion written = stack.write();
  EXPECT_EQ(written.pages, all_ok);
  for (const auto& side : written.sides) {
    EXPECT_EQ(side, std::vector<StatusCode>(side.size(), StatusCode::ok));
  }
  stack.release_device();
  stack.release_host();
  const Completion found = stack.query();
  EXPECT_EQ(found.pages.back(), StatusCode::ok) << "an absent draft takes nothing from the target";
  stack.reserve_host();
  stack.reserve_device();
  const Completion read = stack.read();
  EXPECT_EQ(read.pages, all_ok);
  auto restored = everything;
  restored[SyntheticStack::kDraft].assign(SyntheticStack::kPages,
                                          setup.draft_path != RegistrationPath::off);
  const auto present = stack.present(read);
  EXPECT_EQ(present[SyntheticStack::kDraft], restored[SyntheticStack::kDraft])
      << "it is said what is absent";
  stack.load_back(present);
  stack.expect_device_holds(present);
  for (const std::size_t p : {SyntheticStack::kC4, SyntheticStack::kSwa}) {
    EXPECT_EQ(present[p].back(), true);
  }
}

}  // namespace hitide
