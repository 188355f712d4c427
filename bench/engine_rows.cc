// The engine with a real model: time to first token from each tier against computing the prompt
// again, and what a cache that has nothing to do costs while tokens are generated.
#include <array>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include <time.h>

#include <fmt/format.h>
#include <llama.h>

#include "base/clock.h"
#include "bench/cases.h"
#include "bench/core_driver.h"
#include "engine/llama/engine_setup.h"
#include "engine/llama/llama_engine.h"

namespace hitide::bench {
namespace {

constexpr std::size_t kPromptTokens = 600;
constexpr std::uint32_t kServedLeast = 512;  // whole pages, less what may always be computed
constexpr std::uint32_t kDecodeTokens = 48;
constexpr std::size_t kDecodePromptTokens = 16;
constexpr int kFirstTokenRounds = 5;
constexpr int kDecodeRounds = 30;

class WaitingSink final : public GenerationSink {
 public:
  void on_admitted(const std::string&) override {}
  void on_text(std::string_view) override {}
  void on_done(GenerationResult result) override {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    done_ = true;
    changed_.notify_all();
  }
  GenerationResult wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    return std::move(result_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  GenerationResult result_;  // guarded by mutex_
  bool done_ = false;        // guarded by mutex_
};

// Greedy, to the end of `tokens`.
Result<GenerationResult> generate(Engine& engine, const std::vector<TokenId>& prompt,
                                  std::uint32_t tokens) {
  GenerationRequest request;
  request.prompt = prompt;
  request.tokens_max = tokens;
  request.sampling.temperature = 0.0f;
  request.ignore_eos = true;
  WaitingSink sink;
  const auto id = engine.submit(std::move(request), &sink);
  if (!id.ok()) return id.status();
  GenerationResult result = sink.wait();
  if (result.finish == FinishReason::failed) return result.status;
  return result;
}

EngineOptions engine_options(const Settings& settings) {
  EngineOptions options;
  options.model_path = settings.model_path;
  options.context_length = 1'024;
  options.device_tokens = 1'024;
  return options;
}

CacheOptions cache_options(const Settings& settings) {
  CacheOptions options;
  options.host.bytes = 256u << 20;
  options.storage.path = settings.scratch + "/engine";
  options.storage.bytes_max = 1u << 30;
  return options;
}

CacheOptions cache_off() {
  CacheOptions options;
  options.enabled = false;
  options.storage.backend = "none";
  return options;
}

Status close(Engine& engine) {
  return engine.close(SystemClock::instance().now() + std::chrono::seconds(30));
}

// ---- Time to first token

// Three prompts of which the device holds one and a half: what is used in turn is always on the
// host by then.
using Prompts = std::array<std::vector<TokenId>, 3>;

// In ms; fails unless the prompt was served from `tier`.
Status first_token(Engine& engine, const std::vector<TokenId>& prompt, std::optional<Tier> tier,
                   double& milliseconds) {
  HITIDE_ASSIGN_OR_RETURN(const GenerationResult result, generate(engine, prompt, 1));
  milliseconds = to_milliseconds(result.first_token_time);
  if (!tier) return ok_status();
  const std::uint32_t served = *tier == Tier::device ? result.cached_device
                               : *tier == Tier::host ? result.cached_host
                                                     : result.cached_storage;
  if (served >= kServedLeast) return ok_status();
  return Status(StatusCode::internal,
                fmt::format("of {} tokens {} came from the device, {} from the host, {} from "
                            "storage; {} were wanted from {}",
                            prompt.size(), result.cached_device, result.cached_host,
                            result.cached_storage, kServedLeast, to_string(*tier)));
}

// Computes the prompts and leaves them in the store.
Status fill_store(const Settings& settings, const Prompts& prompts) {
  HITIDE_ASSIGN_OR_RETURN(const auto engine,
                          open_llama_engine(engine_options(settings), cache_options(settings)));
  if (!engine->info().cache_on) {
    return Status(StatusCode::unimplemented, engine->info().cache_detail);
  }
  for (const std::vector<TokenId>& prompt : prompts) {
    double unused = 0.0;
    HITIDE_RETURN_IF_ERROR(first_token(*engine, prompt, std::nullopt, unused));
  }
  return close(*engine);
}

// A restarted engine: from storage, then the same from the device, then, after two others, from
// the host.
Status cached_round(const Settings& settings, const Prompts& prompts,
                    std::array<double, kTierCount>& milliseconds) {
  HITIDE_ASSIGN_OR_RETURN(const auto engine,
                          open_llama_engine(engine_options(settings), cache_options(settings)));
  double unused = 0.0;
  HITIDE_RETURN_IF_ERROR(first_token(*engine, prompts[0], Tier::storage, milliseconds[2]));
  HITIDE_RETURN_IF_ERROR(first_token(*engine, prompts[0], Tier::device, milliseconds[0]));
  HITIDE_RETURN_IF_ERROR(first_token(*engine, prompts[1], std::nullopt, unused));
  HITIDE_RETURN_IF_ERROR(first_token(*engine, prompts[2], std::nullopt, unused));
  HITIDE_RETURN_IF_ERROR(first_token(*engine, prompts[0], Tier::host, milliseconds[1]));
  return close(*engine);
}

Status time_to_first_token(const Settings& settings, Report& report) {
  const Prompts prompts = {make_prompt(kPromptTokens, 21), make_prompt(kPromptTokens, 22),
                           make_prompt(kPromptTokens, 23)};
  HITIDE_RETURN_IF_ERROR(fill_store(settings, prompts));
  HITIDE_ASSIGN_OR_RETURN(const auto bare,
                          open_llama_engine(engine_options(settings), cache_off()));
  std::array<Row, kTierCount> rows;
  for (int tier = 0; tier < kTierCount; ++tier) {
    rows[tier] = {.name = fmt::format("ttft.{}", to_string(static_cast<Tier>(tier))),
                  .unit = "ms",
                  .target = at_most(0.2)};
  }
  rows[static_cast<int>(Tier::storage)].note = "after a restart on the same store";
  for (int round = 0; round < kFirstTokenRounds; ++round) {
    std::array<double, kTierCount> ours{};
    HITIDE_RETURN_IF_ERROR(cached_round(settings, prompts, ours));
    double computed = 0.0;
    HITIDE_RETURN_IF_ERROR(first_token(*bare, prompts[0], std::nullopt, computed));
    for (int tier = 0; tier < kTierCount; ++tier) {
      rows[tier].pairs.ours.push_back(ours[tier]);
      rows[tier].pairs.reference.push_back(computed);
    }
  }
  for (const Row& row : rows) report.add(row);
  return close(*bare);
}

// ---- Decode speed

// Of one generation. The processor's time covers the short prompt too; it does not see how much of
// the machine others take.
struct DecodeSpeed {
  double tokens_per_s = 0.0;  // behind the first token
  double cpu_seconds = 0.0;
};

double cpu_seconds_now() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

Status decode_speed(Engine& engine, const std::vector<TokenId>& prompt, DecodeSpeed& speed) {
  const double cpu = cpu_seconds_now();
  HITIDE_ASSIGN_OR_RETURN(const GenerationResult result, generate(engine, prompt, kDecodeTokens));
  speed.cpu_seconds = cpu_seconds_now() - cpu;
  if (result.tokens.size() != kDecodeTokens) {
    return Status(StatusCode::internal, "the generation ended early");
  }
  speed.tokens_per_s =
      (kDecodeTokens - 1) / to_seconds(result.total_time - result.first_token_time);
  return ok_status();
}

// llama.cpp alone: one sequence in a context of the same size, KV type and threads, greedy.
class BareLlama {
 public:
  explicit BareLlama(EngineSetup setup)
      : model_(std::move(setup.model)),
        context_(std::move(setup.context)),
        batch_(llama_batch_init(static_cast<std::int32_t>(kDecodePromptTokens), 0, 1)),
        vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))) {}
  ~BareLlama() { llama_batch_free(batch_); }
  BareLlama(const BareLlama&) = delete;
  BareLlama& operator=(const BareLlama&) = delete;

