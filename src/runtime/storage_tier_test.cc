// How L3 comes up: by the rule, with fall-backs, and later where the store is down at first.
#include <sys/mman.h>

#include <atomic>
#include <climits>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/log.h"
#include "spec/layout.h"
#include "storage/memory/memory_store.h"
#include "tests/support/cache_rig.h"

namespace hitide {
namespace {

// A store in memory that answers as a client of another process would.
class ClientDouble final : public ObjectStore {
 public:
  explicit ClientDouble(ClientKind kind) : kind_(kind) {}
  ~ClientDouble() override { EXPECT_EQ(handed_out_.size(), 0u) << "store memory was kept"; }

  StoreCapabilities capabilities() const override {
    StoreCapabilities capabilities = inner_.capabilities();
    capabilities.client = kind_;
    capabilities.name = "double";
    if (object_bytes_max != 0) capabilities.object_bytes_max = object_bytes_max;
    return capabilities;
  }
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return inner_.exists(keys, out, options);
  }
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    return inner_.get(items, out, options);
  }
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override {
    return inner_.put(items, out, options);
  }
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override {
    return inner_.remove(keys, out, options);
  }
  Status health() const override {
    const std::lock_guard lock(mutex_);
    return ready_ ? Status() : Status(StatusCode::unavailable, "the master has gone");
  }
  Status wait_until_ready(TimePoint deadline) override {
    if (throws) throw std::runtime_error("own words");  // tidy: allow-throw that is what is tested
    std::unique_lock lock(mutex_);
    const bool ready = changed_.wait_until(lock, deadline, [this] { return ready_; });
    return ready ? Status() : Status(StatusCode::unavailable, "the master does not answer");
  }
  Status register_memory(const MemoryRegion& region) override {
    const std::lock_guard lock(mutex_);
    const bool own = handed_out_.contains(region.bytes.data());
    if (!own && !register_answer.ok() && refusals-- > 0) return register_answer;
    ++registered_;
    return {};
  }
  Status unregister_memory(std::span<std::byte>) override {
    const std::lock_guard lock(mutex_);
    --registered_;
    return {};
  }
  Result<MemoryRegion> allocate_memory(const std::string& name, std::uint64_t bytes) override {
    if (!hands_out_memory) return Status(StatusCode::resource_exhausted, name + ": none left");
    UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    const MemoryRegion region{.bytes = {static_cast<std::byte*>(at), bytes}, .fd = fd.get()};
    const std::lock_guard lock(mutex_);
    handed_out_.emplace(region.bytes.data(), std::move(fd));
    return region;
  }
  void release_memory(std::span<std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(handed_out_.erase(bytes.data()), 1u);
    ::munmap(bytes.data(), bytes.size());
  }
  StoreStats stats() const override { return inner_.stats(); }
  Status close(TimePoint deadline) override {
    EXPECT_EQ(registered(), 0) << "regions outlived their pool";
    return inner_.close(deadline);
  }

  void set_ready(bool ready) {
    const std::lock_guard lock(mutex_);
    ready_ = ready;
    changed_.notify_all();
  }
  int registered() const {
    const std::lock_guard lock(mutex_);
    return registered_;
  }

  // Before the store is given away.
  Status register_answer;
  int refusals = INT_MAX;  // so often it is given
  bool hands_out_memory = true;
  std::uint64_t object_bytes_max = 0;  // 0: that of the store below
  std::atomic<bool> throws = false;    // when it is asked whether it is ready

 private:
  const ClientKind kind_;
  MemoryStore inner_{64u << 20};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = true;                                // guarded by mutex_
  int registered_ = 0;                               // guarded by mutex_
  std::map<const std::byte*, UniqueFd> handed_out_;  // guarded by mutex_
};

struct Doubled {
  std::unique_ptr<ClientDouble> owned;
  ClientDouble& store;

  explicit Doubled(ClientKind kind) : owned(std::make_unique<ClientDouble>(kind)), store(*owned) {}
};

PoolRegistration row_of(Rig& rig) {
  const CacheStats stats = rig.cache().stats();
  EXPECT_EQ(stats.registration.size(), 1u);
  return stats.registration.empty() ? PoolRegistration{} : stats.registration.front();
}

bool wait_for_status(Rig& rig, StorageStatus wanted) {
  const TimePoint deadline = soon();
  while (std::chrono::steady_clock::now() < deadline) {
    if (rig.cache().stats().storage_status == wanted) return true;
    std::this_thread::yield();
  }
  return false;
}

// What L3 is for: what was computed once comes back after device and host have forgotten it.
void expect_storage_serves(Rig& rig) {
  const Tokens prompt = sequence_of(50, 7000);
  rig.run(prompt);
  rig.settle();
  ASSERT_TRUE(rig.cache().flush().ok());
  EXPECT_EQ(rig.run(prompt).served_tokens(Tier::storage), 48u);
  EXPECT_TRUE(rig.cache().check().ok());
}

