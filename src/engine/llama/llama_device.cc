#include "engine/llama/llama_device.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <llama.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/llama/llama_device_internal.h"

namespace hitide {

LlamaDevice::LlamaDevice(LlamaContextPtr context, const LlamaDeviceOptions& options,
                         std::function<void()> wake)
    : options_(options),
      wake_(std::move(wake)),
      context_(std::move(context)),
      batch_(std::make_unique<Batch>(options.batch)),
      sequences_(options.geometry.sequence_count) {
  for (std::int32_t id = scratch_of(options_) - 1; id >= 0; --id) physical_free_.push_back(id);
}

LlamaDevice::~LlamaDevice() { detach(); }

Result<std::unique_ptr<LlamaDevice>> LlamaDevice::create(LlamaContextPtr context,
                                                         const LlamaDeviceOptions& options,
                                                         std::function<void()> wake) {
  const DeviceGeometry& geometry = options.geometry;
  if (!context || geometry.page_count == 0 || geometry.page_size == 0 ||
      geometry.sequence_count == 0 || options.batch == 0) {
    return Status(StatusCode::invalid_argument, "llama device: an empty geometry");
  }
  // A spare id beside the scratch, so that a sequence whose tail is dead can move to a new one.
  const std::uint32_t wanted = geometry.sequence_count + (options.shareable ? 2 : 0);
  if (options.physical_count < wanted || options.physical_count > llama_n_seq_max(context.get())) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("llama device: {} sequences need {} ids, the context has {}",
                              geometry.sequence_count, wanted, llama_n_seq_max(context.get())));
  }
  const std::uint64_t tokens = std::uint64_t{geometry.page_count} * geometry.page_size;
  if (options.shareable && (options.cells < tokens || options.cells > llama_n_ctx(context.get()))) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("llama device: {} pages of {} tokens do not fit {} cells",
                              geometry.page_count, geometry.page_size, options.cells));
  }
  return std::unique_ptr<LlamaDevice>(
      new LlamaDevice(std::move(context), options, std::move(wake)));
}

// ---- Any thread
// ----------------------------------------------------------------------------------

Status LlamaDevice::attach(CompletionSink* sink) {
  const MutexLock run(run_mutex_);
  if (sink_ != nullptr) {
    return Status(StatusCode::failed_precondition, "llama device: attached already");
  }
  sink_ = sink;
  return ok_status();
}

void LlamaDevice::detach() {
  const MutexLock run(run_mutex_);
  std::deque<Item> left;
  {
    const MutexLock lock(queue_mutex_);
    left.swap(queue_);
    executed_ = submitted_;
    loads_ = 0;
  }
  if (copying_) {
    active_.results.resize(active_.batch.pages.size(), StatusCode::cancelled);
    finish_copy();
  }
  for (const Item& item : left) {
    const auto* const batch = std::get_if<CopyBatch>(&item);
    if (batch == nullptr || sink_ == nullptr) continue;
    CopyCompletion completion;
    completion.op_id = batch->op_id;
    completion.pages.resize(batch->pages.size(), StatusCode::cancelled);
    sink_->post(std::move(completion));
  }
  sink_ = nullptr;
}

void LlamaDevice::submit(CopyBatch batch) { enqueue(std::move(batch)); }
void LlamaDevice::submit(SequenceCommand command) { enqueue(std::move(command)); }

void LlamaDevice::enqueue(Item item) {
  {
    const MutexLock lock(queue_mutex_);
    const auto* const batch = std::get_if<CopyBatch>(&item);
    if (batch != nullptr && batch->direction == CopyDirection::to_device) ++loads_;
    queue_.push_back(std::move(item));
    ++submitted_;
  }
  if (wake_) wake_();
}

std::uint64_t LlamaDevice::submitted() const {
  const MutexLock lock(queue_mutex_);
  return submitted_;
}

std::uint64_t LlamaDevice::executed() const {
  const MutexLock lock(queue_mutex_);
  return executed_;
}

// ---- The command queue
// ---------------------------------------------------------------------------

bool LlamaDevice::run_commands(Duration budget, Duration load_budget) {
  const TimePoint start = SystemClock::instance().now();
  for (;;) {
    if (!run_one()) return false;
    const Duration spent = SystemClock::instance().now() - start;
    if (spent >= budget && (spent >= load_budget || !loads_pending())) break;
  }
  const MutexLock lock(queue_mutex_);
  return executed_ != submitted_;
}

bool LlamaDevice::loads_pending() const {
  const MutexLock lock(queue_mutex_);
  return loads_ > 0;
}

