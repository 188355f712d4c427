// StepLoop: the one thread that owns the context. Each step runs device commands, lets waiting
// requests in, computes one batch for all running ones, and hands out text.
//
//   submit --> waiting --open--> asked for --admit--> loading --> computing --> done
//                 ^                                                   |
//                 +-------------- preempted: no room to grow <--------+
//
// Threading: submit(), cancel(), wake(), stop() and the counters may be used from any thread; all
// sinks are called on the loop's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <hitide/result.h>

#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/llama/grammar.h"
#include "engine/llama/llama_device.h"
#include "engine/llama/request_pages.h"
#include "engine/llama/sampler.h"
#include "engine/llama/text_stream.h"

struct llama_vocab;

namespace hitide {

struct StepLoopOptions {
  std::uint32_t page_size = 32;
  std::uint32_t context_length = 0;  // tokens of one request, prompt and answer
  std::uint32_t running_max = 1;
  std::uint32_t waiting_max = 1024;
  std::uint32_t prefill_chunk_tokens = 128;  // the device takes running_max tokens more
  double prefill_tokens_per_s = 0.0;         // first guess; 0: unknown
};

struct StepLoopMetrics {
  Histogram step_seconds{kSecondsBounds};
  Counter prefill_tokens, decode_tokens, preemptions, failed_steps;
  Counter finished[4];  // by FinishReason
  std::atomic<std::uint32_t> running{0}, waiting{0};
};

class StepLoop {
 public:
  // Everything must outlive the loop.
  StepLoop(const StepLoopOptions& options, LlamaDevice& device, PageSource& pages,
           const llama_vocab& vocabulary);
  ~StepLoop();  // stop()
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // As Engine::submit; the request is valid, and `grammar` is the one that it names.
  Result<std::uint64_t> submit(GenerationRequest request, GenerationSink* sink,
                               std::unique_ptr<Grammar> grammar = nullptr);
  void cancel(std::uint64_t id);
  // Something may have changed: a command was submitted, a request has become ready.
  void wake();

  // Takes no more requests and ends all as cancelled, then returns; device commands are still run.
  void cancel_all();
  // cancel_all(), then ends the thread.
  void stop();

  const StepLoopMetrics& metrics() const { return metrics_; }
  // How long the step that is under way has taken so far; zero between steps and while asleep.
  Duration current_step() const;
  bool stopped() const;

 private:
  struct Generation;
  using GenerationPtr = std::unique_ptr<Generation>;
  // What one step computes of one request.
  struct Work {
    Generation* generation = nullptr;
    std::uint32_t end = 0;  // tokens in place afterwards
  };

  void run();
  bool step();
  void sleep_until_woken();
  void take_orders();
  void apply_cancellations();

  void open_and_admit();
  bool admit(Generation& generation);
  void start_loaded();
  bool open_waiting(Generation& generation);
  void close_younger(const Generation& kept);

  std::vector<Work> plan_batch();
  std::uint32_t chunk_tokens(bool decoding) const;
  bool reserve_for(Generation& generation, std::uint32_t tokens);
  void preempt_youngest(const Generation& needy);
  void compute(std::vector<Work>& batch);
  void note_speed(std::uint32_t prefill, std::uint32_t decode, Duration time);
  void requeue_preempted();
  void advance(Generation& generation, std::uint32_t end, const float* logits);
  // Whether the token ends the generation and is no part of it.
  bool ends(const Generation& generation, TokenId token) const;
  void tell_logprob(Generation& generation, std::span<const float> logits, TokenId token) const;
  void finish(Generation& generation, FinishReason reason, Status status = {});
  void forget_finished();
  // `names`: tokens that stand for no text are written by their names.
  std::string piece_of(TokenId token, bool names = false) const;

  const StepLoopOptions options_;
  LlamaDevice& device_;
  PageSource& pages_;
  const llama_vocab& vocabulary_;
  const std::uint32_t vocabulary_size_;
  const std::vector<TokenId> end_tokens_;  // of the vocabulary
  StepLoopMetrics metrics_;

  mutable Mutex mutex_;
  CondVar changed_;  // of woken_, orders and ended_
  bool woken_ HITIDE_GUARDED_BY(mutex_) = false;
  bool closing_ HITIDE_GUARDED_BY(mutex_) = false;
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;
  bool drained_ HITIDE_GUARDED_BY(mutex_) = false;  // closing and nothing is left
  bool ended_ HITIDE_GUARDED_BY(mutex_) = false;
  std::uint64_t next_id_ HITIDE_GUARDED_BY(mutex_) = 1;
  std::size_t pending_ HITIDE_GUARDED_BY(mutex_) = 0;  // submitted and not done
  std::deque<GenerationPtr> incoming_ HITIDE_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> cancellations_ HITIDE_GUARDED_BY(mutex_);

  std::atomic<std::int64_t> step_began_ns_{0};  // 0: no step under way

  // Loop thread only.
  std::deque<GenerationPtr> waiting_;   // by age, preempted ones in front
  std::vector<GenerationPtr> running_;  // admitted, by admission
  double prefill_tokens_per_s_ = 0.0;
  std::uint32_t steps_ = 0;
  bool cancel_everything_ = false;
  bool quiet_ = false;  // nothing happened during the last sleep

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hitide
