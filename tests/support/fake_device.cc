#include "tests/support/fake_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hitide {
namespace {

std::string name(PageId page) {
  return "page " + std::to_string(page.index) + " generation " + std::to_string(page.generation);
}

std::string name(const SequenceCommand& command) {
  static constexpr const char* kKinds[] = {"bind", "extend", "replace", "trim"};
  return std::string(kKinds[static_cast<std::size_t>(command.kind)]) + " of sequence " +
         std::to_string(command.sequence.value) + " at " + std::to_string(command.position) +
         " with " + std::to_string(command.pages.size()) + " pages: ";
}

CopyCompletion cancelled(const CopyBatch& batch) {
  CopyCompletion completion;
  completion.op_id = batch.op_id;
  completion.pages.assign(batch.pages.size(), StatusCode::cancelled);
  return completion;
}

}  // namespace

std::vector<std::byte> page_content(std::uint64_t content, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::uint64_t state = content + 0x9e3779b97f4a7c15ull;
  for (std::byte& byte : out) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(state >> 56);
  }
  return out;
}

FakeDevice::FakeDevice(const DeviceGeometry& geometry, bool immediate)
    : geometry_(geometry), immediate_(immediate), pages_(geometry.page_count) {}

FakeDevice::~FakeDevice() { detach(); }

Status FakeDevice::attach(CompletionSink* sink) {
  const std::lock_guard lock(mutex_);
  if (sink_ != nullptr) return Status(StatusCode::failed_precondition, "attached already");
  sink_ = sink;
  return ok_status();
}

void FakeDevice::detach() {
  std::vector<CopyCompletion> answers;
  CompletionSink* sink = nullptr;
  {
    const std::lock_guard lock(mutex_);
    sink = std::exchange(sink_, nullptr);
    answers.swap(held_);
    for (const Command& command : commands_) {
      if (const auto* batch = std::get_if<CopyBatch>(&command)) {
        answers.push_back(cancelled(*batch));
      }
    }
    commands_.clear();
    changed_.notify_all();
  }
  if (sink == nullptr) return;
  for (CopyCompletion& answer : answers) sink->post(std::move(answer));
}

void FakeDevice::submit(CopyBatch batch) { enqueue(std::move(batch)); }
void FakeDevice::submit(SequenceCommand command) { enqueue(std::move(command)); }

void FakeDevice::enqueue(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (sink_ == nullptr) {
      violation("submitted while no sink is attached");
      return;
    }
    commands_.push_back(std::move(command));
    changed_.notify_all();
  }
  if (immediate_) run();
}

bool FakeDevice::step() {
  CompletionSink* sink = nullptr;
  CopyCompletion answer;
  {
    const std::lock_guard lock(mutex_);
    if (commands_.empty()) return false;
    const Command command = std::move(commands_.front());
    commands_.pop_front();
    changed_.notify_all();
    if (const auto* sequence_command = std::get_if<SequenceCommand>(&command)) {
      apply(*sequence_command);
      return true;
    }
    answer = copy(std::get<CopyBatch>(command));
    if (holding_) {
      held_.push_back(std::move(answer));
      return true;
    }
    sink = sink_;
  }
  if (sink != nullptr) sink->post(std::move(answer));
  return true;
}

std::size_t FakeDevice::run() {
  std::size_t steps = 0;
  while (step()) ++steps;
  return steps;
}

std::size_t FakeDevice::queued() const {
  const std::lock_guard lock(mutex_);
  return commands_.size();
}

bool FakeDevice::wait_until_queued(std::size_t count, TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return commands_.size() >= count; });
}

void FakeDevice::fail_copies(CopyDirection direction, StatusCode code, std::uint64_t count,
                             std::uint64_t skip) {
  const std::lock_guard lock(mutex_);
  faults_[static_cast<std::size_t>(direction)] = {code, count, skip};
}

void FakeDevice::fail_no_copies() {
  const std::lock_guard lock(mutex_);
  for (Fault& fault : faults_) fault = {};
}

