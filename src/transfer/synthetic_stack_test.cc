// Pages of synthetic models through all tiers and back, for each way in which their pools can be
// registered: a plain in-memory device (L1), host pools of several allocators (L2), a store in
// memory (L3) behind a client that is strict and fails on command.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "pool/host_pool.h"
#include "pool/pool_group.h"
#include "storage/memory/memory_store.h"
#include "storage/page_store.h"
#include "tests/support/registrar_double.h"
#include "tests/support/store_bytes.h"
#include "transfer/pool_registry.h"

namespace hitide {
namespace {

using Verdict = RegistrationVerdict;
using Path = RegistrationPath;
using Bytes = std::vector<std::byte>;

constexpr int kPages = 5;
constexpr std::uint32_t kWindow = 2;
constexpr std::byte kPoison{0xdd};

PoolSpec pool(std::string name, std::uint64_t page_bytes, std::string source) {
  PoolSpec spec;
  spec.name = std::move(name);
  spec.page_bytes = page_bytes;
  if (page_bytes == 0) spec.kind = PoolKind::logical;
  spec.index_source = std::move(source);
  return spec;
}

// kv (logical or not), c4 on its ids, swa with ids of its own, and a sidecar draft.
ModelSpec synthetic(bool logical, bool draft_required = false) {
  ModelSpec model;
  model.weights_digest = "abc";
  model.pools = {pool("kv", logical ? 0 : 4000, ""), pool("c4", 3000, "kv"), pool("swa", 2000, ""),
                 pool("draft", 1000, "kv")};
  model.pools[2].hit_policy = {HitPolicy::Kind::trailing_pages, kWindow};
  model.pools[3].required = draft_required;
  return model;
}

PageKey page_key(int page) {
  PageKey key;
  key.bytes[0] = static_cast<std::uint8_t>(page + 1);
  return key;
}

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

struct StackCase {
  std::string what;
  bool logical = false;
  AllocatorKind target = AllocatorKind::shm;
  AllocatorKind draft = AllocatorKind::shm;
  ClientKind client = ClientKind::embedded;
  bool staging = true;
  int refused_region = -1;  // of the pools' regions, in order
  Path target_path = Path::zero_copy;
  Path draft_path = Path::zero_copy;
  bool draft_required = false;
};

class Stack {
 public:
  explicit Stack(const StackCase& setup)
      : model_(synthetic(setup.logical, setup.draft_required)),
        registry_(double_, {.staging_allowed = setup.staging}),
        store_(std::make_unique<MemoryStore>(16u << 20)),
        pages_(*store_, model_) {
    const std::vector<std::uint32_t> capacities = {kPages + 2, 0, kWindow + 1, 0};
    device_ids_ = PoolGroup::create(model_, capacities).value();
    host_ids_ = PoolGroup::create(model_, capacities).value();
    for (std::size_t p = 0; p < model_.pools.size(); ++p) {
      device_.emplace_back(kPages + 2, Bytes(model_.pools[p].page_bytes, kPoison));
      host_.push_back(nullptr);
      PoolToRegister wanted{.memory = describe_without_memory(model_.pools[p])};
      if (model_.pools[p].page_bytes > 0) {
        const AllocatorKind kind = p == 3 ? setup.draft : setup.target;
        host_[p] = HostPool::create(model_.pools[p], capacities[host_ids_->source(p)],
                                    kind == AllocatorKind::shm ? shm_allocator() : mmap_allocator())
                       .value();
        wanted.memory = host_[p]->describe();
        if (HostPool::kChecksFreePages)
          observers_[host_ids_->source(p)].pools.push_back(&*host_[p]);
      }
      wanted_.push_back(std::move(wanted));
    }
    for (auto& [source, observer] : observers_) {
      host_ids_->allocator(source).set_observer(&observer).ignore();
    }
    if (setup.refused_region >= 0) {
      double_.fail_at(static_cast<std::size_t>(setup.refused_region),
                      RegistrarDouble::Answer::refuse);
    }
    ClientCapabilities client;
    client.kind = setup.client;
    rows_ = registry_.attach(wanted_, client);
  }

  const std::vector<PoolRegistration>& rows() const { return rows_; }
  bool storage_on() const { return registry_.storage_on(); }
  bool has(std::size_t p) const { return model_.pools[p].page_bytes > 0; }
  // The page positions that a pool has: all, or the window at the end.
  int first_page(std::size_t p) const { return p == 2 ? kPages - static_cast<int>(kWindow) : 0; }
  std::vector<std::uint32_t> demand() const { return {kPages, 0, kWindow, 0}; }

