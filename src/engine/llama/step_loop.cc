// StepLoop: the thread, orders from other threads, and letting requests in. Computing:
// step_batch.cc.
#include "engine/llama/step_loop.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <fmt/format.h>
#include <llama.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/llama/step_loop_internal.h"

namespace hitide {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Copies between two steps; more would be felt as a pause between two tokens.
constexpr Duration kCopyBudgetBusy = milliseconds(2);
constexpr Duration kLoadBudgetBusy = milliseconds(20);  // a request waits for its first token
constexpr Duration kCopyBudgetIdle = milliseconds(50);
// A request that alone finds no room is given up after this: backups end sooner.
constexpr Duration kAdmissionPatience = seconds(30);
// Pause while requests wait for what no thread announces: pages that a finished copy sets free.
constexpr Duration kStalledPause = milliseconds(2);
constexpr Duration kIdlePause = seconds(1);
// Dead cells cost time in every step, a compaction stops everybody once: it is worth it for so many
// of them, when they are a quarter of all. They are counted every so many steps.
constexpr std::uint32_t kDeadCellsMany = 1024;
constexpr std::uint32_t kStepsBetweenCounts = 32;

TimePoint clock_now() { return SystemClock::instance().now(); }

std::vector<TokenId> ends_of(const llama_vocab& vocabulary) {
  std::vector<TokenId> ends;
  for (TokenId token = 0; token < llama_vocab_n_tokens(&vocabulary); ++token) {
    if (llama_vocab_is_eog(&vocabulary, token)) ends.push_back(token);
  }
  return ends;
}

}  // namespace

StepLoop::StepLoop(const StepLoopOptions& options, LlamaDevice& device, PageSource& pages,
                   const llama_vocab& vocabulary)
    : options_(options),
      device_(device),
      pages_(pages),
      vocabulary_(vocabulary),
      vocabulary_size_(static_cast<std::uint32_t>(llama_vocab_n_tokens(&vocabulary))),
      end_tokens_(ends_of(vocabulary)),
      prefill_tokens_per_s_(options.prefill_tokens_per_s),
      thread_([this] { run(); }) {}

StepLoop::~StepLoop() { stop(); }

// ---- Any thread
// ----------------------------------------------------------------------------------

Result<std::uint64_t> StepLoop::submit(GenerationRequest request, GenerationSink* sink,
                                       std::unique_ptr<Grammar> grammar) {
  std::uint64_t seed = 0;
  if (!request.sampling.seed && request.sampling.temperature > 0.0f) seed = std::random_device{}();
  auto generation = std::make_unique<Generation>(0, std::move(request), sink, clock_now(), seed);
  std::vector<TokenId> ends = generation->request.stop_tokens;
  if (!generation->request.ignore_eos) {
    ends.insert(ends.end(), end_tokens_.begin(), end_tokens_.end());
  }
  generation->sampler.begin(generation->tokens, std::move(ends));
  generation->sampler.follow(std::move(grammar));
  const MutexLock lock(mutex_);
  if (closing_) return Status(StatusCode::failed_precondition, "the engine is closed");
  if (pending_ >= std::size_t{options_.waiting_max} + options_.running_max) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("{} requests are waiting already", options_.waiting_max));
  }
  const std::uint64_t id = next_id_++;
  generation->id = id;
  incoming_.push_back(std::move(generation));
  ++pending_;
  woken_ = true;
  changed_.notify_all();
  return id;
}

void StepLoop::cancel(std::uint64_t id) {
  const MutexLock lock(mutex_);
  cancellations_.push_back(id);
  woken_ = true;
  changed_.notify_all();
}

void StepLoop::wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void StepLoop::cancel_all() {
  MutexLock lock(mutex_);
  closing_ = true;
  woken_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this]() HITIDE_REQUIRES(mutex_) { return drained_ || ended_; });
}

