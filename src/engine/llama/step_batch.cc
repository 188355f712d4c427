// StepLoop: what one step computes, and what becomes of it.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <llama.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/llama/logprobs.h"
#include "engine/llama/step_loop_internal.h"

namespace hitide {
namespace {

// A chunk of prefill should take no longer: cancelling waits for it.
constexpr double kChunkSeconds = 0.8;
// A running request that finds no room to grow lets this pass, for copies to end, before another
// is sent back to the queue, or before it ends by itself when it is alone.
constexpr Duration kGrowPatience = std::chrono::milliseconds(100);
constexpr Duration kGrowPatienceAlone = std::chrono::seconds(5);

TimePoint clock_now() { return SystemClock::instance().now(); }

}  // namespace

std::uint32_t StepLoop::chunk_tokens(bool decoding) const {
  const std::uint32_t page = options_.page_size;
  std::uint32_t tokens = options_.prefill_chunk_tokens;
  if (prefill_tokens_per_s_ > 0.0) {
    const double timely = prefill_tokens_per_s_ * kChunkSeconds;
    if (timely < tokens) tokens = static_cast<std::uint32_t>(timely);
  }
  // While others wait for their next token, prefill goes in smaller steps.
  if (decoding) tokens = std::min(tokens, options_.prefill_chunk_tokens / 4);
  return std::max(page, tokens / page * page);
}

// One token for each request that decodes; then prefill, oldest first, in chunks that end on page
// boundaries, so that a page is always computed in the same steps.
std::vector<StepLoop::Work> StepLoop::plan_batch() {
  std::vector<Work> batch;
  for (const GenerationPtr& owned : running_) {
    Generation& generation = *owned;
    if (generation.done || !generation.decoding()) continue;
    if (reserve_for(generation, generation.size())) {
      batch.push_back({.generation = &generation, .end = generation.size()});
    }
  }
  const std::uint32_t chunk = chunk_tokens(!batch.empty());
  std::uint32_t left = chunk;
  for (const GenerationPtr& owned : running_) {
    Generation& generation = *owned;
    if (generation.done || !generation.started || generation.decoding()) continue;
    std::uint32_t end = std::min(generation.size(), generation.computed + left);
    if (end < generation.size()) end = end / options_.page_size * options_.page_size;
    if (end <= generation.computed) break;
    if (!reserve_for(generation, end)) continue;
    batch.push_back({.generation = &generation, .end = end});
    left -= end - generation.computed;
    if (left == 0) break;
  }
  return batch;
}

// Pages for `tokens` tokens. False: not in this step, or not at all (then the request is done).
bool StepLoop::reserve_for(Generation& generation, std::uint32_t tokens) {
  if (generation.done) return false;
  const std::uint32_t page = options_.page_size;
  const std::uint32_t paged = (generation.reserved + page - 1) / page * page;
  if (tokens <= paged) return true;
  const Status status = generation.pages->reserve(tokens);
  if (status.ok()) {
    generation.reserved = tokens;
    generation.stalled_since = TimePoint::max();
    return true;
  }
  if (status.code() != StatusCode::resource_exhausted) {
    finish(generation, FinishReason::failed, status);
    return false;
  }
  const TimePoint now = clock_now();
  if (generation.stalled_since == TimePoint::max()) generation.stalled_since = now;
  const Duration stalled = now - generation.stalled_since;
  const bool alone = std::count_if(running_.begin(), running_.end(),
                                   [](const GenerationPtr& g) { return !g->done; }) <= 1;
  if (alone && stalled > kGrowPatienceAlone) {
    finish(generation, FinishReason::length);
  } else if (!alone && stalled > kGrowPatience) {
    preempt_youngest(generation);
  }
  return false;
}

// The youngest running request goes back to the queue; what it has computed stays cached, and it
// goes on from there. Its client sees a delay.
void StepLoop::preempt_youngest(const Generation& needy) {
  const auto youngest = std::max_element(
      running_.begin(), running_.end(), [](const GenerationPtr& a, const GenerationPtr& b) {
        // Those that have ended already are no candidates.
        return std::pair(!a->done, a->id) < std::pair(!b->done, b->id);
      });
  Generation& generation = **youngest;
  metrics_.preemptions.add();
  log_limited(LogLevel::info, "preempted", std::chrono::seconds(1),
              {{"generation", generation.id}, {"for", needy.id}});
  generation.pages->finish(std::span<const TokenId>(generation.tokens)
                               .first(generation.started ? generation.computed : 0));
  generation.pages.reset();
  generation.sequence = SequenceId{};
  generation.computed = generation.reserved = 0;
  generation.admitted = generation.started = generation.committed = false;
  generation.stalled_since = TimePoint::max();
  generation.preempted = true;
}

void StepLoop::compute(std::vector<Work>& batch) {
  // A request that a later one has sent back is no longer part of it.
  std::erase_if(
      batch, [](const Work& work) { return work.generation->done || work.generation->preempted; });
  std::vector<ComputeRun> runs;
  std::uint32_t prefill = 0;
  std::uint32_t decode = 0;
  for (const Work& work : batch) {
    const Generation& generation = *work.generation;
    const std::uint32_t count = work.end - generation.computed;
    (generation.decoding() ? decode : prefill) += count;
    runs.push_back({.sequence = generation.sequence,
                    .tokens = std::span(generation.tokens).subspan(generation.computed, count),
                    .want_logits = work.end == generation.size()});
  }
  if (runs.empty()) return;
  const TimePoint begin = clock_now();
  const Status status = device_.compute(runs);
  const Duration time = clock_now() - begin;
  if (!status.ok()) {
    metrics_.failed_steps.add();
    for (const Work& work : batch) finish(*work.generation, FinishReason::failed, status);
    return;
  }
  metrics_.step_seconds.observe(to_seconds(time));
  metrics_.prefill_tokens.add(prefill);
  metrics_.decode_tokens.add(decode);
  note_speed(prefill, decode, time);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    advance(*batch[i].generation, batch[i].end, runs[i].logits);
  }
}