// L1 and L2 without L3.
void expect_host_serves(Rig& rig) {
  const Tokens prompt = sequence_of(50, 9000);
  rig.run(prompt);
  rig.settle();
  const Explanation second = rig.run(prompt);
  EXPECT_EQ(second.served_tokens(), 48u);
  EXPECT_EQ(second.served_tokens(Tier::storage), 0u);
}

TEST(StorageTier, SharedMemoryIsZeroCopyForBothClients) {
  for (const ClientKind kind : {ClientKind::embedded, ClientKind::standalone}) {
    Doubled doubled(kind);
    Rig rig(small_options(), std::move(doubled.owned));
    EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::ok);
    EXPECT_EQ(row_of(rig).path, RegistrationPath::zero_copy);
    EXPECT_EQ(doubled.store.registered(), 1);
    EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::on);
    expect_storage_serves(rig);
  }
}

TEST(StorageTier, PrivateMemoryIsStagedAndSaysWhatToChange) {
  for (const ClientKind kind : {ClientKind::embedded, ClientKind::standalone}) {
    CacheOptions options = small_options();
    options.host.pool_allocators = {{"kv", "mmap"}};
    Doubled doubled(kind);
    Rig rig(options, std::move(doubled.owned));
    EXPECT_EQ(row_of(rig).path, RegistrationPath::staged);
    EXPECT_EQ(row_of(rig).verdict, kind == ClientKind::embedded
                                       ? RegistrationVerdict::not_shareable
                                       : RegistrationVerdict::outside_store_segment);
    EXPECT_NE(row_of(rig).advice.find("--host-allocator"), std::string::npos);
    expect_storage_serves(rig);
  }
}

TEST(StorageTier, ARequiredPoolThatCannotBeStagedCostsStorageOnly) {
  CacheOptions options = small_options();
  options.host.allocator = "mmap";
  options.storage.staging = false;
  Doubled doubled(ClientKind::standalone);
  Rig rig(options, std::move(doubled.owned));
  EXPECT_EQ(row_of(rig).path, RegistrationPath::off);
  const CacheStats stats = rig.cache().stats();
  EXPECT_EQ(stats.storage_status, StorageStatus::off);
  EXPECT_EQ(stats.storage_backend, "none");
  EXPECT_FALSE(stats.storage_detail.empty());
  expect_host_serves(rig);
}

TEST(StorageTier, ARefusedRegistrationIsStaged) {
  Doubled doubled(ClientKind::embedded);
  doubled.store.register_answer = Status(StatusCode::unavailable, "register_buffer answered -1");
  Rig rig(small_options(), std::move(doubled.owned));
  EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::register_failed);
  EXPECT_EQ(row_of(rig).path, RegistrationPath::staged);
  EXPECT_NE(row_of(rig).reason.find("-1"), std::string::npos);
  EXPECT_EQ(doubled.store.registered(), 0);
  expect_storage_serves(rig);
}

TEST(StorageTier, MemoryThatWasRefusedOnceIsTriedAgain) {
  Doubled doubled(ClientKind::standalone);
  doubled.store.register_answer = Status(StatusCode::unavailable, "put answered -800");
  doubled.store.refusals = 2;
  Rig rig(small_options(), std::move(doubled.owned));
  EXPECT_EQ(row_of(rig).path, RegistrationPath::staged);
  const TimePoint deadline = soon();
  while (row_of(rig).path != RegistrationPath::zero_copy &&
         std::chrono::steady_clock::now() < deadline) {
    expect_storage_serves(rig);
  }
  EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::ok);
  expect_storage_serves(rig);
}

TEST(StorageTier, AnEmptyPoolWhoseAdoptionFailsMovesToStoreMemory) {
  for (const StatusCode code : {StatusCode::data_loss, StatusCode::resource_exhausted}) {
    Doubled doubled(ClientKind::standalone);
    doubled.store.register_answer = Status(code, "the self-test failed");
    Rig rig(small_options(), std::move(doubled.owned));
    EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::adoption_failed);
    EXPECT_EQ(row_of(rig).path, RegistrationPath::zero_copy);
    EXPECT_EQ(row_of(rig).allocator, AllocatorKind::store);
    expect_storage_serves(rig);
  }
}

TEST(StorageTier, AFailedAdoptionWithoutStoreMemoryIsStaged) {
  Doubled doubled(ClientKind::standalone);
  doubled.store.register_answer = Status(StatusCode::data_loss, "the self-test failed");
  doubled.store.hands_out_memory = false;
  Rig rig(small_options(), std::move(doubled.owned));
  EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::adoption_failed);
  EXPECT_EQ(row_of(rig).path, RegistrationPath::staged);
  EXPECT_EQ(row_of(rig).allocator, AllocatorKind::shm);
  expect_storage_serves(rig);
}

TEST(StorageTier, StoreMemoryCanBeChosen) {
  for (const bool there : {true, false}) {
    CacheOptions options = small_options();
    options.host.allocator = "store";
    Doubled doubled(ClientKind::standalone);
    doubled.store.hands_out_memory = there;
    Rig rig(options, std::move(doubled.owned));
    EXPECT_EQ(row_of(rig).path, RegistrationPath::zero_copy);
    EXPECT_EQ(row_of(rig).allocator, there ? AllocatorKind::store : AllocatorKind::shm);
    expect_storage_serves(rig);
  }
}

