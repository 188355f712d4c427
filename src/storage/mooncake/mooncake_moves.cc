// The half of MooncakeStore that moves bytes: get and put.
#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "base/mutex.h"
#include "storage/mooncake/codes.h"
#include "storage/mooncake/mooncake_store.h"
#include "storage/mooncake/store_internal.h"

namespace hitide {
namespace {

// A daemon drops a client that is gone, and with it the calls that it made, after ten seconds.
constexpr Duration kDaemonGoesOn = std::chrono::seconds(12);

// True, and the buffers as one span, when each begins where the one before it ends.
template <typename Buffer>
bool adjacent(std::span<const Buffer> buffers, std::span<const std::byte>& whole) {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers) {
    if (buffer.empty()) continue;
    if (begin == nullptr) {
      begin = buffer.data();
    } else if (buffer.data() != begin + bytes) {
      return false;
    }
    bytes += buffer.size();
  }
  whole = {begin, bytes};
  return true;
}

// Before a put and after a get, between an item's buffers and bounce memory.
void gather(const PutItem& item, std::span<std::byte> to) {
  for (const std::span<const std::byte> buffer : item.buffers) {
    std::copy(buffer.begin(), buffer.end(), to.begin());
    to = to.subspan(buffer.size());
  }
}
void gather(const GetItem&, std::span<std::byte>) {}
void scatter(const GetItem& item, std::span<const std::byte> from) {
  for (const std::span<std::byte> buffer : item.buffers) {
    std::copy_n(from.begin(), buffer.size(), buffer.begin());
    from = from.subspan(buffer.size());
  }
}
void scatter(const PutItem&, std::span<const std::byte>) {}

std::string_view group_of(const PutItem& item) { return item.group; }
std::string_view group_of(const GetItem&) { return {}; }

ItemResult result_of_put(std::int64_t code, std::uint64_t bytes) {
  if (code < 0) return {.code = status_of_code(code)};
  if (code > 0) return {.code = StatusCode::already_exists};
  return {.code = StatusCode::ok, .bytes = bytes};
}

ItemResult result_of_get(std::int64_t code, std::uint64_t bytes) {
  if (code < 0) return {.code = status_of_code(code)};
  if (static_cast<std::uint64_t>(code) != bytes) return {.code = StatusCode::data_loss};
  return {.code = StatusCode::ok, .bytes = bytes};
}

}  // namespace

struct MooncakeStore::Work {
  std::size_t item = 0;
  std::string key;    // as the store has it
  std::string group;  // likewise; empty: none
  std::uint64_t bytes = 0;
  bool direct = false;                   // the agent sees the buffers themselves
  std::uint32_t region = kBounceRegion;  // where they are; else offset counts from the batch's
  std::uint64_t offset = 0;              // piece of bounce memory
};

template <typename Item>
struct MooncakeStore::Call {
  AgentCall kind;
  std::span<const Item> items;
  std::span<ItemResult> out;
  const CallOptions& options;
  AgentSession& session;
};

// Answers the items that cannot be sent; `empty` gets those of no bytes.
template <typename Item>
std::vector<MooncakeStore::Work> MooncakeStore::plan(std::span<const Item> items,
                                                     std::span<ItemResult> out,
                                                     std::vector<std::size_t>& empty) const {
  constexpr bool kIsPut = std::is_same_v<Item, PutItem>;
  std::vector<Work> works;
  works.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    const std::uint64_t bytes = total_bytes(item.buffers);
    out[i] = {.code = StatusCode::invalid_argument};
    const std::string group = stored_group(group_of(item));
    if (!usable_key(item.key, kMooncakeKeyBytesMax) || group.size() > kFrameKeyBytesMax) continue;
    if (bytes == 0) {
      empty.push_back(i);
      continue;
    }
    if (bytes > options_.object_bytes_max) {
      // No get finds such an object: no put takes one.
      if (!kIsPut) empty.push_back(i);
      continue;
    }
    Work work{.item = i, .key = stored_key(item.key), .group = group, .bytes = bytes};
    std::span<const std::byte> whole;
    RegionTable::Place place;
    if (adjacent(item.buffers, whole) && regions_.find(whole, place)) {
      work.direct = true;
      work.region = place.region;
      work.offset = place.offset;
    }
    works.push_back(std::move(work));
  }
  return works;
}

