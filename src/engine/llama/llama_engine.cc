#include "engine/llama/llama_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <hitide/cache.h>
#include <llama.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/llama/engine_setup.h"
#include "engine/llama/grammar.h"
#include "engine/llama/request_pages.h"
#include "engine/llama/step_loop.h"

namespace hitide {
namespace {

// A step that takes longer than this is taken for a hang.
constexpr Duration kStepLimit = std::chrono::seconds(120);

// ggml ends the process where memory or one of its own checks fails; the callback's place is before
// that, and without one it starts a debugger. The memory for the line may not be there either.
void log_abort(const char* message) {
  try {
    log_error("llama_aborts", {{"error", message}});
  } catch (const std::exception&) {
    return;
  }
}

// Only of vocabularies in which every token stands for bytes of the text: elsewhere one token may
// stand for any number of unknown characters, and 0 is the answer.
std::uint64_t longest_token_bytes(const llama_vocab& vocabulary) {
  const auto type = llama_vocab_type(&vocabulary);
  if (type != LLAMA_VOCAB_TYPE_BPE && type != LLAMA_VOCAB_TYPE_SPM) return 0;
  std::int32_t longest = 0;
  for (TokenId token = 0; token < llama_vocab_n_tokens(&vocabulary); ++token) {
    // Negative: what the piece needs, as there is no room.
    const std::int32_t bytes = llama_token_to_piece(&vocabulary, token, nullptr, 0, 0, true);
    longest = std::max(longest, std::abs(bytes));
  }
  return static_cast<std::uint64_t>(longest);
}

class LlamaEngine final : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, CacheOptions cache,
                                              std::unique_ptr<ObjectStore>* store);
  ~LlamaEngine() override {
    close(SystemClock::instance().now() + std::chrono::seconds(5)).ignore();
    loop_pointer_.store(nullptr);
  }

  EngineInfo info() const override;
  ModelSpec model_spec() const override { return model_spec_; }
  std::vector<TokenId> tokenize(std::string_view text, bool add_special,
                                bool parse_special) const override;
  std::string detokenize(const std::vector<TokenId>& tokens) const override;
  Result<std::string> apply_chat_template(const std::vector<ChatMessage>& messages) const override;
  Result<std::uint64_t> submit(GenerationRequest request, GenerationSink* sink) override;
  void cancel(std::uint64_t generation) override { loop_->cancel(generation); }
  EngineLoad load() const override {
    return {loop_->metrics().running.load(), loop_->metrics().waiting.load()};
  }
  CacheStats cache_stats() const override { return cache_ ? cache_->stats() : CacheStats{}; }
  Result<Explanation> explain(std::string_view id) const override;
  void append_metrics(MetricsText& text) const override;
  Status flush_cache() override;
  Status attach_storage(const StorageOptions& storage, const PolicyOptions& policy,
                        TimePoint deadline) override;
  Status detach_storage(TimePoint deadline) override;
  Result<std::uint64_t> clear_storage(TimePoint deadline) override;
  Status health() const override;
  Status close(TimePoint deadline) override;

 private:
  LlamaEngine() = default;
  Status without_cache() const {
    return Status(StatusCode::failed_precondition, "served without a cache: " + info_.cache_detail);
  }
  void note_storage_backend();
  // From threads of the device's and the cache's users, until both are closed.
  void wake() {
    if (StepLoop* const loop = loop_pointer_.load()) loop->wake();
  }

  ModelSpec model_spec_;
  EngineInfo info_;  // constant, but for the next
  mutable Mutex backend_mutex_;
  std::string storage_backend_ HITIDE_GUARDED_BY(backend_mutex_);
  LlamaModelPtr model_;
  const llama_vocab* vocabulary_ = nullptr;
  std::atomic<StepLoop*> loop_pointer_{nullptr};
  std::unique_ptr<LlamaDevice> device_;
  std::unique_ptr<Cache> cache_;  // null: served without
  std::unique_ptr<PageSource> source_;
  std::unique_ptr<StepLoop> loop_;
  Mutex close_mutex_;  // one close() at a time
};