// One command, or one page of a copy. False when there was nothing to do.
bool LlamaDevice::run_one() {
  const MutexLock run(run_mutex_);
  if (!copying_) {
    Item item;
    {
      const MutexLock lock(queue_mutex_);
      if (queue_.empty()) return false;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    if (const auto* const command = std::get_if<SequenceCommand>(&item)) {
      execute(*command);
      const MutexLock lock(queue_mutex_);
      ++executed_;
      return true;
    }
    active_ = ActiveCopy{.batch = std::move(std::get<CopyBatch>(item)), .results = {}};
    copying_ = true;
  }
  std::vector<StatusCode>& results = active_.results;
  if (results.size() < active_.batch.pages.size()) {
    const PageCopy& copy = active_.batch.pages[results.size()];
    StatusCode code = StatusCode::unimplemented;
    if (options_.shareable && active_.batch.direction == CopyDirection::to_host) {
      code = save_page(copy);
    } else if (options_.shareable) {
      // Pages of a sequence follow each other: behind one that failed nothing can be placed.
      code = active_.failed ? StatusCode::cancelled : restore_page(active_.batch.sequence, copy);
      active_.failed = code != StatusCode::ok;
    }
    if (code != StatusCode::ok) metrics_.copy_failures.add();
    results.push_back(code);
  }
  if (results.size() >= active_.batch.pages.size()) {
    const bool load = active_.batch.direction == CopyDirection::to_device;
    finish_copy();
    const MutexLock lock(queue_mutex_);
    ++executed_;
    if (load) --loads_;
  }
  return true;
}

void LlamaDevice::finish_copy() {
  copying_ = false;
  CopyCompletion completion;
  completion.op_id = active_.batch.op_id;
  completion.pages = std::move(active_.results);
  active_ = ActiveCopy{};
  if (sink_ != nullptr) sink_->post(std::move(completion));
}

void LlamaDevice::protocol_error(std::string_view what, SequenceId sequence) {
  metrics_.protocol_errors.add();
  log_limited(LogLevel::error, "llama_device_protocol", std::chrono::seconds(1),
              {{"what", what}, {"sequence", sequence.value}});
}

LlamaDevice::Sequence* LlamaDevice::live_sequence(SequenceId id) {
  if (!id.valid() || static_cast<std::size_t>(id.value) >= sequences_.size()) return nullptr;
  Sequence& sequence = sequences_[static_cast<std::size_t>(id.value)];
  return sequence.live ? &sequence : nullptr;
}

void LlamaDevice::execute(const SequenceCommand& command) {
  const SequenceId id = command.sequence;
  if (!id.valid() || static_cast<std::size_t>(id.value) >= sequences_.size()) {
    protocol_error("a sequence id out of range", id);
    return;
  }
  Sequence& sequence = sequences_[static_cast<std::size_t>(id.value)];
  switch (command.kind) {
    case SequenceCommand::Kind::bind:
      execute_bind(sequence, command);
      return;
    case SequenceCommand::Kind::extend:
      if (command.position != sequence.pages.size()) {
        protocol_error("extend does not begin at the end", id);
        execute_trim(sequence,
                     std::min(command.position, static_cast<std::uint32_t>(sequence.pages.size())));
      }
      sequence.live = true;
      sequence.pages.insert(sequence.pages.end(), command.pages.begin(), command.pages.end());
      return;
    case SequenceCommand::Kind::replace:
      if (command.position + command.pages.size() > sequence.pages.size()) {
        protocol_error("replace beyond the end", id);
        return;
      }
      // Only the names change: the contents are equal, and the next compaction keeps one of them.
      std::copy(command.pages.begin(), command.pages.end(),
                sequence.pages.begin() + command.position);
      return;
    case SequenceCommand::Kind::trim:
      execute_trim(sequence, command.position);
      return;
  }
}

void LlamaDevice::execute_bind(Sequence& sequence, const SequenceCommand& command) {
  if (sequence.live && !sequence.pages.empty()) {
    protocol_error("bind of a sequence that is not empty", command.sequence);
  }
  execute_trim(sequence, 0);
  sequence.live = true;
  if (command.pages.empty()) return;
  if (!options_.shareable) {
    protocol_error("bind of pages on a cache that cannot be shared", command.sequence);
    return;
  }
  // A physical id first: taking one may compact, which moves the others.
  const std::int32_t physical = take_physical();
  const auto last = static_cast<std::uint32_t>(command.pages.size()) - 1;
  const Sequence* const source = holder_of(command.pages[last], last);
  if (physical < 0 || source == nullptr) {
    // Nothing is in place: filled() says so, and everything is computed.
    protocol_error("bind of pages that no sequence holds", command.sequence);
    if (physical >= 0) physical_free_.push_back(physical);
    return;
  }
  sequence.physical = physical;
  sequence.pages = command.pages;
  sequence.filled = (last + 1) * options_.geometry.page_size;
  llama_memory_seq_cp(llama_get_memory(context_.get()), source->physical, physical, 0,
                      static_cast<llama_pos>(sequence.filled));
}

void LlamaDevice::execute_trim(Sequence& sequence, std::uint32_t pages_kept) {
  if (pages_kept < sequence.pages.size()) sequence.pages.resize(pages_kept);
  sequence.filled = std::min(sequence.filled, pages_kept * options_.geometry.page_size);
  if (pages_kept == 0) {
    release_physical(sequence);
    sequence.live = false;
  }
}

// ---- Copies
// --------------------------------------------------------------------------------------

const LlamaDevice::Sequence* LlamaDevice::holder_of(PageId page, std::uint32_t position) const {
  const std::uint32_t end = (position + 1) * options_.geometry.page_size;
  for (const Sequence& sequence : sequences_) {
    if (sequence.live && sequence.filled >= end && position < sequence.pages.size() &&
        sequence.pages[position] == page) {
      return &sequence;
    }
  }
  return nullptr;
}

StatusCode LlamaDevice::save_page(const PageCopy& copy) {
  if (copy.payload.size() != options_.geometry.page_bytes) return StatusCode::invalid_argument;
  const Sequence* const holder = holder_of(copy.page, copy.position);
  if (holder == nullptr) {
    protocol_error("a page to save is in no sequence", SequenceId{});
    return StatusCode::internal;
  }
  const std::uint32_t page_size = options_.geometry.page_size;
  const std::size_t written = read_range(context_.get(),
                                         {.source = holder->physical,
                                          .scratch = scratch_of(options_),
                                          .begin = copy.position * page_size,
                                          .end = (copy.position + 1) * page_size},
                                         copy.payload);
  if (written != copy.payload.size()) return StatusCode::internal;
  metrics_.pages_saved.add();
  return StatusCode::ok;
}

StatusCode LlamaDevice::restore_page(SequenceId target, const PageCopy& copy) {
  if (copy.payload.size() != options_.geometry.page_bytes) return StatusCode::invalid_argument;
  const std::uint32_t page_size = options_.geometry.page_size;
  const std::uint32_t begin = copy.position * page_size;
  Sequence* const sequence = live_sequence(target);
  if (sequence == nullptr || sequence->filled != begin || copy.position >= sequence->pages.size() ||
      sequence->pages[copy.position] != copy.page) {
    protocol_error("a page to load does not follow what its sequence holds", target);
    return StatusCode::internal;
  }
  if (!make_room(page_size).ok()) return StatusCode::resource_exhausted;
  if (!own_tail(*sequence).ok()) return StatusCode::internal;
  if (!write_range(context_.get(),
                   {.source = sequence->physical,
                    .scratch = scratch_of(options_),
                    .begin = begin,
                    .end = begin + page_size},
                   copy.payload)) {
    return StatusCode::data_loss;
  }
  set_cells_used(cells_used_ + page_size);
  sequence->filled += page_size;
  metrics_.pages_restored.add();
  return StatusCode::ok;
}

Result<std::uint64_t> LlamaDevice::measure_page_bytes(SequenceId id) const {
  const std::uint32_t page_size = options_.geometry.page_size;
  if (!options_.shareable || filled(id) < page_size) {
    return Status(StatusCode::failed_precondition, "llama device: no filled page to measure");
  }
  return std::uint64_t{range_bytes(
      context_.get(), {.source = sequences_[static_cast<std::size_t>(id.value)].physical,
                       .scratch = scratch_of(options_),
                       .begin = 0,
                       .end = page_size})};
}

// ---- Room and ids
// --------------------------------------------------------------------------------

void LlamaDevice::set_cells_used(std::uint32_t cells) {
  cells_used_ = cells;
  metrics_.cells_used.store(cells, std::memory_order_relaxed);  // for people, orders nothing
}

Status LlamaDevice::make_room(std::uint32_t cells) {
  if (!cells_uncertain_ && cells_used_ + cells <= options_.cells) return ok_status();
  HITIDE_RETURN_IF_ERROR(compact());
  if (cells_used_ + cells <= options_.cells) return ok_status();
  return Status(StatusCode::resource_exhausted,
                fmt::format("llama device: {} of {} cells are alive, {} more are wanted",
                            cells_used_, options_.cells, cells));
}

std::int32_t LlamaDevice::take_physical() {
  if (physical_free_.empty()) {
    compact().ignore();  // what it could not move is accounted in filled()
  }
  if (physical_free_.empty()) return -1;
  const std::int32_t id = physical_free_.back();
  physical_free_.pop_back();
  return id;
}

// The id's cells become dead; an id without cells is free again at once.
void LlamaDevice::release_physical(Sequence& sequence) {
  if (sequence.physical < 0) return;
  llama_memory_t memory = llama_get_memory(context_.get());
  if (!options_.shareable) {
    llama_memory_seq_rm(memory, sequence.physical, -1, -1);
    sequence.physical = -1;
    return;
  }
  if (llama_memory_seq_pos_max(memory, sequence.physical) < 0) {
    physical_free_.push_back(sequence.physical);
  }
  sequence.physical = -1;
}

// Afterwards the sequence's physical id ends exactly at `filled`, so that cells can be appended.
Status LlamaDevice::own_tail(Sequence& sequence) {
  llama_memory_t memory = llama_get_memory(context_.get());
  if (!options_.shareable) {
    sequence.physical = static_cast<std::int32_t>(&sequence - sequences_.data());
    return ok_status();
  }
  const auto end = static_cast<llama_pos>(sequence.filled);
  if (sequence.physical >= 0 && llama_memory_seq_pos_max(memory, sequence.physical) + 1 == end) {
    return ok_status();
  }
  const std::int32_t fresh = take_physical();  // may compact, which changes sequence.physical
  if (fresh < 0) {
    return Status(StatusCode::internal, "llama device: no physical sequence id is left");
  }
  if (sequence.physical >= 0 && sequence.filled > 0) {
    llama_memory_seq_cp(memory, sequence.physical, fresh, 0, end);
  }
  release_physical(sequence);
  sequence.physical = fresh;
  return ok_status();
}

std::uint32_t LlamaDevice::filled(SequenceId id) const {
  if (!id.valid() || static_cast<std::size_t>(id.value) >= sequences_.size()) return 0;
  const Sequence& sequence = sequences_[static_cast<std::size_t>(id.value)];
  return sequence.live ? sequence.filled : 0;
}

// ---- Computing
// -----------------------------------------------------------------------------------

Status LlamaDevice::compute(std::span<ComputeRun> runs) {
  std::uint32_t tokens = 0;
  for (const ComputeRun& run : runs) {
    if (run.tokens.empty() || live_sequence(run.sequence) == nullptr) {
      return Status(
          StatusCode::internal,
          fmt::format("llama device: compute on sequence {}, which is {}", run.sequence.value,
                      run.tokens.empty() ? "given no tokens" : "not alive"));
    }
    tokens += static_cast<std::uint32_t>(run.tokens.size());
  }
  if (tokens == 0 || tokens > options_.batch) {
    return Status(StatusCode::internal, fmt::format("llama device: a batch of {} tokens, limit {}",
                                                    tokens, options_.batch));
  }
  if (!options_.shareable) return decode(runs, tokens);
  if (cells_uncertain_ || cells_used_ + tokens > options_.cells) {
    // What the core has given up frees cells only once its trims are executed.
    while (run_one()) {
    }
    HITIDE_RETURN_IF_ERROR(make_room(tokens));
  }
  return decode(runs, tokens);
}

Status LlamaDevice::decode(std::span<ComputeRun> runs, std::uint32_t tokens) {
  for (int attempt = 0;; ++attempt) {
    for (const ComputeRun& run : runs) {
      HITIDE_RETURN_IF_ERROR(own_tail(*live_sequence(run.sequence)));
    }
    // Owning a tail may have compacted, so ids are read only now.
    batch_->clear();
    std::vector<std::int32_t> outputs;
    for (const ComputeRun& run : runs) {
      const Sequence& sequence = *live_sequence(run.sequence);
      for (std::size_t i = 0; i < run.tokens.size(); ++i) {
        const bool last = i + 1 == run.tokens.size();
        batch_->add(run.tokens[i], sequence.filled + static_cast<std::uint32_t>(i),
                    sequence.physical, last && run.want_logits);
      }
      outputs.push_back(batch_->size() - 1);
    }
    const std::int32_t code = llama_decode(context_.get(), batch_->batch);
    if (code == 1 && attempt == 0 && options_.shareable) {
      // Our count says that there is room: believe llama.cpp and count anew.
      HITIDE_RETURN_IF_ERROR(compact());
      continue;
    }
    if (code != 0) {
      cells_uncertain_ = code != 1;
      return Status(code == 1 ? StatusCode::resource_exhausted : StatusCode::internal,
                    fmt::format("llama.cpp could not compute {} tokens: code {}", tokens, code));
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      live_sequence(runs[i].sequence)->filled += static_cast<std::uint32_t>(runs[i].tokens.size());
      runs[i].logits =
          runs[i].want_logits ? llama_get_logits_ith(context_.get(), outputs[i]) : nullptr;
      if (runs[i].want_logits && runs[i].logits == nullptr) {
        return Status(StatusCode::internal, "llama.cpp computed no logits");
      }
    }
    set_cells_used(cells_used_ + tokens);
    return ok_status();
  }
}

}  // namespace hitide