void FakeDevice::hold_completions() {
  const std::lock_guard lock(mutex_);
  holding_ = true;
}

void FakeDevice::release_completions() {
  std::vector<CopyCompletion> answers;
  CompletionSink* sink = nullptr;
  {
    const std::lock_guard lock(mutex_);
    holding_ = false;
    answers.swap(held_);
    sink = sink_;
  }
  if (sink == nullptr) return;
  for (CopyCompletion& answer : answers) sink->post(std::move(answer));
}

std::size_t FakeDevice::held_completions() const {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

void FakeDevice::set_buffers_busy_until(TimePoint time) {
  const std::lock_guard lock(mutex_);
  busy_until_ = time;
}

bool FakeDevice::filled(PageId page) const {
  const std::lock_guard lock(mutex_);
  return filled_now(page);
}

std::vector<std::byte> FakeDevice::bytes(PageId page) const {
  const std::lock_guard lock(mutex_);
  if (!filled_now(page)) return {};
  return pages_[page.index].bytes;
}

std::vector<PageId> FakeDevice::sequence(SequenceId sequence) const {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(sequence.value);
  return found == sequences_.end() ? Pages{} : found->second;
}

std::size_t FakeDevice::sequences_in_use() const {
  const std::lock_guard lock(mutex_);
  return sequences_.size();
}

std::vector<std::string> FakeDevice::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

// ---- pages --------------------------------------------------------------------------------------

bool FakeDevice::known(PageId page) const { return page.index < pages_.size(); }

bool FakeDevice::filled_now(PageId page) const {
  return known(page) && pages_[page.index].filled &&
         pages_[page.index].generation == page.generation;
}

const FakeDevice::Pages* FakeDevice::holder(PageId page, std::size_t& position) const {
  for (const auto& [id, pages] : sequences_) {
    const auto found = std::find(pages.begin(), pages.end(), page);
    if (found == pages.end()) continue;
    position = static_cast<std::size_t>(found - pages.begin());
    return &pages;
  }
  return nullptr;
}

bool FakeDevice::filled_before(const Pages& pages, std::size_t position) const {
  return std::all_of(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(position),
                     [this](PageId page) { return filled_now(page); });
}

void FakeDevice::fill(PageId page, std::uint64_t content) {
  const std::lock_guard lock(mutex_);
  if (by_sequence()) {
    std::size_t position = 0;
    const Pages* pages = holder(page, position);
    if (pages == nullptr) return violation("fill of " + name(page) + ": in no sequence");
    if (!filled_before(*pages, position)) {
      violation("fill of " + name(page) + ": a page before it is not filled");
    }
  }
  write(page, page_content(content, geometry_.page_bytes), "fill");
}

bool FakeDevice::write(PageId page, std::vector<std::byte> bytes, const std::string& who) {
  if (!known(page)) {
    violation(who + " of " + name(page) + ": no such page");
    return false;
  }
  Page& own = pages_[page.index];
  if (page.generation < own.generation) {
    violation(who + " of " + name(page) + ": generation " + std::to_string(own.generation) +
              " is there");
    return false;
  }
  if (filled_now(page)) {
    violation(who + " of " + name(page) + ": filled already");
    return false;
  }
  own = {page.generation, true, std::move(bytes)};
  return true;
}

// A page that no sequence holds has lost its content.
void FakeDevice::forget_unheld() {
  for (std::uint32_t index = 0; index < pages_.size(); ++index) {
    std::size_t position = 0;
    Page& page = pages_[index];
    if (page.filled && holder(PageId{index, page.generation}, position) == nullptr) {
      page.filled = false;
      page.bytes.clear();
    }
  }
}

// ---- copies -------------------------------------------------------------------------------------

CopyCompletion FakeDevice::copy(const CopyBatch& batch) {
  CopyCompletion completion;
  completion.op_id = batch.op_id;
  completion.buffers_busy_until = busy_until_;
  bool failed = false;
  for (std::size_t i = 0; i < batch.pages.size(); ++i) {
    if (batch.pages[i].position != batch.pages[0].position + i) {
      violation("copy " + std::to_string(batch.op_id) + ": positions do not follow each other");
    }
    // Pages of a sequence follow each other: behind one that failed nothing can be placed.
    const bool stuck = failed && by_sequence() && batch.direction == CopyDirection::to_device;
    const StatusCode code = stuck ? StatusCode::cancelled : copy_page(batch, batch.pages[i]);
    failed = failed || code != StatusCode::ok;
    completion.pages.push_back(code);
  }
  return completion;
}

StatusCode FakeDevice::copy_page(const CopyBatch& batch, const PageCopy& copy) {
  if (!known(copy.page)) {
    violation("copy of " + name(copy.page) + ": no such page");
    return StatusCode::internal;
  }
  if (copy.payload.size() != geometry_.page_bytes) {
    violation("copy of " + name(copy.page) + ": payload of " + std::to_string(copy.payload.size()) +
              " bytes");
    return StatusCode::internal;
  }
  return batch.direction == CopyDirection::to_host ? copy_to_host(copy)
                                                   : copy_to_device(batch, copy);
}

StatusCode FakeDevice::copy_to_host(const PageCopy& copy) {
  if (!filled_now(copy.page)) {
    violation("copy of " + name(copy.page) + " to host: not filled, or released");
    return StatusCode::internal;
  }
  std::size_t position = copy.position;
  if (by_sequence()) holder(copy.page, position);
  if (position != copy.position) {
    violation("copy of " + name(copy.page) + " to host: stands at " + std::to_string(position) +
              ", not at " + std::to_string(copy.position));
    return StatusCode::internal;
  }
  const StatusCode fault = take_fault(CopyDirection::to_host);
  if (fault != StatusCode::ok) return fault;
  std::memcpy(copy.payload.data(), pages_[copy.page.index].bytes.data(), copy.payload.size());
  return StatusCode::ok;
}

StatusCode FakeDevice::copy_to_device(const CopyBatch& batch, const PageCopy& copy) {
  if (by_sequence()) {
    const auto found = sequences_.find(batch.sequence.value);
    const bool there = found != sequences_.end() && copy.position < found->second.size() &&
                       found->second[copy.position] == copy.page;
    if (!there) {
      violation("copy of " + name(copy.page) + " to the device: not at " +
                std::to_string(copy.position) + " of sequence " +
                std::to_string(batch.sequence.value));
      return StatusCode::internal;
    }
    if (!filled_before(found->second, copy.position)) {
      violation("copy of " + name(copy.page) + " to the device: a page before it is not filled");
      return StatusCode::internal;
    }
  }
  const StatusCode fault = take_fault(CopyDirection::to_device);
  if (fault != StatusCode::ok) return fault;
  const bool written =
      write(copy.page, {copy.payload.begin(), copy.payload.end()}, "copy to the device");
  return written ? StatusCode::ok : StatusCode::internal;
}

StatusCode FakeDevice::take_fault(CopyDirection direction) {
  Fault& fault = faults_[static_cast<std::size_t>(direction)];
  if (fault.code == StatusCode::ok || fault.count == 0) return StatusCode::ok;
  if (fault.skip > 0) {
    --fault.skip;
    return StatusCode::ok;
  }
  --fault.count;
  return fault.code;
}

// ---- sequences ----------------------------------------------------------------------------------

void FakeDevice::apply(const SequenceCommand& command) {
  if (!by_sequence()) return violation(name(command) + "the device has no sequences");
  if (!command.sequence.valid() ||
      static_cast<std::uint32_t>(command.sequence.value) >= geometry_.sequence_count) {
    return violation(name(command) + "no such sequence");
  }
  for (const PageId page : command.pages) {
    if (!known(page)) return violation(name(command) + name(page) + " is not there");
  }
  switch (command.kind) {
    case SequenceCommand::Kind::bind:
      bind(command);
      break;
    case SequenceCommand::Kind::extend:
      extend(command);
      break;
    case SequenceCommand::Kind::replace:
      replace(command);
      break;
    case SequenceCommand::Kind::trim:
      trim(command);
      break;
  }
  check_prefixes();
  forget_unheld();
}

bool FakeDevice::shared(const Pages& prefix, std::int32_t except) const {
  return std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
    const Pages& pages = entry.second;
    return entry.first != except && pages.size() >= prefix.size() &&
           std::equal(prefix.begin(), prefix.end(), pages.begin());
  });
}

