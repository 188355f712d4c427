// `hitide warm --model-path`: computes prompts by an engine of its own.

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/mutex.h"
#include "engine/llama/llama_engine.h"
#include "engine_prompt.h"
#include "serve_options_of.h"
#include "server/setup.h"
#include "warm_target.h"

namespace hitide::cli {
namespace {

constexpr std::chrono::minutes kPromptLimit(30);
constexpr std::chrono::minutes kDrainLimit(5);

class OneAnswer final : public GenerationSink {
 public:
  void on_admitted(const std::string& /*explanation_id*/) override {}
  void on_text(std::string_view /*text*/) override {}
  void on_done(GenerationResult result) override {
    const MutexLock hold(mutex_);
    result_ = std::move(result);
    done_ = true;
    changed_.notify_all();
  }
  // False: it has not come in that time.
  bool wait_for(std::chrono::seconds limit) {
    MutexLock hold(mutex_);
    return changed_.wait_for(hold, limit, [&] { return done_; });
  }
  const GenerationResult& result() const { return result_; }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool done_ = false;
  GenerationResult result_;
};

class EngineTarget final : public WarmTarget {
 public:
  explicit EngineTarget(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Result<WarmedPrompt> compute(const WarmPrompt& prompt) override {
    GenerationRequest request;
    HITIDE_ASSIGN_OR_RETURN(request.prompt, prompt_tokens(*engine_, prompt));
    request.tokens_max = 1;
    request.sampling.temperature = 0.0f;
    request.cache_salt = prompt.cache_salt;
    request.extra_key = prompt.extra_key;
    request.label = fmt::format("warm-{}", prompt.line);
    OneAnswer answer;
    HITIDE_ASSIGN_OR_RETURN(const std::uint64_t id, engine_->submit(std::move(request), &answer));
    if (!answer.wait_for(kPromptLimit)) {
      engine_->cancel(id);
      // The sink must live until its last call, which closing brings in any case.
      if (!answer.wait_for(std::chrono::minutes(1))) {
        engine_->close(std::chrono::steady_clock::now()).ignore();
        answer.wait_for(kPromptLimit);
      }
      return Status(StatusCode::unavailable, "the engine has not computed it in half an hour");
    }
    if (answer.result().finish == FinishReason::failed) return answer.result().status;
    return WarmedPrompt{.tokens = answer.result().prompt_tokens,
                        .cached = answer.result().cached_tokens};
  }

  Result<std::int64_t> finish() override {
    HITIDE_RETURN_IF_ERROR(engine_->close(std::chrono::steady_clock::now() + kDrainLimit));
    return static_cast<std::int64_t>(engine_->cache_stats().backed_up_pages_storage);
  }

 private:
  std::unique_ptr<Engine> engine_;
};

Result<ServeOptions> read_options(const GivenOptions& given) {
  HITIDE_ASSIGN_OR_RETURN(ReadOptions read, read_serve_options(given));
  set_log_level_by_name(read.options.server.log_level);
  log_storage_config(read.storage);
  const std::string& backend = read.options.cache.storage.backend;
  if (backend == "none" || backend == "null" || backend == "memory") {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--hicache-storage-backend: nothing lasts in {}; file or mooncake", backend));
  }
  // Each prompt is stored when it has been computed, however often it is used.
  read.options.cache.policy.write_policy = WritePolicy::write_through;
  return std::move(read.options);
}

}  // namespace

Result<std::unique_ptr<WarmTarget>> open_warm_engine(const GivenOptions& given) {
  HITIDE_ASSIGN_OR_RETURN(const ServeOptions options, read_options(given));
  HITIDE_RETURN_IF_ERROR(check_model_file(options.engine.model_path));
  Result<std::unique_ptr<Engine>> engine = open_llama_engine(options.engine, options.cache);
  if (!engine.ok()) return engine.status();
  const CacheStats stats = (*engine)->cache_stats();
  if (stats.storage_status != StorageStatus::on && stats.storage_status != StorageStatus::waiting) {
    const std::string why = stats.storage_detail;
    (*engine)->close(std::chrono::steady_clock::now()).ignore();
    return Status(StatusCode::unavailable, "the store cannot be used: " + why);
  }
  return std::unique_ptr<WarmTarget>(std::make_unique<EngineTarget>(std::move(*engine)));
}

}  // namespace hitide::cli
