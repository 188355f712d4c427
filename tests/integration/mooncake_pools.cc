#include "tests/integration/mooncake_pools.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "runtime/pool_memory.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

TimePoint soon() { return SystemClock::instance().now() + 60s; }

}  // namespace

MooncakePools::MooncakePools(const MooncakeOptions& options, bool staging) {
  set_log_sink([this](LogLevel level, std::string_view line) {
    const bool ours = line.find("pool_registration") != std::string_view::npos ||
                      line.find("storage_off") != std::string_view::npos;
    if (level < LogLevel::warning || !ours) return;
    const std::lock_guard lock(mutex_);
    warnings_.emplace_back(line);
  });
  auto store = MooncakeStore::open(options);
  if (!store.ok()) {
    ADD_FAILURE() << store.status().to_string();
    return;
  }
  store_ = store->get();
  opened_ = store_client(std::move(store).value(), soon());
  EXPECT_TRUE(opened_.status.ok()) << opened_.status.to_string();
  real_ = std::make_unique<StoreRegistrar>(*store_);
  registrar_ = std::make_unique<RegistrarDouble>(&*real_);
  registry_ =
      std::make_unique<PoolRegistry>(*registrar_, RegistrationRules{.staging_allowed = staging});
}

MooncakePools::~MooncakePools() {
  registry_.reset();
  memory_.clear();
  opened_.store.reset();
  set_log_sink({});
}

Result<PoolMemory> MooncakePools::build(const std::string& name, AllocatorKind kind) {
  Memory& memory = memory_[name];
  HITIDE_ASSIGN_OR_RETURN(auto allocator, allocator_of(kind, store_));
  const std::uint64_t segment = memory.shape.slots_per_segment * kSlotBytes;
  const std::uint32_t slots = memory.shape.segments * memory.shape.slots_per_segment;
  HITIDE_ASSIGN_OR_RETURN(memory.bytes, HostMemory::create({.name = name,
                                                            .stride_bytes = kSlotBytes,
                                                            .slot_count = slots,
                                                            .segment_bytes_max = segment},
                                                           std::move(allocator)));
  PoolMemory told;
  told.pool = name;
  told.required = memory.shape.required;
  told.allocator = memory.bytes->allocator();
  for (const HostSegment& one : memory.bytes->segments()) {
    told.regions.push_back({.bytes = one.bytes, .fd = one.fd.get()});
  }
  return told;
}

PoolToRegister MooncakePools::add(const std::string& name, const Shape& shape) {
  memory_[name].shape = shape;
  Result<PoolMemory> memory = build(name, shape.allocator);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return {.memory = std::move(memory).value_or({}),
          .move_to_store_memory = [this, name] { return build(name, AllocatorKind::store); }};
}

PoolToRegister MooncakePools::logical(const std::string& name) {
  PoolToRegister pool;
  pool.memory.pool = name;
  pool.memory.logical = true;
  return pool;
}

std::vector<PoolRegistration> MooncakePools::attach(const std::vector<PoolToRegister>& pools) {
  return registry_->attach(pools, client());
}

std::vector<PoolRegistration> MooncakePools::attach(const std::vector<PoolToRegister>& pools,
                                                    const ClientCapabilities& client) {
  return registry_->attach(pools, client);
}

void MooncakePools::write(const std::string& pool, const std::string& salt) {
  HostMemory& memory = *memory_.at(pool).bytes;
  for (std::uint32_t i = 0; i < memory.slot_count(); ++i) {
    const auto bytes = bytes_of(salt + std::to_string(i), kSlotBytes);
    std::copy(bytes.begin(), bytes.end(), memory.slot(i).begin());
  }
}

void MooncakePools::expect_holds(const std::string& pool, const std::string& salt) {
  HostMemory& memory = *memory_.at(pool).bytes;
  for (std::uint32_t i = 0; i < memory.slot_count(); ++i) {
    const auto bytes = bytes_of(salt + std::to_string(i), kSlotBytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.slot(i).begin()))
        << pool << ", slot " << i;
  }
}

void MooncakePools::expect_travels(const std::string& pool, RegistrationPath path) {
  const std::string salt = pool + "/" + std::to_string(::getpid()) + "/" +
                           std::to_string(moves_++) + "/" +
                           std::to_string(SystemClock::instance().now().time_since_epoch().count());
  HostMemory& memory = *memory_.at(pool).bytes;
  write(pool, salt);
  std::vector<std::string> keys;
  std::vector<std::span<std::byte>> slots;
  std::vector<std::span<const std::byte>> sources;
  for (std::uint32_t i = 0; i < memory.slot_count(); ++i) {
    keys.push_back(salt + std::to_string(i));
    slots.push_back(memory.slot(i));
    sources.emplace_back(memory.slot(i));
  }
  std::vector<PutItem> puts;
  std::vector<GetItem> gets;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    puts.push_back({.key = keys[i], .buffers = std::span(&sources[i], 1)});
    gets.push_back({.key = keys[i], .buffers = std::span(&slots[i], 1)});
  }
  const MooncakeCounts before = store_->counts();
  std::vector<ItemResult> results(keys.size());
  const auto all_ok = [&](const char* what) {
    for (const ItemResult& result : results) {
      EXPECT_EQ(to_string(result.code), to_string(StatusCode::ok)) << what << " " << pool;
    }
  };
  EXPECT_TRUE(store_->put(puts, results, {}).status.ok());
  all_ok("put");
  write(pool, "other bytes");
  EXPECT_TRUE(store_->get(gets, results, {}).status.ok());
  all_ok("get");
  expect_holds(pool, salt);
  const MooncakeCounts after = store_->counts();
  const bool copied = path != RegistrationPath::zero_copy;
  EXPECT_EQ(after.zero_copy_items - before.zero_copy_items, copied ? 0u : 2 * keys.size()) << pool;
  EXPECT_EQ(after.staged_items - before.staged_items, copied ? 2 * keys.size() : 0u) << pool;
  const std::vector<std::string_view> names(keys.begin(), keys.end());
  store_->remove(names, results, {}).status.ignore();
}

void MooncakePools::expect_host_works(const std::string& pool) {
  write(pool, "host");
  expect_holds(pool, "host");
}

std::span<std::byte> MooncakePools::segment(const std::string& pool, std::size_t index) const {
  return memory_.at(pool).bytes->segments()[index].bytes;
}

std::vector<std::string> MooncakePools::warnings() const {
  const std::lock_guard lock(mutex_);
  return warnings_;
}

void MooncakePools::forget_warnings() {
  const std::lock_guard lock(mutex_);
  warnings_.clear();
}

void expect_row(const PoolRegistration& row, RegistrationVerdict verdict, RegistrationPath path,
                const std::vector<std::string>& named) {
  EXPECT_EQ(to_string(row.verdict), to_string(verdict)) << row.pool << ": " << row.reason;
  EXPECT_EQ(to_string(row.path), to_string(path)) << row.pool << ": " << row.reason;
  for (const std::string& part : named) {
    EXPECT_NE((row.reason + " | " + row.advice).find(part), std::string::npos)
        << part << " in " << row.reason << " | " << row.advice;
  }
}

}  // namespace hitide