void FakeDevice::bind(const SequenceCommand& command) {
  if (sequences_.count(command.sequence.value) != 0) {
    return violation(name(command) + "the sequence is in use");
  }
  if (command.position != 0) return violation(name(command) + "binds from position 0 only");
  if (!shared(command.pages, command.sequence.value)) {
    return violation(name(command) + "no other sequence starts with these pages");
  }
  if (!filled_before(command.pages, command.pages.size())) {
    violation(name(command) + "not all of these pages are filled");
  }
  sequences_[command.sequence.value] = command.pages;
}

void FakeDevice::extend(const SequenceCommand& command) {
  Pages& own = sequences_[command.sequence.value];
  if (command.position != own.size()) {
    violation(name(command) + "the sequence has " + std::to_string(own.size()) + " pages");
    return;
  }
  for (const PageId page : command.pages) {
    Page& known_page = pages_[page.index];
    for (const auto& [id, pages] : sequences_) {
      const bool used = std::any_of(pages.begin(), pages.end(),
                                    [page](PageId other) { return other.index == page.index; });
      if (used) violation(name(command) + name(page) + " is in sequence " + std::to_string(id));
    }
    if (page.generation <= known_page.generation) {
      violation(name(command) + name(page) + " is not new, generation " +
                std::to_string(known_page.generation) + " was there");
    }
    known_page = {page.generation, false, {}};
    own.push_back(page);
  }
}

