#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "device/emulated_impl.h"

namespace hitide {

// ---- launching ----------------------------------------------------------------------------------

// Commands take effect in order: those that name the same page, on the other stream too.
void EmulatedDevice::Impl::behind_copies(std::uint32_t stream, const CopyBatch& batch) {
  Launches& own = launches_[stream];
  for (const PageCopy& copy : batch.pages) {
    const Worker* const last = pages_.last_copy(copy.page);
    if (last == nullptr || last->stream == stream) continue;
    own.waits.push_back(last->tick);
    own.known_done.join(*last->ordered);
    own.known_done.add(last->stream, last->tick);
  }
}

// Until the completion the host bytes are the device's: what may be written is poison until then,
// what is read must not change.
void EmulatedDevice::Impl::use_host_bytes(Copy& copy) {
  const bool writes = copy.batch.direction == CopyDirection::to_host;
  for (const PageCopy& page : copy.batch.pages) {
    copy.sums.push_back(writes ? 0 : checksum64(page.payload));
    if (page.payload.empty()) continue;
    const std::byte* const begin = page.payload.data();
    const std::byte* const end = begin + page.payload.size();
    auto next = host_uses_.lower_bound(begin);
    if (next != host_uses_.begin() && std::prev(next)->second.end > begin) --next;
    for (; next != host_uses_.end() && next->first < end; ++next) {
      if (!writes && !next->second.writes) continue;
      log_.add(DeviceFaultKind::host_bytes, page.page, copy.who.op_id,
               fmt::format("{} of {} has host bytes that copy {} uses until its completion",
                           *copy.who.name, page_name(page.page), next->second.op_id));
    }
    host_uses_.insert_or_assign(begin, HostUse{end, copy.who.tick, copy.who.op_id, writes});
    if (writes) std::ranges::fill(page.payload, kPoison);
  }
}

Duration EmulatedDevice::Impl::latency_of(const CopyBatch& batch) {
  std::deque<Duration>& script = latencies_[static_cast<std::size_t>(batch.direction)];
  if (!script.empty()) {
    const Duration latency = script.front();
    script.pop_front();
    return latency;
  }
  return options_.latency +
         options_.latency_per_page * static_cast<Duration::rep>(batch.pages.size()) +
         streams_.jitter(options_.jitter);
}

void EmulatedDevice::Impl::submit(CopyBatch batch) {
  {
    const MutexLock lock(mutex_);
    if (!attached("a copy")) return;
    const bool to_host = batch.direction == CopyDirection::to_host;
    const std::uint32_t stream =
        to_host || by_sequence() ? kToHostStream.index : kToDeviceStream.index;
    if (!by_sequence()) behind_copies(stream, batch);
    auto copy = std::make_shared<Copy>();
    copy->who = worker(stream, batch.op_id,
                       fmt::format("copy {} to {}", batch.op_id, to_host ? "host" : "the device"));
    for (const PageCopy& page : batch.pages) {
      // With sequences the one stream orders everything.
      copy->ordered.push_back(by_sequence() ||
                              (to_host ? pages_.order_read(page.page, copy->who)
                                       : pages_.order_write(page.page, copy->who)));
    }
    EmulatedWork work;
    work.duration = latency_of(batch);
    copy->batch = std::move(batch);
    use_host_bytes(*copy);
    work.start = [this, copy]() HITIDE_REQUIRES(mutex_) { begin(*copy); };
    work.finish = [this, copy]() HITIDE_REQUIRES(mutex_) { end(*copy); };
    work.cancel = [this, copy]() HITIDE_REQUIRES(mutex_) {
      copy->codes.assign(copy->batch.pages.size(), StatusCode::cancelled);
      answer(*copy);
    };
    launch(stream, copy->who, std::move(work));
  }
  after_launch();
}

void EmulatedDevice::Impl::submit(SequenceCommand command) {
  {
    const MutexLock lock(mutex_);
    if (!attached("a sequence command")) return;
    EmulatedWork work;
    work.finish = [this, command = std::move(command)]()
                      HITIDE_REQUIRES(mutex_) { sequences_.apply(command); };
    launch(kToHostStream.index, worker(kToHostStream.index, 0, "sequence command"),
           std::move(work));
  }
  after_launch();
}

// ---- carrying out -------------------------------------------------------------------------------

// The part of the contract that can be seen only when the copy's turn has come.
bool EmulatedDevice::Impl::fits(const Copy& copy, std::size_t index) {
  const CopyBatch& batch = copy.batch;
  const PageCopy& page = batch.pages[index];
  const auto wrong = [&](const std::string& what) HITIDE_REQUIRES(mutex_) {
    contract(page.page, batch.op_id,
             fmt::format("{} of {}: {}", *copy.who.name, page_name(page.page), what));
    return false;
  };
  if (page.position != batch.pages[0].position + index) {
    return wrong("positions do not follow each other");
  }
  if (page.payload.size() != options_.geometry.page_bytes) {
    return wrong(fmt::format("payload of {} bytes, a page has {}", page.payload.size(),
                             options_.geometry.page_bytes));
  }
  if (!by_sequence()) return true;
  const SequenceTable::Place* const place = sequences_.place(page.page);
  if (batch.direction == CopyDirection::to_host) {
    if (place == nullptr || place->position == page.position) return true;
    return wrong(fmt::format("stands at {}, not at {}", place->position, page.position));
  }
  const SequenceTable::Pages* const own = sequences_.find(batch.sequence);
  if (own == nullptr || page.position >= own->size() || (*own)[page.position] != page.page) {
    return wrong(fmt::format("not at {} of sequence {}", page.position, batch.sequence.value));
  }
  if (!sequences_.follows_filled(*place)) return wrong("a page before it is not filled");
  return true;
}

void EmulatedDevice::Impl::begin(Copy& copy) {
  if (copy.batch.direction != CopyDirection::to_host) return;
  for (std::size_t i = 0; i < copy.batch.pages.size(); ++i) {
    std::vector<std::byte>& read = copy.read.emplace_back(copy.batch.pages[i].payload.size());
    StatusCode code = StatusCode::internal;
    if (fits(copy, i)) {
      code = pages_.read(copy.batch.pages[i].page, read, copy.who, !copy.ordered[i]);
    }
    if (!copy.ordered[i]) code = StatusCode::internal;
    if (code == StatusCode::ok) code = take_fault(CopyDirection::to_host);
    copy.codes.push_back(code);
  }
}

StatusCode EmulatedDevice::Impl::move_to_device(const Copy& copy, std::size_t index) {
  const PageCopy& page = copy.batch.pages[index];
  if (!fits(copy, index) || !copy.ordered[index]) return StatusCode::internal;
  if (checksum64(page.payload) != copy.sums[index]) {
    log_.add(DeviceFaultKind::host_bytes, page.page, copy.who.op_id,
             fmt::format("{} of {}: its host bytes were changed before it was done", *copy.who.name,
                         page_name(page.page)));
    return StatusCode::internal;
  }
  const StatusCode fault = take_fault(CopyDirection::to_device);
  if (fault != StatusCode::ok) return fault;
  return pages_.write(page.page, page.payload, copy.who, false) ? StatusCode::ok
                                                                : StatusCode::internal;
}

void EmulatedDevice::Impl::end(Copy& copy) {
  bool failed = false;
  for (std::size_t i = 0; i < copy.batch.pages.size(); ++i) {
    if (copy.batch.direction == CopyDirection::to_host) {
      if (copy.codes[i] != StatusCode::ok) continue;
      std::ranges::copy(copy.read[i], copy.batch.pages[i].payload.begin());
      continue;
    }
    // Pages of a sequence follow each other: behind one that failed nothing can be placed.
    const bool stuck = failed && by_sequence();
    copy.codes.push_back(stuck ? StatusCode::cancelled : move_to_device(copy, i));
    failed = failed || copy.codes.back() != StatusCode::ok;
  }
  answer(copy);
}

void EmulatedDevice::Impl::answer(Copy& copy) {
  for (const PageCopy& page : copy.batch.pages) {
    const auto use = host_uses_.find(page.payload.data());
    if (use != host_uses_.end() && use->second.number == copy.who.tick) host_uses_.erase(use);
  }
  CopyCompletion completion;
  completion.op_id = copy.batch.op_id;
  completion.pages = std::move(copy.codes);
  completion.buffers_busy_until = busy_until_;
  VectorClock& knows = holding_ ? held_done_ : launches_[kHost].known_done;
  knows.join(*copy.who.ordered);
  knows.add(copy.who.stream, copy.who.tick);
  (holding_ ? held_ : outbox_).push_back(std::move(completion));
}

StatusCode EmulatedDevice::Impl::take_fault(CopyDirection direction) {
  Fault& fault = fail_[static_cast<std::size_t>(direction)];
  if (fault.code == StatusCode::ok || fault.count == 0) return StatusCode::ok;
  if (fault.skip > 0) {
    --fault.skip;
    return StatusCode::ok;
  }
  --fault.count;
  return fault.code;
}

}  // namespace hitide
