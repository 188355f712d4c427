#include "tests/support/fault_store.h"

#include <algorithm>

namespace hitide {
namespace {

std::string_view key_of(std::string_view key) { return key; }
std::string_view key_of(const GetItem& item) { return item.key; }
std::string_view key_of(const PutItem& item) { return item.key; }

template <typename Item>
std::vector<std::string> keys_of(std::span<const Item> items) {
  std::vector<std::string> keys;
  for (const Item& item : items) keys.emplace_back(key_of(item));
  return keys;
}

bool is_none(const StoreFault& fault) {
  return fault.kind == StoreFault::Kind::error && fault.code == StatusCode::ok;
}

void flip_bit(const GetItem& item, std::uint64_t bit) {
  std::uint64_t total = 0;
  for (const auto buffer : item.buffers) total += buffer.size();
  if (total == 0) return;
  std::uint64_t at = bit / 8 % total;
  for (const auto buffer : item.buffers) {
    if (at < buffer.size()) {
      buffer[at] ^= std::byte{1} << (bit % 8);
      return;
    }
    at -= buffer.size();
  }
}

}  // namespace

FaultStore::FaultStore(std::unique_ptr<ObjectStore> inner) : inner_(std::move(inner)) {}

FaultStore::~FaultStore() {
  for (const StoreCall call :
       {StoreCall::exists, StoreCall::get, StoreCall::put, StoreCall::remove}) {
    release(call);
  }
}

void FaultStore::add(StoreFault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

void FaultStore::clear_faults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

void FaultStore::hold(StoreCall call, bool heed_deadline) {
  const std::lock_guard lock(mutex_);
  latch(call).held = true;
  latch(call).heed_deadline = heed_deadline;
}

void FaultStore::release(StoreCall call) {
  const std::lock_guard lock(mutex_);
  latch(call).held = false;
  changed_.notify_all();
}

bool FaultStore::wait_until_held(StoreCall call, std::uint64_t count, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return latch(call).waiting >= count; });
}

void FaultStore::set_buffers_busy_until(TimePoint time) {
  const std::lock_guard lock(mutex_);
  busy_until_ = time;
}

void FaultStore::set_batch_items_max(std::uint32_t items) {
  const std::lock_guard lock(mutex_);
  batch_items_max_ = items;
}

std::vector<FaultStore::Entry> FaultStore::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

void FaultStore::clear_log() {
  const std::lock_guard lock(mutex_);
  log_.clear();
}

std::uint64_t FaultStore::registrations() const {
  const std::lock_guard lock(mutex_);
  return registrations_;
}

bool FaultStore::arrive(StoreCall call, std::vector<std::string> keys, const CallOptions& options) {
  std::unique_lock lock(mutex_);
  log_.push_back({.call = call, .keys = std::move(keys)});
  Latch& at = latch(call);
  if (!at.held) return true;
  ++at.waiting;
  changed_.notify_all();
  const auto open = [&] { return !at.held; };
  bool passed = true;
  if (at.heed_deadline && options.deadline != kNoDeadline) {
    passed = changed_.wait_until(lock, options.deadline, open);
  } else {
    changed_.wait(lock, open);
  }
  --at.waiting;
  return passed;
}

StoreFault FaultStore::take_fault(StoreCall call, std::string_view key) {
  const std::lock_guard lock(mutex_);
  for (StoreFault& fault : faults_) {
    if (fault.call != call || fault.times == 0) continue;
    if (key.find(fault.key_part) == std::string_view::npos) continue;
    if (fault.skip > 0) {
      --fault.skip;
      continue;
    }
    --fault.times;
    return fault;
  }
  return {.code = StatusCode::ok};
}