  void reserve_device() {
    ASSERT_TRUE(device_ids_->reserve(demand(), PageOwner::request, l1_).ok());
  }
  void reserve_host() { ASSERT_TRUE(host_ids_->reserve(demand(), PageOwner::node, l2_).ok()); }
  void release_device() {
    ASSERT_TRUE(device_ids_->free(l1_, PageOwner::request).ok());
    for (auto& one : device_) {
      for (Bytes& bytes : one) std::fill(bytes.begin(), bytes.end(), kPoison);
    }
  }
  void release_host() {
    for (std::size_t p = 0; p < model_.pools.size(); ++p) {
      for (int page = first_page(p); has(p) && page < kPages; ++page) {
        const auto bytes = host_payload(p, page);
        std::fill(bytes.begin(), bytes.end(), kPoison);
      }
    }
    ASSERT_TRUE(host_ids_->free(l2_, PageOwner::node).ok());
  }

  Bytes pattern(std::size_t p, int page) const {
    return bytes_of(std::to_string(page) + "@" + model_.pools[p].name, model_.pools[p].page_bytes);
  }
  Bytes& device_page(std::size_t p, int page) {
    const auto ids = device_ids_->pages(l1_, p);
    return device_[p][ids[static_cast<std::size_t>(page - first_page(p))].index];
  }
  std::span<std::byte> host_payload(std::size_t p, int page) {
    return host_[p]->payload(
        host_ids_->pages(l2_, p)[static_cast<std::size_t>(page - first_page(p))]);
  }
  std::span<std::byte> host_slot(std::size_t p, int page) {
    return host_[p]->slot(host_ids_->pages(l2_, p)[static_cast<std::size_t>(page - first_page(p))]);
  }
  void compute() {
    for_each_page([&](std::size_t p, int page) { device_page(p, page) = pattern(p, page); });
  }
  void to_host() {
    for_each_page([&](std::size_t p, int page) {
      const Bytes& from = device_page(p, page);
      std::copy(from.begin(), from.end(), host_payload(p, page).begin());
    });
  }
  // Only pools whose pages are known to be there.
  void to_device(const std::set<std::size_t>& pools) {
    for_each_page([&](std::size_t p, int page) {
      if (!pools.contains(p)) return;
      const auto from = host_payload(p, page);
      device_page(p, page).assign(from.begin(), from.end());
    });
  }
  // One code a page for each pool that has L3.
  std::map<std::size_t, std::vector<StatusCode>> move(bool storing) {
    std::map<std::size_t, std::vector<StatusCode>> codes;
    std::vector<std::vector<PageKey>> keys(4);
    std::vector<std::vector<std::span<std::byte>>> slots(4);
    std::vector<PoolPages> views;
    for (std::size_t p = 0; p < 4; ++p) {
      if (!rows_[p].on()) continue;
      for (int page = first_page(p); page < kPages; ++page) {
        keys[p].push_back(page_key(page));
        if (has(p)) slots[p].push_back(host_slot(p, page));
      }
      codes[p].assign(keys[p].size(), StatusCode::internal);
      views.push_back(
          {.pool = model_.pools[p].name, .keys = keys[p], .slots = slots[p], .out = codes[p]});
    }
    const CallOutcome outcome = storing ? pages_.store(views, {}) : pages_.load(views, {});
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    return codes;
  }
  std::uint32_t restorable() {
    std::vector<PageKey> keys;
    for (int page = 0; page < kPages; ++page) keys.push_back(page_key(page));
    PrefixStops stops;
    EXPECT_TRUE(pages_.exists_prefix(keys, stops, {}).status.ok());
    return stops.longest();
  }
  void expect_device_holds(std::size_t p, bool computed) {
    for (int page = first_page(p); page < kPages; ++page) {
      const Bytes want = computed ? pattern(p, page) : Bytes(model_.pools[p].page_bytes, kPoison);
      EXPECT_EQ(device_page(p, page), want) << model_.pools[p].name << " page " << page;
    }
  }
  RegistrarDouble& client() { return double_; }
  PoolRegistry& registry() { return registry_; }

 private:
  template <typename Do>
  void for_each_page(const Do& action) {
    for (std::size_t p = 0; p < 4; ++p) {
      for (int page = first_page(p); has(p) && page < kPages; ++page) action(p, page);
    }
  }