void StepLoop::stop() {
  cancel_all();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    woken_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Duration StepLoop::current_step() const {
  const std::int64_t began = step_began_ns_.load();
  return began == 0 ? Duration::zero() : clock_now().time_since_epoch() - Duration(began);
}

bool StepLoop::stopped() const {
  const MutexLock lock(mutex_);
  return ended_;
}

// ---- The thread
// ----------------------------------------------------------------------------------

void StepLoop::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) break;
    }
    bool busy = false;
    step_began_ns_.store(clock_now().time_since_epoch().count());
    try {
      busy = step();
    } catch (const std::exception& error) {
      // Whatever it was (memory, most likely): the requests of this step are lost, not the loop.
      metrics_.failed_steps.add();
      log_limited(LogLevel::error, "step_failed", seconds(1), {{"error", error.what()}});
      for (const GenerationPtr& generation : running_) {
        finish(*generation, FinishReason::failed, Status(StatusCode::internal, error.what()));
      }
    }
    forget_finished();
    step_began_ns_.store(0);
    if (!busy) sleep_until_woken();
  }
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// Whether another step should follow at once.
bool StepLoop::step() {
  take_orders();
  const bool anyone = !running_.empty() || !waiting_.empty();
  const bool commands_left = anyone ? device_.run_commands(kCopyBudgetBusy, kLoadBudgetBusy)
                                    : device_.run_commands(kCopyBudgetIdle);
  if (++steps_ % kStepsBetweenCounts == 0 && device_.cells_used() > kDeadCellsMany) {
    const std::uint32_t dead = device_.cells_dead();
    if (dead >= kDeadCellsMany && dead * 4 >= device_.cells_used()) device_.compact().ignore();
  }
  open_and_admit();
  start_loaded();
  std::vector<Work> batch = plan_batch();
  const bool computing = !batch.empty();
  if (computing) compute(batch);
  requeue_preempted();
  if (computing) return true;
  // A quiet moment: dead cells cost time in every token.
  if (quiet_ && !anyone && !commands_left && device_.cells_dead() * 8 > device_.cells_used()) {
    device_.compact().ignore();  // logged there; what was lost is accounted in filled()
  }
  return commands_left;
}

void StepLoop::sleep_until_woken() {
  const bool stalled = !running_.empty() || !waiting_.empty();
  MutexLock lock(mutex_);
  quiet_ = !changed_.wait_for(lock, stalled ? kStalledPause : kIdlePause,
                              [this]() HITIDE_REQUIRES(mutex_) { return woken_; });
  woken_ = false;
}

void StepLoop::take_orders() {
  std::deque<GenerationPtr> incoming;
  {
    const MutexLock lock(mutex_);
    incoming.swap(incoming_);
    cancel_everything_ = closing_;
  }
  for (GenerationPtr& generation : incoming) waiting_.push_back(std::move(generation));
  apply_cancellations();
  forget_finished();
  if (cancel_everything_) {
    const MutexLock lock(mutex_);
    if (incoming_.empty() && !drained_) {
      drained_ = true;
      changed_.notify_all();
    }
  }
}

void StepLoop::apply_cancellations() {
  std::vector<std::uint64_t> ids;
  {
    const MutexLock lock(mutex_);
    ids.swap(cancellations_);
  }
  if (ids.empty() && !cancel_everything_) return;
  const auto end_if_named = [&](Generation& generation) {
    if (cancel_everything_ || std::find(ids.begin(), ids.end(), generation.id) != ids.end()) {
      finish(generation, FinishReason::cancelled);
    }
  };
  for (const GenerationPtr& generation : running_) end_if_named(*generation);
  for (const GenerationPtr& generation : waiting_) end_if_named(*generation);
}

void StepLoop::forget_finished() {
  const auto done = [](const GenerationPtr& generation) { return generation->done; };
  const std::size_t forgotten = std::erase_if(running_, done) + std::erase_if(waiting_, done);
  metrics_.running.store(static_cast<std::uint32_t>(running_.size()));
  metrics_.waiting.store(static_cast<std::uint32_t>(waiting_.size()));
  if (forgotten == 0) return;
  const MutexLock lock(mutex_);
  pending_ -= forgotten;
}

// ---- Letting requests in
// -------------------------------------------------------------------------

// Opens the oldest requests, so that storage is asked while others compute, and admits in order of
// age; a request that still waits for storage may be passed, one that waits for room may not.
void StepLoop::open_and_admit() {
  // Room that comes free is for those that run: a newcomer would take it from them again.
  const bool stalled = std::any_of(running_.begin(), running_.end(), [](const GenerationPtr& g) {
    return g->stalled_since != TimePoint::max();
  });
  const std::size_t window = std::size_t{options_.running_max} * 2;
  std::vector<Generation*> admitted;
  for (std::size_t i = 0; i < waiting_.size() && i < window; ++i) {
    Generation& generation = *waiting_[i];
    if (generation.done || (!generation.pages && !open_waiting(generation))) continue;
    const PrefixState state = generation.pages->state();
    if (state == PrefixState::closed) {
      finish(generation, FinishReason::failed,
             Status(StatusCode::unavailable, "the cache was closed while the request waited"));
    }
    if (state != PrefixState::ready) continue;
    if (stalled || running_.size() + admitted.size() >= options_.running_max) break;
    if (!admit(generation)) {
      if (generation.done) continue;
      break;
    }
    admitted.push_back(&generation);
  }
  for (Generation* const generation : admitted) {
    const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const GenerationPtr& g) { return g.get() == generation; });
    running_.push_back(std::move(*at));
    waiting_.erase(at);
  }
}

