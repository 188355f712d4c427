#include "device/emulated_impl.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace hitide {
namespace {

using Drive = EmulatedDeviceOptions::Drive;

constexpr std::uint32_t kStreamsMax = 64;  // the host and the copy streams included

}  // namespace

EmulatedDevice::Impl::Impl(const EmulatedDeviceOptions& options)
    : options_(options),
      pages_(options.geometry, log_),
      sequences_(options.geometry, pages_, log_),
      streams_(options.seed),
      launches_(kToDeviceStream.index + 1) {
  if (options.drive == Drive::thread) thread_ = std::thread([this] { work(); });
}

EmulatedDevice::Impl::~Impl() {
  detach();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status EmulatedDevice::Impl::attach(CompletionSink* sink) {
  const MutexLock lock(mutex_);
  if (sink_ != nullptr) {
    return Status(StatusCode::failed_precondition, "emulated device: attached already");
  }
  sink_ = sink;
  return ok_status();
}

void EmulatedDevice::Impl::detach() {
  MutexLock lock(mutex_);
  CompletionSink* const sink = std::exchange(sink_, nullptr);
  std::vector<CopyCompletion> answers = std::exchange(held_, {});
  const bool holding = std::exchange(holding_, false);
  for (const DeviceStream stream : {kToHostStream, kToDeviceStream}) {
    for (const EmulatedWork& work : streams_.take_all(stream.index)) {
      if (work.cancel) work.cancel();
    }
  }
  holding_ = holding;
  changed_.notify_all();
  changed_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) { return posting_ == 0; });
  answers.insert(answers.end(), outbox_.begin(), outbox_.end());
  outbox_.clear();
  if (sink != nullptr) post(sink, std::move(answers));
}

// ---- launching ----------------------------------------------------------------------------------

bool EmulatedDevice::Impl::attached(std::string_view what) {
  if (sink_ == nullptr)
    contract({}, 0, fmt::format("{} submitted while no sink is attached", what));
  return sink_ != nullptr;
}

bool EmulatedDevice::Impl::wrong_stream(DeviceStream stream, std::string_view call) {
  const bool wrong = by_sequence() || stream.index == kHost || stream.index >= launches_.size();
  if (wrong) {
    contract({}, 0,
             by_sequence() ? fmt::format("{}: a device with sequences has no streams", call)
                           : fmt::format("{}: no such stream, {}", call, stream.index));
  }
  return wrong;
}

Worker EmulatedDevice::Impl::worker(std::uint32_t stream, std::uint64_t op_id, std::string name) {
  Launches& own = launches_[stream];
  own.known_done.join(launches_[kHost].known_done);
  Worker who;
  who.stream = stream;
  who.tick = streams_.next_number();
  who.op_id = op_id;
  who.name = std::make_shared<const std::string>(std::move(name));
  who.ordered = std::make_shared<const VectorClock>(own.known_done);
  own.known_done.add(stream, who.tick);
  return who;
}

Worker EmulatedDevice::Impl::host_worker(std::string name) {
  return worker(kHost, 0, std::move(name));
}

void EmulatedDevice::Impl::launch(std::uint32_t stream, const Worker& who, EmulatedWork work) {
  Launches& own = launches_[stream];
  work.number = who.tick;
  work.waits = std::exchange(own.waits, {});
  own.last = who.tick;
  streams_.launch(stream, std::move(work));
  changed_.notify_all();
}

void EmulatedDevice::Impl::after_launch() {
  if (options_.drive != Drive::immediate) return;
  while (step()) {
  }
}

// ---- the engine's part --------------------------------------------------------------------------

void EmulatedDevice::Impl::write(PageId page, std::span<const std::byte> bytes) {
  const MutexLock lock(mutex_);
  const Worker who = host_worker("the host's write");
  if (bytes.size() != options_.geometry.page_bytes) {
    return contract(page, 0,
                    fmt::format("write of {}: {} bytes, a page has {}", page_name(page),
                                bytes.size(), options_.geometry.page_bytes));
  }
  bool ordered = true;
  if (by_sequence()) {
    const SequenceTable::Place* const place = sequences_.place(page);
    if (place == nullptr) {
      return contract(page, 0, fmt::format("write of {}: in no sequence", page_name(page)));
    }
    if (!sequences_.follows_filled(*place)) {
      contract(page, 0,
               fmt::format("write of {}: a page before it is not filled", page_name(page)));
    }
  } else {
    ordered = pages_.order_write(page, who);
  }
  pages_.write(page, bytes, who, !ordered);
}

