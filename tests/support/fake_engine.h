// An engine without a model, for tests of what stands above the seam: it says scripted pieces of
// text, can be held before admission or before the text, and remembers what it was asked.
//
// One token is one byte of the prompt. Threading: any; the sinks are called on its own thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/engine.h"

namespace hitide::testing {

class FakeEngine final : public Engine {
 public:
  enum class Hold { nothing, admission, text };
  struct Script {
    std::vector<std::string> pieces = {"Hello", ", ", "world"};
    FinishReason finish = FinishReason::stop;
    Status failure;  // with finish failed
    bool fails_before_admission = false;
  };

  FakeEngine() : thread_([this] { run(); }) { storage_.backend = "memory"; }
  ~FakeEngine() override { close(kNoDeadline).ignore(); }

  void set_script(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void hold(Hold hold) {
    const std::lock_guard lock(mutex_);
    hold_ = hold;
    changed_.notify_all();
  }
  void set_health(Status health) {
    const std::lock_guard lock(mutex_);
    health_ = std::move(health);
  }
  void set_submit_failure(Status failure) {
    const std::lock_guard lock(mutex_);
    submit_failure_ = std::move(failure);
  }
  void set_flush_result(Status result) {
    const std::lock_guard lock(mutex_);
    flush_result_ = std::move(result);
  }
  // Waits until so many have been submitted or cancelled since the start; false after 20 s.
  bool wait_submitted(std::size_t count) {
    return wait([&] { return requests_.size() >= count; });
  }
  bool wait_cancelled(std::size_t count) {
    return wait([&] { return cancelled_ >= count; });
  }
  std::vector<GenerationRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  EngineInfo info() const override {
    EngineInfo info;
    info.model_name = "fake";
    info.context_length = 2000;
    info.prompt_bytes_max = kPromptBytesMax;
    info.page_size = 32;
    info.kv_cache_dtype = "q8_0";
    info.cache_on = true;
    info.storage_backend = "memory";
    return info;
  }
  static constexpr std::size_t kPromptBytesMax = 4000;
  // The most bytes that were tokenized at once.
  std::size_t tokenized_bytes_max() const {
    const std::lock_guard lock(mutex_);
    return tokenized_bytes_max_;
  }
  std::vector<TokenId> tokenize(std::string_view text, bool, bool) const override {
    {
      const std::lock_guard lock(mutex_);
      tokenized_bytes_max_ = std::max(tokenized_bytes_max_, text.size());
    }
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string detokenize(const std::vector<TokenId>& tokens) const override {
    std::string text;
    for (const TokenId token : tokens) text += static_cast<char>(token);
    return text;
  }
  Result<std::string> apply_chat_template(const std::vector<ChatMessage>& messages) const override {
    std::string text;
    for (const ChatMessage& message : messages) {
      if (message.role != "system" && message.role != "user" && message.role != "assistant") {
        return Status(StatusCode::invalid_argument, "unknown role " + message.role);
      }
      text += message.role + ":" + message.content + "\n";
    }
    return text;
  }

  Result<std::uint64_t> submit(GenerationRequest request, GenerationSink* sink) override {
    const std::lock_guard lock(mutex_);
    if (closed_) return Status(StatusCode::failed_precondition, "the engine is closed");
    if (!submit_failure_.ok()) return submit_failure_;
    const std::uint64_t id = ++last_id_;
    Running running;
    running.sink = sink;
    running.script = script_;
    running.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    running.logprobs = request.top_logprobs;
    running_[id] = std::move(running);
    requests_.push_back(std::move(request));
    changed_.notify_all();
    return id;
  }
  void cancel(std::uint64_t generation) override {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(generation);
    if (found == running_.end() || found->second.cancelled) return;
    found->second.cancelled = true;
    ++cancelled_;
    changed_.notify_all();
  }

  CacheStats cache_stats() const override {
    CacheStats stats;
    stats.requests = 3;
    stats.prompt_tokens = 96;
    stats.served_tokens = {64, 0, 0};
    stats.device.pages_total = 10;
    const std::lock_guard lock(mutex_);
    stats.storage_backend = storage_.backend;
    stats.storage_status = attached_ ? StorageStatus::on : StorageStatus::none;
    PoolRegistration pool;
    pool.pool = "kv";
    pool.path = RegistrationPath::zero_copy;
    stats.registration = {pool};
    return stats;
  }
  Result<Explanation> explain(std::string_view id) const override {
    if (id != "ex-1") return Status(StatusCode::not_found, "no explanation of that id");
    Explanation explanation;
    explanation.id = "ex-1";
    explanation.label = "a \"label\"";
    explanation.prompt_tokens = 100;
    explanation.served = {{Tier::device, 0, 32}, {Tier::storage, 32, 64}};
    explanation.missed = {{MissReason::never_seen, 64, 96}, {MissReason::partial_page, 96, 100}};
    explanation.storage_wait = std::chrono::milliseconds(5);
    explanation.saved = std::chrono::milliseconds(400);
    explanation.complete = true;
    return explanation;
  }
  void append_metrics(MetricsText&) const override {}
  Status flush_cache() override {
    const std::lock_guard lock(mutex_);
    return flush_result_;
  }
  // As a cache does it: one store at a time.
  Status attach_storage(const StorageOptions& storage, const PolicyOptions& policy,
                        TimePoint) override {
    const std::lock_guard lock(mutex_);
    if (!storage_result_.ok()) return storage_result_;
    if (attached_ && !(storage == storage_)) {
      return Status(StatusCode::failed_precondition, "another is attached; detach it first");
    }
    attached_ = true;
    storage_ = storage;
    policy_ = policy;
    return {};
  }
  Status detach_storage(TimePoint) override {
    const std::lock_guard lock(mutex_);
    if (!attached_) return Status(StatusCode::failed_precondition, "no storage is attached");
    attached_ = false;
    storage_.backend = "none";
    return storage_result_;
  }
  Result<std::uint64_t> clear_storage(TimePoint) override {
    const std::lock_guard lock(mutex_);
    if (!attached_) return Status(StatusCode::failed_precondition, "no storage is attached");
    if (!storage_result_.ok()) return storage_result_;
    return std::uint64_t{12};
  }
  // What the next changes of storage answer.
  void set_storage_result(Status result) {
    const std::lock_guard lock(mutex_);
    storage_result_ = std::move(result);
  }
  StorageOptions storage() const {
    const std::lock_guard lock(mutex_);
    return storage_;
  }
  PolicyOptions policy() const {
    const std::lock_guard lock(mutex_);
    return policy_;
  }
  Status health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }
  Status close(TimePoint) override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      for (auto& [id, running] : running_) running.cancelled = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    return {};
  }