bool StepLoop::open_waiting(Generation& generation) {
  PrefixRequest prefix;
  prefix.tokens = generation.tokens;
  if (generation.request.extra_key) prefix.extra_key = *generation.request.extra_key;
  if (generation.request.cache_salt) prefix.cache_salt = *generation.request.cache_salt;
  prefix.label = generation.request.label;
  prefix.priority = generation.request.priority;
  auto opened = pages_.open(prefix);
  if (!opened.ok()) {
    finish(generation, FinishReason::failed, opened.status());
    return false;
  }
  generation.pages = std::move(opened).value();
  return true;
}

bool StepLoop::admit(Generation& generation) {
  const Result<SequenceId> sequence = generation.pages->admit();
  if (sequence.ok()) {
    generation.sequence = sequence.value();
    generation.ticket = device_.submitted();
    generation.reserved = generation.size();
    generation.admitted = true;
    generation.stalled_since = TimePoint::max();
    return true;
  }
  if (sequence.status().code() != StatusCode::resource_exhausted) {
    finish(generation, FinishReason::failed, sequence.status());
    return false;
  }
  const TimePoint now = clock_now();
  const bool others_run =
      !running_.empty() || std::any_of(waiting_.begin(), waiting_.end(),
                                       [](const GenerationPtr& g) { return g->admitted; });
  if (others_run) {
    generation.stalled_since = TimePoint::max();  // room comes when those end
    return false;
  }
  close_younger(generation);  // what they pin cannot be evicted
  if (generation.stalled_since == TimePoint::max()) generation.stalled_since = now;
  if (now - generation.stalled_since > kAdmissionPatience) {
    finish(generation, FinishReason::failed,
           sequence.status().with_context("no room although nothing else runs"));
  }
  return false;
}

void StepLoop::close_younger(const Generation& kept) {
  for (const GenerationPtr& other : waiting_) {
    if (other.get() != &kept && other->pages) {
      other->pages->finish({});
      other->pages.reset();
    }
  }
}

// Admitted requests whose pages are in place begin to compute.
void StepLoop::start_loaded() {
  const std::uint64_t executed = device_.executed();
  for (const GenerationPtr& owned : running_) {
    Generation& generation = *owned;
    if (generation.started || generation.done) continue;
    const PrefixState state = generation.pages->state();
    if (state == PrefixState::closed) {
      finish(generation, FinishReason::failed,
             Status(StatusCode::unavailable, "the cache was closed while the request loaded"));
      continue;
    }
    if (state != PrefixState::running || executed < generation.ticket) continue;
    // The device knows best; it holds less only after a failure that it has logged.
    generation.computed =
        std::min(generation.pages->cached_tokens(), device_.filled(generation.sequence));
    generation.started = true;
    if (generation.reported) continue;
    generation.reported = true;
    generation.result.cached_tokens = generation.computed;
    generation.result.explanation_id = generation.pages->explanation_id();
    generation.result.queue_time = clock_now() - generation.submitted;
    generation.sink->on_admitted(generation.result.explanation_id);
  }
}

// ---- The end
// -------------------------------------------------------------------------------------

// Tells the sink and gives back what the request holds; the object is dropped by forget_finished().
void StepLoop::finish(Generation& generation, FinishReason reason, Status status) {
  if (generation.done) return;
  generation.done = true;
  if (generation.pages) {
    // What has been computed stays cached, also that of a prompt whose client went away.
    const bool keep = reason != FinishReason::failed && generation.started;
    generation.pages->finish(
        std::span<const TokenId>(generation.tokens).first(keep ? generation.computed : 0));
    generation.pages.reset();
  }
  if (reason == FinishReason::stop || reason == FinishReason::length) {
    const std::string rest = generation.text.finish();
    if (!rest.empty()) generation.sink->on_text(rest);
  }
  GenerationResult& result = generation.result;
  result.finish = reason;
  result.status = std::move(status);
  result.total_time = clock_now() - generation.submitted;
  if (!result.explanation_id.empty()) pages_.describe(result.explanation_id, result);
  metrics_.finished[static_cast<std::size_t>(reason)].add();
  if (reason == FinishReason::failed) {
    log_limited(LogLevel::warning, "generation_failed", seconds(1),
                {{"label", generation.request.label}, {"error", result.status.to_string()}});
  }
  generation.sink->on_done(std::move(result));
}

}  // namespace hitide