std::vector<std::byte> EmulatedDevice::Impl::bytes(PageId page) const {
  const MutexLock lock(mutex_);
  if (!pages_.filled(page)) return {};
  const auto found = pages_.bytes(page);
  return {found.begin(), found.end()};
}

bool EmulatedDevice::Impl::filled(PageId page) const {
  const MutexLock lock(mutex_);
  return pages_.filled(page);
}

void EmulatedDevice::Impl::release(PageId page) {
  const MutexLock lock(mutex_);
  if (by_sequence()) {
    return contract(page, 0, "release: pages of sequences are given back by trim");
  }
  if (!pages_.known(page) || pages_.generation(page) > page.generation) {
    return contract(page, 0, fmt::format("release of {}: not there", page_name(page)));
  }
  pages_.order_write(page, host_worker("the host's release"));
  pages_.release(page);
}

DeviceStream EmulatedDevice::Impl::make_stream() {
  const MutexLock lock(mutex_);
  if (by_sequence() || launches_.size() >= kStreamsMax) return {};
  launches_.emplace_back();
  return {static_cast<std::uint32_t>(launches_.size() - 1)};
}

void EmulatedDevice::Impl::launch_write(DeviceStream stream, PageId page,
                                        std::vector<std::byte> bytes) {
  {
    const MutexLock lock(mutex_);
    if (wrong_stream(stream, "launch_write")) return;
    if (bytes.size() != options_.geometry.page_bytes) {
      return contract(page, 0,
                      fmt::format("launch_write of {}: {} bytes, a page has {}", page_name(page),
                                  bytes.size(), options_.geometry.page_bytes));
    }
    const Worker who = worker(stream.index, 0, fmt::format("a write on stream {}", stream.index));
    const bool ordered = pages_.order_write(page, who);
    EmulatedWork work;
    work.duration = options_.latency + streams_.jitter(options_.jitter);
    work.finish = [this, who, page, ordered, bytes = std::move(bytes)]()
                      HITIDE_REQUIRES(mutex_) { pages_.write(page, bytes, who, !ordered); };
    launch(stream.index, who, std::move(work));
  }
  after_launch();
}

void EmulatedDevice::Impl::launch_read(DeviceStream stream, PageId page, std::span<std::byte> out) {
  {
    const MutexLock lock(mutex_);
    if (wrong_stream(stream, "launch_read")) return;
    std::ranges::fill(out, kPoison);
    if (out.size() != options_.geometry.page_bytes) {
      return contract(page, 0,
                      fmt::format("launch_read of {}: {} bytes, a page has {}", page_name(page),
                                  out.size(), options_.geometry.page_bytes));
    }
    const Worker who = worker(stream.index, 0, fmt::format("a read on stream {}", stream.index));
    const bool ordered = pages_.order_read(page, who);
    auto read = std::make_shared<std::vector<std::byte>>(out.size());
    EmulatedWork work;
    work.duration = options_.latency + streams_.jitter(options_.jitter);
    work.start = [this, who, page, ordered, read]() HITIDE_REQUIRES(mutex_) {
      // What it finds is what it would have found.
      static_cast<void>(pages_.read(page, *read, who, !ordered));
    };
    work.finish = [read, out] { std::ranges::copy(*read, out.begin()); };
    launch(stream.index, who, std::move(work));
  }
  after_launch();
}

DeviceEvent EmulatedDevice::Impl::record(DeviceStream stream) {
  const MutexLock lock(mutex_);
  if (wrong_stream(stream, "record")) return {};
  const Launches& own = launches_[stream.index];
  Event event{own.known_done, own.waits};
  event.numbers.push_back(own.last);
  events_.push_back(std::move(event));
  return {static_cast<std::uint32_t>(events_.size() - 1)};
}

void EmulatedDevice::Impl::wait(DeviceStream stream, DeviceEvent event) {
  const MutexLock lock(mutex_);
  if (wrong_stream(stream, "wait")) return;
  if (event.index >= events_.size()) return contract({}, 0, "wait: no such event");
  Launches& own = launches_[stream.index];
  const Event& before = events_[event.index];
  own.known_done.join(before.known_done);
  own.waits.insert(own.waits.end(), before.numbers.begin(), before.numbers.end());
}