Result<std::unique_ptr<Engine>> LlamaEngine::open(const EngineOptions& options, CacheOptions cache,
                                                  std::unique_ptr<ObjectStore>* store) {
  ggml_set_abort_callback(log_abort);
  HITIDE_ASSIGN_OR_RETURN(EngineSetup setup, set_up_engine(options, cache));
  std::unique_ptr<LlamaEngine> engine(new LlamaEngine);
  LlamaEngine* const self = engine.get();
  engine->info_ = setup.info;
  engine->model_spec_ = setup.spec;
  engine->model_ = std::move(setup.model);
  engine->vocabulary_ = llama_model_get_vocab(engine->model_.get());
  engine->info_.prompt_bytes_max =
      longest_token_bytes(*engine->vocabulary_) * engine->info_.context_length;
  HITIDE_ASSIGN_OR_RETURN(
      engine->device_,
      LlamaDevice::create(std::move(setup.context), setup.device, [self] { self->wake(); }));
  if (engine->info_.cache_on) {
    if (cache.prefill_tokens_per_s <= 0.0) cache.prefill_tokens_per_s = setup.prefill_tokens_per_s;
    const auto notify = [self] { self->wake(); };
    auto opened = store == nullptr
                      ? Cache::open(cache, setup.spec, *engine->device_, notify)
                      : Cache::open(cache, setup.spec, *engine->device_, std::move(*store), notify);
    if (!opened.ok()) return opened.status();
    engine->cache_ = std::move(opened).value();
    engine->source_ = make_cached_source(*engine->cache_);
  } else {
    engine->source_ = make_plain_source(*engine->device_);
  }
  engine->note_storage_backend();
  StepLoopOptions loop;
  loop.page_size = options.page_size;
  loop.context_length = engine->info_.context_length;
  loop.running_max = options.running_requests_max;
  loop.prefill_chunk_tokens = options.prefill_chunk_tokens;
  loop.prefill_tokens_per_s = setup.prefill_tokens_per_s;
  engine->loop_ =
      std::make_unique<StepLoop>(loop, *engine->device_, *engine->source_, *engine->vocabulary_);
  engine->loop_pointer_.store(engine->loop_.get());
  const EngineInfo info = engine->info();
  log_info("engine_ready", {{"model", info.model_name},
                            {"description", info.model_description},
                            {"context", info.context_length},
                            {"page_size", info.page_size},
                            {"kv_cache_dtype", info.kv_cache_dtype},
                            {"exact", info.exact},
                            {"exact_detail", info.exact_detail},
                            {"cache", info.cache_on ? "on" : "off"},
                            {"storage", info.storage_backend}});
  return std::unique_ptr<Engine>(std::move(engine));
}

// ---- Text
// ----------------------------------------------------------------------------------------

std::vector<TokenId> LlamaEngine::tokenize(std::string_view text, bool add_special,
                                           bool parse_special) const {
  std::vector<TokenId> tokens(text.size() + 8);
  for (;;) {
    const std::int32_t n = llama_tokenize(
        vocabulary_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
        static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
    if (n >= 0) {
      tokens.resize(static_cast<std::size_t>(n));
      return tokens;
    }
    tokens.resize(static_cast<std::size_t>(-std::int64_t{n}));
  }
}

std::string LlamaEngine::detokenize(const std::vector<TokenId>& tokens) const {
  std::string text(tokens.size() * 8 + 16, '\0');
  for (;;) {
    const std::int32_t n =
        llama_detokenize(vocabulary_, tokens.data(), static_cast<std::int32_t>(tokens.size()),
                         text.data(), static_cast<std::int32_t>(text.size()), false, true);
    if (n >= 0) {
      text.resize(static_cast<std::size_t>(n));
      return valid_utf8(text);
    }
    text.resize(static_cast<std::size_t>(-std::int64_t{n}));
  }
}

Result<std::string> LlamaEngine::apply_chat_template(
    const std::vector<ChatMessage>& messages) const {
  const char* const chat_template = llama_model_chat_template(model_.get(), nullptr);
  if (chat_template == nullptr) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("model {} has no chat template: use completions", info_.model_name));
  }
  std::vector<llama_chat_message> chat;
  std::size_t bytes = 256;
  for (const ChatMessage& message : messages) {
    const bool developer = message.role == "developer";  // OpenAI's newer word for system
    if (!developer && message.role != "system" && message.role != "user" &&
        message.role != "assistant") {
      return Status(
          StatusCode::invalid_argument,
          fmt::format("role '{}' is not one of system, developer, user, assistant", message.role));
    }
    chat.push_back({developer ? "system" : message.role.c_str(), message.content.c_str()});
    bytes += 2 * (message.role.size() + message.content.size()) + 64;
  }
  for (;;) {
    std::string text(bytes, '\0');
    const std::int32_t n =
        llama_chat_apply_template(chat_template, chat.data(), chat.size(), true, text.data(),
                                  static_cast<std::int32_t>(text.size()));
    if (n < 0) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("the chat template of model {} is not one that llama.cpp knows: "
                                "use completions",
                                info_.model_name));
    }
    if (static_cast<std::size_t>(n) <= text.size()) {
      text.resize(static_cast<std::size_t>(n));
      return text;
    }
    bytes = static_cast<std::size_t>(n);
  }
}