void FakeDevice::replace(const SequenceCommand& command) {
  const auto found = sequences_.find(command.sequence.value);
  if (found == sequences_.end() ||
      std::size_t{command.position} + command.pages.size() > found->second.size()) {
    return violation(name(command) + "the sequence is not so long");
  }
  Pages changed = found->second;
  for (std::size_t i = 0; i < command.pages.size(); ++i) {
    const PageId page = command.pages[i];
    PageId& own = changed[command.position + i];
    if (!filled_now(page) || !filled_now(own)) {
      violation(name(command) + name(filled_now(page) ? own : page) + " is not filled");
    } else if (pages_[page.index].bytes != pages_[own.index].bytes) {
      violation(name(command) + name(page) + " is not equal to " + name(own));
    }
    own = page;
  }
  const Pages prefix(
      changed.begin(),
      changed.begin() + static_cast<std::ptrdiff_t>(command.position + command.pages.size()));
  if (!shared(prefix, command.sequence.value)) {
    violation(name(command) + "no other sequence starts like that");
  }
  found->second = std::move(changed);
}

void FakeDevice::trim(const SequenceCommand& command) {
  if (!command.pages.empty()) violation(name(command) + "a trim names no pages");
  const auto found = sequences_.find(command.sequence.value);
  if (found == sequences_.end() || command.position > found->second.size()) {
    return violation(name(command) + "the sequence is not so long");
  }
  found->second.resize(command.position);
  if (command.position == 0) sequences_.erase(found);
}

// A page in several sequences stands at one position, behind the same pages.
void FakeDevice::check_prefixes() {
  struct Place {
    std::size_t position;
    PageId before;
  };
  std::map<std::uint32_t, std::pair<PageId, Place>> places;
  for (const auto& [id, pages] : sequences_) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const Place place{i, i == 0 ? PageId{} : pages[i - 1]};
      const auto [seen, fresh] = places.try_emplace(pages[i].index, pages[i], place);
      if (fresh) continue;
      if (seen->second.first != pages[i] || seen->second.second.position != i ||
          seen->second.second.before != place.before) {
        violation(name(pages[i]) + " stands at different places, or behind different pages");
      }
    }
  }
}

}  // namespace hitide