template <typename Item, typename Pass, typename Spoil>
CallOutcome FaultStore::carry_out(StoreCall call, std::span<const Item> items,
                                  std::span<ItemResult> out, const CallOptions& options,
                                  const Pass& pass, const Spoil& spoil) {
  CallOutcome outcome;
  if (!arrive(call, keys_of(items), options)) {
    for (ItemResult& result : out) result = {.code = StatusCode::deadline_exceeded};
    outcome.status = Status(StatusCode::deadline_exceeded, "held by the test");
    return outcome;
  }
  std::vector<Item> passed;
  std::vector<std::size_t> places;
  std::vector<StoreFault> faults;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const StoreFault fault = take_fault(call, key_of(items[i]));
    if (fault.kind == StoreFault::Kind::unanswered) continue;
    if (fault.kind == StoreFault::Kind::error && !is_none(fault)) {
      out[i] = {.code = fault.code};
      continue;
    }
    if (fault.kind == StoreFault::Kind::lost) {
      const std::string_view key = key_of(items[i]);
      ItemResult ignored;
      inner_->remove(std::span(&key, 1), std::span(&ignored, 1), {}).status.ignore();
    }
    passed.push_back(items[i]);
    places.push_back(i);
    faults.push_back(fault);
  }
  std::vector<ItemResult> results(passed.size());
  outcome = pass(std::span<const Item>(passed), std::span<ItemResult>(results));
  for (std::size_t i = 0; i < passed.size(); ++i) {
    if (!is_none(faults[i]) && results[i].code == StatusCode::ok) {
      spoil(passed[i], faults[i], results[i]);
    }
    out[places[i]] = results[i];
  }
  const std::lock_guard lock(mutex_);
  outcome.buffers_busy_until = std::max(outcome.buffers_busy_until, busy_until_);
  return outcome;
}

StoreCapabilities FaultStore::capabilities() const {
  StoreCapabilities capabilities = inner_->capabilities();
  const std::lock_guard lock(mutex_);
  if (batch_items_max_ > 0) capabilities.batch_items_max = batch_items_max_;
  return capabilities;
}

CallOutcome FaultStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                               const CallOptions& options) {
  return carry_out(
      StoreCall::exists, keys, out, options,
      [&](auto items, auto results) { return inner_->exists(items, results, options); },
      [](std::string_view, const StoreFault&, ItemResult&) {});
}

CallOutcome FaultStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                            const CallOptions& options) {
  const auto spoil = [](const GetItem& item, const StoreFault& fault, ItemResult& result) {
    if (fault.kind == StoreFault::Kind::flipped_bit) flip_bit(item, fault.bit);
    if (fault.kind == StoreFault::Kind::short_bytes) {
      for (auto buffer = item.buffers.rbegin(); buffer != item.buffers.rend(); ++buffer) {
        if (buffer->empty()) continue;
        buffer->back() = ~buffer->back();
        break;
      }
      --result.bytes;
    }
  };
  return carry_out(
      StoreCall::get, items, out, options,
      [&](auto some, auto results) { return inner_->get(some, results, options); }, spoil);
}

CallOutcome FaultStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                            const CallOptions& options) {
  return carry_out(
      StoreCall::put, items, out, options,
      [&](auto some, auto results) { return inner_->put(some, results, options); },
      [](const PutItem&, const StoreFault&, ItemResult&) {});
}

CallOutcome FaultStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                               const CallOptions& options) {
  return carry_out(
      StoreCall::remove, keys, out, options,
      [&](auto some, auto results) { return inner_->remove(some, results, options); },
      [](std::string_view, const StoreFault&, ItemResult&) {});
}

Status FaultStore::register_memory(const MemoryRegion& region) {
  HITIDE_RETURN_IF_ERROR(inner_->register_memory(region));
  const std::lock_guard lock(mutex_);
  ++registrations_;
  return {};
}

Status FaultStore::unregister_memory(std::span<std::byte> bytes) {
  HITIDE_RETURN_IF_ERROR(inner_->unregister_memory(bytes));
  const std::lock_guard lock(mutex_);
  --registrations_;
  return {};
}

StoreStats FaultStore::stats() const { return inner_->stats(); }

Status FaultStore::close(TimePoint deadline) { return inner_->close(deadline); }

}  // namespace hitide