void StepLoop::requeue_preempted() {
  for (std::size_t i = running_.size(); i > 0; --i) {
    GenerationPtr& generation = running_[i - 1];
    if (!generation->preempted) continue;
    generation->preempted = false;
    waiting_.push_front(std::move(generation));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i - 1));
  }
}

void StepLoop::note_speed(std::uint32_t prefill, std::uint32_t decode, Duration time) {
  if (prefill < options_.page_size || decode * 8 > prefill) return;
  pages_.note_prefill(prefill, time);
  const double speed = prefill / std::max(to_seconds(time), 1e-6);
  prefill_tokens_per_s_ =
      prefill_tokens_per_s_ > 0.0 ? 0.7 * prefill_tokens_per_s_ + 0.3 * speed : speed;
}

// The request's tokens [computed, end) are in place; with logits its next token can be chosen.
void StepLoop::advance(Generation& generation, std::uint32_t end, const float* logits) {
  generation.computed = end;
  if (logits == nullptr) return;
  GenerationResult& result = generation.result;
  if (result.tokens.empty()) result.first_token_time = clock_now() - generation.submitted;
  const std::span<const float> row(logits, vocabulary_size_);
  if (generation.request.return_logits) result.logits.emplace_back(row.begin(), row.end());
  const TokenId token = generation.sampler.pick(row);
  if (token == kNoToken) {
    finish(generation, FinishReason::failed,
           Status(StatusCode::invalid_argument,
                  "the grammar has come to a place where no token of the model fits"));
    return;
  }
  if (ends(generation, token)) {
    finish(generation, FinishReason::stop);
    return;
  }
  if (!generation.sampler.accept(token)) {
    finish(generation, FinishReason::failed,
           Status(StatusCode::internal, "the grammar refused a token that it had allowed"));
    return;
  }
  if (generation.request.top_logprobs) tell_logprob(generation, row, token);
  result.tokens.push_back(token);
  generation.tokens.push_back(token);
  const std::string text = generation.text.push(piece_of(token));
  if (!text.empty()) generation.sink->on_text(text);
  if (generation.text.stopped()) {
    finish(generation, FinishReason::stop);
    return;
  }
  const std::uint32_t limit = generation.request.tokens_max;
  if ((limit > 0 && result.tokens.size() >= limit) ||
      generation.size() >= options_.context_length) {
    finish(generation, FinishReason::length);
    return;
  }
  if (!generation.committed) {
    // Others that share the prompt need not wait for the end of this answer.
    generation.committed = true;
    const Status status =
        generation.pages->commit(std::span<const TokenId>(generation.tokens).first(end));
    if (!status.ok()) {
      log_limited(LogLevel::warning, "commit_failed", std::chrono::seconds(1),
                  {{"error", status.to_string()}});
    }
  }
}

bool StepLoop::ends(const Generation& generation, TokenId token) const {
  const GenerationRequest& request = generation.request;
  if (!request.ignore_eos && llama_vocab_is_eog(&vocabulary_, token)) return true;
  return std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) !=
         request.stop_tokens.end();
}

void StepLoop::tell_logprob(Generation& generation, std::span<const float> logits,
                            TokenId token) const {
  TokenLogprob logprob = logprob_of(logits, token, *generation.request.top_logprobs);
  logprob.bytes = piece_of(token, true);
  for (TokenLikelihood& other : logprob.top) other.bytes = piece_of(other.token, true);
  generation.sink->on_logprob(std::move(logprob));
}

std::string StepLoop::piece_of(TokenId token, bool names) const {
  std::string piece(64, '\0');
  for (;;) {
    const std::int32_t n = llama_token_to_piece(&vocabulary_, token, piece.data(),
                                                static_cast<std::int32_t>(piece.size()), 0, names);
    if (n >= 0) {
      piece.resize(static_cast<std::size_t>(n));
      return piece;
    }
    piece.resize(static_cast<std::size_t>(-n));
  }
}

}  // namespace hitide