  Status decode_speed(const std::vector<TokenId>& prompt, DecodeSpeed& speed) {
    const double cpu = cpu_seconds_now();
    llama_memory_clear(llama_get_memory(context_.get()), false);
    position_ = 0;
    bool good = feed(prompt);
    const Stopwatch watch;
    for (std::uint32_t i = 1; i < kDecodeTokens; ++i) {
      const TokenId token = best();
      good = feed(std::span(&token, 1)) && good;
    }
    TokenId last = best();
    keep(last);
    speed.tokens_per_s = (kDecodeTokens - 1) / watch.seconds();
    speed.cpu_seconds = cpu_seconds_now() - cpu;
    return good ? ok_status() : Status(StatusCode::internal, "llama_decode failed");
  }

 private:
  bool feed(std::span<const TokenId> tokens) {
    batch_.n_tokens = static_cast<std::int32_t>(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      batch_.token[i] = tokens[i];
      batch_.pos[i] = position_++;
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = 0;
      batch_.logits[i] = i + 1 == tokens.size() ? 1 : 0;
    }
    return llama_decode(context_.get(), batch_) == 0;
  }
  TokenId best() const {
    const float* const logits = llama_get_logits_ith(context_.get(), -1);
    std::int32_t found = 0;
    for (std::int32_t i = 1; i < vocabulary_; ++i) {
      if (logits[i] > logits[found]) found = i;
    }
    return found;
  }

  LlamaModelPtr model_;
  LlamaContextPtr context_;
  llama_batch batch_;
  std::int32_t vocabulary_;
  llama_pos position_ = 0;
};