 private:
  struct Running {
    GenerationSink* sink = nullptr;
    Script script;
    std::uint32_t prompt_tokens = 0;
    std::optional<std::uint32_t> logprobs;
    std::size_t next_piece = 0;
    bool admitted = false;
    bool cancelled = false;
  };

  template <typename Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }

  bool may_step(const Running& running) const {
    if (running.cancelled) return true;
    return hold_ == Hold::nothing || (hold_ == Hold::text && !running.admitted);
  }

  GenerationResult result_of(const Running& running, FinishReason finish) const {
    GenerationResult result;
    result.finish = finish;
    result.status = running.script.failure;
    result.prompt_tokens = running.prompt_tokens;
    result.tokens.assign(running.next_piece, 1);
    result.cached_tokens = 64;
    result.cached_device = 32;
    result.cached_host = 0;
    result.cached_storage = 32;
    result.explanation_id = "ex-1";
    result.saved = std::chrono::milliseconds(400);
    return result;
  }

  // As if each piece were one token, number 7 with probability 1/e; others are 100, 101, ...
  static TokenLogprob logprob_of(const std::string& piece, std::uint32_t top) {
    TokenLogprob logprob;
    logprob.token = 7;
    logprob.logprob = -1.0f;
    logprob.bytes = piece;
    for (std::uint32_t i = 0; i < top; ++i) {
      const auto token = static_cast<TokenId>(100 + i);
      logprob.top.push_back({token, -2.0f - static_cast<float>(i), std::to_string(token)});
    }
    return logprob;
  }

  // One call into a sink, without the lock. Requires may_step(running).
  void step(std::unique_lock<std::mutex>& lock, std::uint64_t id) {
    Running& running = running_[id];
    GenerationSink* const sink = running.sink;
    if (running.cancelled || (running.script.fails_before_admission && !running.admitted) ||
        (running.admitted && running.next_piece == running.script.pieces.size())) {
      const FinishReason finish =
          running.cancelled ? FinishReason::cancelled : running.script.finish;
      GenerationResult result = result_of(running, finish);
      running_.erase(id);
      lock.unlock();
      sink->on_done(std::move(result));
    } else if (!running.admitted) {
      running.admitted = true;
      lock.unlock();
      sink->on_admitted("ex-1");
    } else {
      const std::string piece = running.script.pieces[running.next_piece++];
      const std::optional<std::uint32_t> logprobs = running.logprobs;
      lock.unlock();
      if (logprobs) sink->on_logprob(logprob_of(piece, *logprobs));
      sink->on_text(piece);
    }
    lock.lock();
    changed_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::uint64_t ready = 0;
      changed_.wait(lock, [&] {
        for (const auto& [id, running] : running_) {
          if (may_step(running)) ready = id;
        }
        return ready != 0 || (closed_ && running_.empty());
      });
      if (ready == 0) return;
      step(lock, ready);
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Running> running_;  // guarded by mutex_, as all below
  std::vector<GenerationRequest> requests_;
  Script script_;
  Hold hold_ = Hold::nothing;
  Status health_;
  Status submit_failure_;
  Status flush_result_;
  Status storage_result_;
  StorageOptions storage_;
  PolicyOptions policy_;
  bool attached_ = true;
  std::uint64_t last_id_ = 0;
  std::size_t cancelled_ = 0;
  mutable std::size_t tokenized_bytes_max_ = 0;
  bool closed_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hitide::testing