// Small objects go in one call however many they are, up to what a frame takes: it is calls that
// make them dear.
std::size_t MooncakeStore::batch_end(std::span<const Work> works, std::size_t begin) const {
  const std::uint64_t staged_max = bounce_->bytes().size() / 4;
  std::uint64_t bytes = 0;
  std::uint64_t staged = 0;
  std::size_t end = begin;
  while (end < works.size() && end - begin < kSmallMoveItemsMax) {
    const Work& next = works[end];
    const std::uint64_t more = next.direct ? 0 : next.bytes;
    if (end > begin && (bytes + next.bytes > kMoveBytesMax || staged + more > staged_max)) break;
    if (end - begin >= kMoveItemsMax && bytes + next.bytes > kSmallMoveBytesMax) break;
    bytes += next.bytes;
    staged += more;
    ++end;
  }
  return end;
}

// One call of the client. Items that are not direct lie in bounce memory from `staged_at` on.
template <typename Item>
Status MooncakeStore::exchange(const Call<Item>& call, std::span<const Work> batch,
                               std::uint64_t staged_at) {
  constexpr bool kIsPut = std::is_same_v<Item, PutItem>;
  std::vector<FrameItem> frame;
  frame.reserve(batch.size());
  std::uint64_t bytes = 0;
  for (const Work& work : batch) {
    frame.push_back({.key = work.key,
                     .group = work.group,
                     .region = work.region,
                     .offset = work.direct ? work.offset : staged_at + work.offset,
                     .bytes = work.bytes});
    bytes += work.bytes;
  }
  const FrameBytes body = encode_items(frame);
  HITIDE_ASSIGN_OR_RETURN(const FrameBytes answer,
                          call.session.call(kIsPut ? AgentLane::write : AgentLane::read,
                                            {.call = call.kind, .body = body},
                                            call.options.deadline, limit_for(bytes)));
  HITIDE_ASSIGN_OR_RETURN(const auto codes, decode_results(answer, batch.size()));
  {
    const auto direct =
        std::count_if(batch.begin(), batch.end(), [](const Work& work) { return work.direct; });
    const MutexLock lock(stats_mutex_);
    counts_.zero_copy_items += static_cast<std::uint64_t>(direct);
    counts_.staged_items += batch.size() - static_cast<std::uint64_t>(direct);
    ++(kIsPut ? counts_.put_calls : counts_.get_calls);
  }
  Status status;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    call.out[batch[i].item] =
        kIsPut ? result_of_put(codes[i], batch[i].bytes) : result_of_get(codes[i], batch[i].bytes);
    if (status.ok() && means_store_down(codes[i])) status = store_down_status(call.kind, codes[i]);
  }
  return status;
}

template <typename Item>
Status MooncakeStore::move_batch(const Call<Item>& call, std::span<Work> batch) {
  for (const Work& work : batch) call.out[work.item] = {.code = StatusCode::unavailable};
  std::uint64_t staged = 0;
  for (Work& work : batch) {
    if (work.direct) continue;
    work.offset = staged;
    staged += work.bytes;
  }
  if (staged == 0) return exchange(call, batch, 0);
  BounceMemory::Piece piece = bounce_->take(staged, call.options.deadline);
  if (!piece) return passed_deadline(call.kind, batch.size());
  for (const Work& work : batch) {
    if (!work.direct) {
      gather(call.items[work.item], piece.bytes().subspan(work.offset, work.bytes));
    }
  }
  const Status status = exchange(call, batch, piece.offset());
  piece.keep_until(busy_until(call.session, status));
  for (const Work& work : batch) {
    if (!work.direct && call.out[work.item].code == StatusCode::ok) {
      scatter(call.items[work.item], piece.bytes().subspan(work.offset, work.bytes));
    }
  }
  return status;
}

template <typename Item>
Status MooncakeStore::move_works(const Call<Item>& call, std::span<Work> works) {
  Status status;
  std::size_t begin = 0;
  while (begin < works.size() && status.ok()) {
    if (is_past(call.options.deadline)) {
      status = passed_deadline(call.kind, works.size() - begin);
      break;
    }
    const std::size_t end = batch_end(works, begin);
    const auto batch = works.subspan(begin, end - begin);
    status = move_batch(call, batch);
    for (const Work& work : batch) {
      ItemResult& result = call.out[work.item];
      if (!status.ok() && result.code == StatusCode::unavailable) {
        result.code = code_for_rest(status);
      }
    }
    begin = end;
  }
  for (const Work& work : works.subspan(begin)) {
    call.out[work.item] = {.code = code_for_rest(status)};
  }
  return status;
}