  ModelSpec model_;
  RegistrarDouble double_;
  std::map<std::size_t, Observers> observers_;
  std::vector<std::unique_ptr<HostPool>> host_;  // [pools]; null: logical
  PoolRegistry registry_;
  std::unique_ptr<MemoryStore> store_;
  PageStore pages_;
  std::unique_ptr<PoolGroup> device_ids_, host_ids_;
  std::vector<std::vector<Bytes>> device_;  // [pools][pages]
  std::vector<PoolToRegister> wanted_;
  std::vector<PoolRegistration> rows_;
  GroupPages l1_, l2_;
};

const std::vector<StackCase>& setups() {
  constexpr auto kShm = AllocatorKind::shm;
  constexpr auto kMmap = AllocatorKind::mmap;
  constexpr auto kThin = ClientKind::standalone;
  constexpr auto kReal = ClientKind::embedded;
  static const std::vector<StackCase> all = {
      {"shm, real client", false, kShm, kShm, kReal, true, -1, Path::zero_copy, Path::zero_copy},
      {"mmap, real client", false, kMmap, kMmap, kReal, true, -1, Path::staged, Path::staged},
      {"shm, thin client", false, kShm, kShm, kThin, false, -1, Path::zero_copy, Path::zero_copy},
      {"mmap, thin client", false, kMmap, kMmap, kThin, true, -1, Path::staged, Path::staged},
      {"draft mmap, staging off", false, kShm, kMmap, kThin, false, -1, Path::zero_copy, Path::off},
      {"draft refused, staging", false, kShm, kShm, kReal, true, 3, Path::zero_copy, Path::staged},
      {"draft refused, none", false, kShm, kShm, kReal, false, 3, Path::zero_copy, Path::off},
      {"target refused, staging off", false, kShm, kShm, kReal, false, 0, Path::off, Path::off},
      {"logical, real client", true, kShm, kShm, kReal, true, -1, Path::zero_copy, Path::zero_copy},
      {"logical, thin client, mmap", true, kMmap, kMmap, kThin, true, -1, Path::staged,
       Path::staged},
      {"logical, draft off", true, kShm, kMmap, kThin, false, -1, Path::zero_copy, Path::off},
      {"logical, side pool refused", true, kShm, kShm, kReal, false, 0, Path::off, Path::off},
      {"a required draft that is off", false, kShm, kMmap, kThin, false, -1, Path::off, Path::off,
       true},
  };
  return all;
}

class SyntheticStackTest : public testing::TestWithParam<int> {
 protected:
  SyntheticStackTest() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~SyntheticStackTest() override { set_log_sink({}); }
};

TEST_P(SyntheticStackTest, DownAllTiersAndBack) {
  const StackCase& setup = setups()[static_cast<std::size_t>(GetParam())];
  SCOPED_TRACE(setup.what);
  Stack stack(setup);
  EXPECT_EQ(to_string(stack.rows()[1].path), to_string(setup.target_path));
  EXPECT_EQ(to_string(stack.rows()[3].path), to_string(setup.draft_path));
  if (setup.logical && setup.target_path != Path::off) {
    EXPECT_EQ(stack.rows()[0].path, Path::markers_only);
  }
  stack.reserve_device();
  stack.compute();
  stack.reserve_host();
  stack.to_host();
  // L2 works whatever the store says, for the draft too.
  stack.release_device();
  stack.reserve_device();
  stack.to_device({0, 1, 2, 3});
  for (std::size_t p = 0; p < 4; ++p) stack.expect_device_holds(p, true);
  if (!stack.storage_on()) {
    EXPECT_EQ(setup.target_path, Path::off);
    EXPECT_TRUE(stack.client().registered().empty());
    return;
  }
  for (const auto& [p, codes] : stack.move(true)) {
    EXPECT_EQ(codes, std::vector<StatusCode>(codes.size(), StatusCode::ok)) << p;
  }
  stack.release_device();
  stack.release_host();
  EXPECT_EQ(stack.restorable(), static_cast<std::uint32_t>(kPages))
      << "an absent draft takes nothing from the target";
  stack.reserve_host();
  stack.reserve_device();
  std::set<std::size_t> loaded;
  for (const auto& [p, codes] : stack.move(false)) {
    EXPECT_EQ(codes, std::vector<StatusCode>(codes.size(), StatusCode::ok)) << p;
    loaded.insert(p);
  }
  EXPECT_EQ(loaded.contains(3), setup.draft_path != Path::off) << "it is said what is absent";
  stack.to_device(loaded);
  for (std::size_t p = 0; p < 4; ++p) stack.expect_device_holds(p, loaded.contains(p));
  stack.registry().detach_all();
  EXPECT_TRUE(stack.client().registered().empty());
}

INSTANTIATE_TEST_SUITE_P(Rows, SyntheticStackTest,
                         testing::Range(0, static_cast<int>(setups().size())));

}  // namespace
}  // namespace hitide