TEST(StorageTier, AStoreThatIsDownAtStartIsAttachedWhenItIsBack) {
  for (const ClientKind kind : {ClientKind::embedded, ClientKind::standalone}) {
    Doubled doubled(kind);
    doubled.store.set_ready(false);
    Rig rig(small_options(), std::move(doubled.owned));
    EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::waiting);
    EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::client_down);
    EXPECT_EQ(row_of(rig).path, RegistrationPath::off);
    expect_host_serves(rig);
    const Explanation without = rig.run(sequence_of(50, 100));
    EXPECT_EQ(without.missed.front().reason, MissReason::storage_off);
    rig.settle();
    ASSERT_TRUE(rig.cache().flush().ok());
    EXPECT_EQ(rig.run(sequence_of(50, 100)).missed.front().reason, MissReason::storage_off)
        << "evicted, but nobody has asked storage";
    doubled.store.set_ready(true);
    ASSERT_TRUE(wait_for_status(rig, StorageStatus::on));
    EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::ok);
    expect_storage_serves(rig);
  }
}

TEST(StorageTier, AStoreWhoseCallsFailIsSaidToFail) {
  Doubled doubled(ClientKind::embedded);
  Rig rig(small_options(), std::move(doubled.owned));
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::on);
  doubled.store.set_ready(false);
  const CacheStats stats = rig.cache().stats();
  EXPECT_EQ(stats.storage_status, StorageStatus::failing);
  EXPECT_EQ(stats.storage_detail, "the master has gone");
  EXPECT_EQ(stats.storage_backend, "double");
  doubled.store.set_ready(true);
  EXPECT_EQ(rig.cache().stats().storage_status, StorageStatus::on);
}

// K15 B211: what no put would take is said at the start, with both numbers; not by every put.
TEST(StorageTier, K15_B211_PagesThatAreLargerThanAnObjectAreRefusedAtStart) {
  const std::uint64_t bytes = page_layout(small_model().anchor()).object_bytes();
  for (const ClientKind kind : {ClientKind::local, ClientKind::embedded, ClientKind::standalone}) {
    for (const std::uint64_t limit : {bytes - 1, bytes}) {
      SCOPED_TRACE(testing::Message() << to_string(kind) << " " << limit);
      Doubled doubled(kind);
      doubled.store.object_bytes_max = limit;
      Rig rig(small_options(), std::move(doubled.owned));
      const CacheStats stats = rig.cache().stats();
      if (limit == bytes) {
        EXPECT_EQ(stats.storage_status, StorageStatus::on);
        expect_storage_serves(rig);
        continue;
      }
      EXPECT_EQ(stats.storage_status, StorageStatus::off);
      for (const std::uint64_t number : {bytes, limit}) {
        EXPECT_NE(stats.storage_detail.find(std::to_string(number)), std::string::npos)
            << stats.storage_detail;
      }
      EXPECT_NE(stats.storage_detail.find("--page-size"), std::string::npos);
      expect_host_serves(rig);
      EXPECT_EQ(rig.cache().stats().storage.puts, 0u);
      EXPECT_TRUE(rig.cache()
                      .attach_storage(std::make_unique<MemoryStore>(64u << 20),
                                      small_options().policy, soon())
                      .ok());
      expect_storage_serves(rig);
    }
  }
}

TEST(StorageTier, AFailedAdoptionOfAPoolInUseIsStaged) {
  Doubled doubled(ClientKind::standalone);
  doubled.store.register_answer = Status(StatusCode::data_loss, "the self-test failed");
  doubled.store.set_ready(false);
  Rig rig(small_options(), std::move(doubled.owned));
  expect_host_serves(rig);
  doubled.store.set_ready(true);
  ASSERT_TRUE(wait_for_status(rig, StorageStatus::on));
  EXPECT_EQ(row_of(rig).verdict, RegistrationVerdict::adoption_failed);
  EXPECT_EQ(row_of(rig).path, RegistrationPath::staged);
  expect_host_serves(rig);
  expect_storage_serves(rig);
}

TEST(StorageTier, AStoreThatThrowsWhileItIsWaitedForCostsStorageOnly) {
  Doubled doubled(ClientKind::embedded);
  doubled.store.set_ready(false);
  ClientDouble& store = doubled.store;
  Rig rig(small_options(), std::move(doubled.owned));
  store.throws = true;
  ASSERT_TRUE(wait_for_status(rig, StorageStatus::off));
  EXPECT_FALSE(rig.cache().stats().storage_detail.empty());
  expect_host_serves(rig);
}

TEST(StorageTier, ATierThatWaitsForItsStoreClosesAtOnce) {
  Doubled doubled(ClientKind::embedded);
  doubled.store.set_ready(false);
  Rig rig(small_options(), std::move(doubled.owned));
  const TimePoint before = std::chrono::steady_clock::now();
  EXPECT_TRUE(rig.cache().close(soon()).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

}  // namespace
}  // namespace hitide