template <typename Item>
CallOutcome MooncakeStore::move(AgentCall kind, std::span<const Item> items,
                                std::span<ItemResult> out, const CallOptions& options) {
  const CallGate::Pass pass(gate_);
  if (!pass) return refuse_call(out, StatusCode::failed_precondition, to_string(kind));
  if (items.empty()) return {};
  if (is_past(options.deadline)) {
    return refuse_call(out, StatusCode::deadline_exceeded, to_string(kind));
  }
  // Before the plan: what this agent has mapped is found then.
  const Result<std::shared_ptr<AgentSession>> session = agent_->session();
  std::vector<std::size_t> empty;
  std::vector<Work> works = plan(items, out, empty);
  const auto all_fail = [&](const Status& status) {
    for (const Work& work : works) out[work.item] = {.code = code_for_rest(status)};
    count_moves(kind, out);
    return CallOutcome{.status = status.with_context(to_string(kind))};
  };
  if (!session.ok()) return all_fail(session.status());
  std::vector<std::string> names;
  names.reserve(works.size());
  for (const Work& work : works) names.push_back(work.key);
  const KeyGuard::Hold hold = keys_.take(
      std::move(names), kind == AgentCall::get ? KeyGuard::Use::shared : KeyGuard::Use::exclusive,
      options.deadline);
  if (!hold) return all_fail(passed_deadline(kind, works.size()));
  const Call<Item> call{kind, items, out, options, **session};
  Status status = move_works(call, works);
  if (kind == AgentCall::get && !empty.empty()) {
    const Status asked = judge_lengths(call, empty);
    if (status.ok()) status = asked;
  }
  count_moves(kind, out);
  // Staged bytes are in bounce memory, which has its own quarantine.
  const bool seen = std::any_of(works.begin(), works.end(), [](const Work& w) { return w.direct; });
  const TimePoint busy = seen ? busy_until(**session, status) : TimePoint::min();
  return {.status = std::move(status), .buffers_busy_until = busy};
}

// Gets of a length that no object has: data_loss where there is one, else not_found.
template <typename Item>
Status MooncakeStore::judge_lengths(const Call<Item>& call, std::span<const std::size_t> indices) {
  std::vector<std::string> names;
  std::vector<ItemResult*> results;
  for (const std::size_t i : indices) {
    names.push_back(stored_key(call.items[i].key));
    results.push_back(&call.out[i]);
  }
  const Status status = ask_batches(call.session, AgentCall::exists, names, results, call.options);
  for (ItemResult* result : results) {
    if (result->code == StatusCode::ok) result->code = StatusCode::data_loss;
  }
  return status;
}

TimePoint MooncakeStore::busy_until(const AgentSession& session, const Status& status) const {
  const bool daemon_may_go_on = options_.standalone_storage && !status.ok() && !session.alive();
  return daemon_may_go_on ? SystemClock::instance().now() + kDaemonGoesOn : TimePoint::min();
}

void MooncakeStore::count_moves(AgentCall kind, std::span<const ItemResult> out) {
  const MutexLock lock(stats_mutex_);
  for (const ItemResult& result : out) {
    if (result.code == StatusCode::invalid_argument ||
        result.code == StatusCode::deadline_exceeded) {
      continue;
    }
    const bool got = result.code == StatusCode::ok;
    const bool missed = result.code == StatusCode::not_found;
    const bool existed = result.code == StatusCode::already_exists;
    if (!got && !missed && !existed) ++stats_.failures;
    if (kind == AgentCall::get) {
      ++stats_.gets;
      stats_.get_misses += missed ? 1 : 0;
      stats_.get_bytes += result.bytes;
    } else {
      ++stats_.puts;
      stats_.puts_existing += existed ? 1 : 0;
      stats_.put_bytes += result.bytes;
    }
  }
}

CallOutcome MooncakeStore::get(std::span<const GetItem> items, std::span<ItemResult> out,
                               const CallOptions& options) {
  return move(AgentCall::get, items, out, options);
}

CallOutcome MooncakeStore::put(std::span<const PutItem> items, std::span<ItemResult> out,
                               const CallOptions& options) {
  return move(options.keys_absent ? AgentCall::put_absent : AgentCall::put, items, out, options);
}

}  // namespace hitide