// ---- Requests
// ------------------------------------------------------------------------------------

Result<std::uint64_t> LlamaEngine::submit(GenerationRequest request, GenerationSink* sink) {
  const std::size_t count = request.prompt.size();
  if (count == 0) return Status(StatusCode::invalid_argument, "the prompt has no tokens");
  if (count >= info_.context_length) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the prompt has {} tokens, the context takes {} with the answer",
                              count, info_.context_length));
  }
  const std::int32_t vocabulary = llama_vocab_n_tokens(vocabulary_);
  const auto outside = [&](TokenId token) { return token < 0 || token >= vocabulary; };
  const auto refuse = [&](std::string_view what, TokenId token, std::size_t at) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}token {} at {} is outside the vocabulary of {}", what, token, at,
                              vocabulary));
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (outside(request.prompt[i])) return refuse("", request.prompt[i], i);
  }
  for (std::size_t i = 0; i < request.stop_tokens.size(); ++i) {
    if (outside(request.stop_tokens[i])) return refuse("stop_tokens: ", request.stop_tokens[i], i);
  }
  const auto& biases = request.sampling.logit_bias;
  for (std::size_t i = 0; i < biases.size(); ++i) {
    if (outside(biases[i].first)) return refuse("logit_bias: ", biases[i].first, i);
  }
  std::unique_ptr<Grammar> grammar;
  if (!request.grammar.empty()) {
    auto parsed = Grammar::parse(*vocabulary_, request.grammar);
    if (!parsed.ok()) return parsed.status().with_context("grammar");
    grammar = std::move(*parsed);
    request.grammar = {};
  }
  return loop_->submit(std::move(request), sink, std::move(grammar));
}

Result<Explanation> LlamaEngine::explain(std::string_view id) const {
  if (cache_) return cache_->explain(id);
  return Status(StatusCode::not_found, "served without a cache: " + info_.cache_detail);
}

Status LlamaEngine::flush_cache() { return cache_ ? cache_->flush() : without_cache(); }

EngineInfo LlamaEngine::info() const {
  EngineInfo info = info_;
  const MutexLock lock(backend_mutex_);
  info.storage_backend = storage_backend_;
  return info;
}

void LlamaEngine::note_storage_backend() {
  std::string backend = cache_ ? cache_->stats().storage_backend : "none";
  const MutexLock lock(backend_mutex_);
  storage_backend_ = std::move(backend);
}

Status LlamaEngine::attach_storage(const StorageOptions& storage, const PolicyOptions& policy,
                                   TimePoint deadline) {
  if (!cache_) return without_cache();
  Status status = cache_->attach_storage(storage, policy, deadline);
  note_storage_backend();
  return status;
}

Status LlamaEngine::detach_storage(TimePoint deadline) {
  if (!cache_) return without_cache();
  Status status = cache_->detach_storage(deadline);
  note_storage_backend();
  return status;
}

Result<std::uint64_t> LlamaEngine::clear_storage(TimePoint deadline) {
  if (!cache_) return without_cache();
  return cache_->clear_storage(deadline);
}