Status EmulatedDevice::Impl::synchronize(DeviceEvent event, TimePoint deadline) {
  MutexLock lock(mutex_);
  if (event.index >= events_.size()) {
    return Status(StatusCode::failed_precondition, "synchronize: no such event");
  }
  const auto come = [&]() HITIDE_REQUIRES(mutex_) {
    return std::ranges::none_of(events_[event.index].numbers,
                                [this](std::uint64_t number)
                                    HITIDE_REQUIRES(mutex_) { return streams_.pending(number); });
  };
  if (options_.drive == Drive::thread) {
    if (!changed_.wait_until(lock, deadline, come)) {
      return Status(StatusCode::deadline_exceeded, "synchronize: the event has not come");
    }
  }
  while (!come()) {
    lock.unlock();
    const bool moved = step();
    lock.lock();
    if (!moved && !come()) {
      return Status(StatusCode::failed_precondition,
                    "synchronize: nothing is left that could bring the event");
    }
  }
  launches_[kHost].known_done.join(events_[event.index].known_done);
  return ok_status();
}

// ---- carrying out -------------------------------------------------------------------------------

void EmulatedDevice::Impl::post(CompletionSink* sink, std::vector<CopyCompletion> answers) {
  if (sink == nullptr || answers.empty()) return;
  ++posting_;
  {
    const MutexUnlock unlocked(mutex_);
    for (CopyCompletion& completion : answers) sink->post(std::move(completion));
  }
  --posting_;
  changed_.notify_all();
}

void EmulatedDevice::Impl::finish_next(TimePoint end) {
  now_ = std::max(now_, end);
  const EmulatedWork work = streams_.take_next();
  work.finish();
  streams_.finished(work.number);
  changed_.notify_all();
  post(sink_, std::exchange(outbox_, {}));
}

bool EmulatedDevice::Impl::step() {
  MutexLock lock(mutex_);
  if (options_.drive == Drive::thread) return false;
  const std::optional<TimePoint> next = streams_.start_ready(now_);
  if (next) finish_next(*next);
  return next.has_value();
}

void EmulatedDevice::Impl::work() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const TimePoint now = std::chrono::steady_clock::now();
    const std::optional<TimePoint> next = streams_.start_ready(now);
    if (!next) {
      changed_.wait(lock);
    } else if (*next > now) {
      changed_.wait_until(lock, *next);
    } else {
      finish_next(*next);
    }
  }
}

std::size_t EmulatedDevice::Impl::queued() const {
  const MutexLock lock(mutex_);
  return streams_.count();
}

bool EmulatedDevice::Impl::wait_until_queued(std::size_t count, TimePoint deadline) const {
  MutexLock lock(mutex_);
  return changed_.wait_until(lock, deadline,
                             [&]() HITIDE_REQUIRES(mutex_) { return streams_.count() >= count; });
}

void EmulatedDevice::Impl::script_latencies(CopyDirection direction,
                                            std::vector<Duration> latencies) {
  const MutexLock lock(mutex_);
  latencies_[static_cast<std::size_t>(direction)].assign(latencies.begin(), latencies.end());
}

void EmulatedDevice::Impl::fail_copies(CopyDirection direction, StatusCode code,
                                       std::uint64_t count, std::uint64_t skip) {
  const MutexLock lock(mutex_);
  fail_[static_cast<std::size_t>(direction)] = {code, count, skip};
}

void EmulatedDevice::Impl::hold_completions() {
  const MutexLock lock(mutex_);
  holding_ = true;
}

void EmulatedDevice::Impl::release_completions() {
  MutexLock lock(mutex_);
  holding_ = false;
  launches_[kHost].known_done.join(std::exchange(held_done_, {}));
  post(sink_, std::exchange(held_, {}));
}

std::size_t EmulatedDevice::Impl::held_completions() const {
  const MutexLock lock(mutex_);
  return held_.size();
}

void EmulatedDevice::Impl::set_buffers_busy_until(TimePoint time) {
  const MutexLock lock(mutex_);
  busy_until_ = time;
}

std::vector<PageId> EmulatedDevice::Impl::sequence(SequenceId sequence) const {
  const MutexLock lock(mutex_);
  const SequenceTable::Pages* const found = sequences_.find(sequence);
  return found == nullptr ? std::vector<PageId>{} : *found;
}

std::size_t EmulatedDevice::Impl::sequences_in_use() const {
  const MutexLock lock(mutex_);
  return sequences_.in_use();
}

std::vector<DeviceFault> EmulatedDevice::Impl::faults() const {
  const MutexLock lock(mutex_);
  return log_.faults();
}

}  // namespace hitide