Status idle_cache(const Settings& settings, Report& report) {
  HITIDE_ASSIGN_OR_RETURN(const auto cached,
                          open_llama_engine(engine_options(settings), cache_options(settings)));
  HITIDE_ASSIGN_OR_RETURN(const auto plain,
                          open_llama_engine(engine_options(settings), cache_off()));
  HITIDE_ASSIGN_OR_RETURN(EngineSetup setup, set_up_engine(engine_options(settings), cache_off()));
  BareLlama bare(std::move(setup));
  Row idle{.name = "decode.idle_cache", .unit = "tok/s", .target = at_least(0.98)};
  Row alone{.name = "decode.llama", .unit = "tok/s", .target = at_least(0.98)};
  std::vector<double> idle_cpu;
  std::vector<double> alone_cpu;
  for (int round = -2; round < kDecodeRounds; ++round) {
    // Another prompt each time, so that nothing hits.
    const auto prompt = make_prompt(kDecodePromptTokens, static_cast<std::uint64_t>(1'000 + round));
    DecodeSpeed ours;
    DecodeSpeed without;
    DecodeSpeed llama;
    HITIDE_RETURN_IF_ERROR(decode_speed(*cached, prompt, ours));
    HITIDE_RETURN_IF_ERROR(decode_speed(*plain, prompt, without));
    HITIDE_RETURN_IF_ERROR(bare.decode_speed(prompt, llama));
    if (round < 0) continue;
    idle.pairs.ours.push_back(ours.tokens_per_s);
    idle.pairs.reference.push_back(without.tokens_per_s);
    alone.pairs.ours.push_back(ours.tokens_per_s);
    alone.pairs.reference.push_back(llama.tokens_per_s);
    idle_cpu.push_back(ours.cpu_seconds / without.cpu_seconds);
    alone_cpu.push_back(ours.cpu_seconds / llama.cpu_seconds);
  }
  const auto note = [](const char* text, const std::vector<double>& ratios) {
    return fmt::format("{}; processor time {:.3f} +- {:.3f}", text, median(ratios),
                       median_deviation(ratios));
  };
  idle.note = note("against the engine without a cache", idle_cpu);
  alone.note = note("against llama_decode in a loop", alone_cpu);
  report.add(idle);
  report.add(alone);
  HITIDE_RETURN_IF_ERROR(close(*cached));
  return close(*plain);
}

// ---- A device that is full of what no request uses

constexpr std::size_t kResidents = 12;

Result<std::unique_ptr<Engine>> open_full(const Settings& settings, const char* copy,
                                          std::uint32_t idle_tokens, std::uint32_t threads) {
  EngineOptions engine = engine_options(settings);
  engine.device_tokens = kResidents * kPromptTokens + engine.context_length;
  engine.threads = threads;
  CacheOptions cache = cache_options(settings);
  cache.storage.path = settings.scratch + "/" + copy;
  cache.policy.device_idle_tokens = idle_tokens;
  HITIDE_ASSIGN_OR_RETURN(auto opened, open_llama_engine(engine, cache));
  for (std::uint64_t i = 0; i < kResidents; ++i) {
    double unused = 0.0;
    HITIDE_RETURN_IF_ERROR(
        first_token(*opened, make_prompt(kPromptTokens, 100 + i), std::nullopt, unused));
  }
  return opened;
}

Status full_device(const Settings& settings, Report& report) {
  const std::uint32_t kept = 2048;  // what `hitide serve` takes where the CPU computes
  {
    HITIDE_ASSIGN_OR_RETURN(const auto filler, open_full(settings, "kept", kAllTokens, 2));
    HITIDE_RETURN_IF_ERROR(close(*filler));
    std::error_code error;
    std::filesystem::copy(settings.scratch + "/kept", settings.scratch + "/full",
                          std::filesystem::copy_options::recursive, error);
    if (error) return Status(StatusCode::internal, "copying the store: " + error.message());
  }
  HITIDE_ASSIGN_OR_RETURN(const auto thinned, open_full(settings, "kept", kept, 1));
  HITIDE_ASSIGN_OR_RETURN(const auto full, open_full(settings, "full", kAllTokens, 1));
  Row row{.name = "decode.full_device", .unit = "tok/s", .target = at_least(1.0)};
  row.note = fmt::format("{} idle tokens against {}", kept, kResidents * kPromptTokens);
  for (int round = -2; round < kDecodeRounds / 2; ++round) {
    const auto prompt = make_prompt(kDecodePromptTokens, static_cast<std::uint64_t>(2'000 + round));
    DecodeSpeed ours;
    DecodeSpeed without;
    HITIDE_RETURN_IF_ERROR(decode_speed(*thinned, prompt, ours));
    HITIDE_RETURN_IF_ERROR(decode_speed(*full, prompt, without));
    if (round < 0) continue;
    row.pairs.ours.push_back(ours.tokens_per_s);
    row.pairs.reference.push_back(without.tokens_per_s);
  }
  report.add(row);
  HITIDE_RETURN_IF_ERROR(close(*thinned));
  return close(*full);
}

}  // namespace

std::vector<Case> engine_cases() {
  return {
      {.rows = {"ttft.device", "ttft.host", "ttft.storage"},
       .needs_model = true,
       .run = time_to_first_token},
      {.rows = {"decode.idle_cache", "decode.llama"}, .needs_model = true, .run = idle_cache},
      {.rows = {"decode.full_device"}, .needs_model = true, .run = full_device},
  };
}

}  // namespace hitide::bench