Status LlamaEngine::health() const {
  if (loop_->stopped()) return Status(StatusCode::unavailable, "the step loop has stopped");
  const Duration step = loop_->current_step();
  if (step > kStepLimit) {
    return Status(StatusCode::unavailable,
                  fmt::format("the step under way has taken {:.0f} s", to_seconds(step)));
  }
  return ok_status();
}

Status LlamaEngine::close(TimePoint deadline) {
  const MutexLock lock(close_mutex_);
  if (!loop_) return ok_status();
  loop_->cancel_all();
  // The loop goes on: backups are copied out of the context by its thread.
  Status status;
  if (cache_) {
    status = cache_->close(deadline);
    if (status.code() == StatusCode::failed_precondition) status = ok_status();  // closed already
  }
  loop_->stop();
  return status;
}

void LlamaEngine::append_metrics(MetricsText& text) const {
  const StepLoopMetrics& loop = loop_->metrics();
  const LlamaDeviceMetrics& device = device_->metrics();
  const auto count = [](const Counter& counter) { return static_cast<double>(counter.value()); };
  text.gauge("hitide_engine_requests_running", "Requests admitted and not done.",
             loop.running.load());
  text.gauge("hitide_engine_requests_waiting", "Requests not admitted yet.", loop.waiting.load());
  static constexpr const char* kReasons[] = {"stop", "length", "cancelled", "failed"};
  for (std::size_t i = 0; i < std::size(kReasons); ++i) {
    text.counter("hitide_engine_requests_total", "Requests done, by the reason of their end.",
                 count(loop.finished[i]), MetricsText::label("reason", kReasons[i]));
  }
  text.counter("hitide_engine_prefill_tokens_total", "Prompt tokens computed.",
               count(loop.prefill_tokens));
  text.counter("hitide_engine_decode_tokens_total", "Generated tokens computed.",
               count(loop.decode_tokens));
  text.counter("hitide_engine_preemptions_total", "Requests sent back to the queue for room.",
               count(loop.preemptions));
  text.counter("hitide_engine_failed_steps_total", "Steps that computed nothing.",
               count(loop.failed_steps));
  text.histogram("hitide_engine_step_seconds", "Time to compute one batch.", loop.step_seconds);
  text.gauge("hitide_engine_cells_used", "Cells of the context in use, dead ones included.",
             device.cells_used.load());
  text.counter("hitide_engine_pages_saved_total", "Pages copied from the context to the host.",
               count(device.pages_saved));
  text.counter("hitide_engine_pages_restored_total", "Pages copied from the host to the context.",
               count(device.pages_restored));
  text.counter("hitide_engine_page_copy_failures_total", "Page copies that failed.",
               count(device.copy_failures));
  text.counter("hitide_engine_protocol_errors_total",
               "Device commands that did not fit what the device holds.",
               count(device.protocol_errors));
  text.counter("hitide_engine_compaction_cells_total", "Cells moved by compactions.",
               count(device.compaction_cells));
  text.histogram("hitide_engine_compaction_seconds", "Pause of all requests by a compaction.",
                 device.compaction_seconds);
  text.gauge("hitide_engine_compaction_seconds_max", "Longest compaction so far.",
             to_seconds(Duration(device.compaction_ns_max.load())));
  if (cache_) text.lines(cache_->storage_metrics());
}

}  // namespace

namespace {

Result<std::unique_ptr<Engine>> open_or_say_why(const EngineOptions& options,
                                                const CacheOptions& cache,
                                                std::unique_ptr<ObjectStore>* store) {
  try {
    return LlamaEngine::open(options, cache, store);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("there is not enough memory for {} and its caches; see "
                              "--context-length, --device-tokens and --hicache-size",
                              options.model_path));
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, fmt::format("{}: {}", options.model_path, error.what()));
  }
}

}  // namespace

Result<std::unique_ptr<Engine>> open_llama_engine(const EngineOptions& options,
                                                  const CacheOptions& cache) {
  return open_or_say_why(options, cache, nullptr);
}

Result<std::unique_ptr<Engine>> open_llama_engine(const EngineOptions& options,
                                                  const CacheOptions& cache,
                                                  std::unique_ptr<ObjectStore> store) {
  return open_or_say_why(options, cache, &store);
}

}  // namespace hitide
