// Lanes against the shared context: several small contexts, each with a thread and one request at a
// time whose prefix is restored from host memory, against one context in which all requests are
// computed in one batch. Bare llama.cpp on both sides, with as many compute threads in all.
#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <llama.h>

#include "bench/cases.h"
#include "bench/core_driver.h"
#include "engine/llama/llama_model.h"

namespace hitide::bench {
namespace {

constexpr std::uint32_t kLanes = 2;
constexpr std::uint32_t kPrefixTokens = 512;
constexpr std::uint32_t kAnswerTokens = 24;
constexpr std::uint32_t kRequestsMost = 8;
constexpr std::uint32_t kResidents = 16;  // cached prefixes that no request uses
constexpr std::uint32_t kBatch = 128;
constexpr int kPairs = 8;

// A context and its batch. One thread at a time.
class Context {
 public:
  static Result<std::unique_ptr<Context>> make(llama_model& model, std::uint32_t cells,
                                               std::uint32_t sequences, std::uint32_t threads) {
    ContextPlan plan;
    plan.cells = cells;
    plan.batch = plan.micro_batch = kBatch;
    plan.sequences = sequences;
    plan.threads = threads;
    HITIDE_ASSIGN_OR_RETURN(LlamaContextPtr context, make_llama_context(model, plan));
    return std::unique_ptr<Context>(new Context(std::move(context), model));
  }
  ~Context() { llama_batch_free(batch_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  bool compute(llama_seq_id sequence, std::span<const TokenId> tokens) {
    bool good = true;
    for (std::size_t at = 0; at < tokens.size(); at += kBatch) {
      batch_.n_tokens = 0;
      for (std::size_t i = at; i < std::min(tokens.size(), at + kBatch); ++i) {
        add(tokens[i], static_cast<llama_pos>(i), sequence, i + 1 == tokens.size());
      }
      good = llama_decode(context_.get(), batch_) == 0 && good;
    }
    return good;
  }
  // Greedy tokens behind the prefix of sequences 0..count-1, all of them in each batch.
  bool answer(std::uint32_t count) {
    bool good = true;
    std::vector<TokenId> next(count, 1'000);
    for (std::uint32_t step = 0; step < kAnswerTokens; ++step) {
      batch_.n_tokens = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        add(next[i], static_cast<llama_pos>(kPrefixTokens + step), static_cast<llama_seq_id>(i),
            true);
      }
      good = llama_decode(context_.get(), batch_) == 0 && good;
      for (std::uint32_t i = 0; i < count; ++i) next[i] = best(static_cast<std::int32_t>(i));
    }
    return good;
  }
  std::vector<std::uint8_t> save(llama_seq_id sequence) {
    std::vector<std::uint8_t> bytes(llama_state_seq_get_size(context_.get(), sequence));
    bytes.resize(llama_state_seq_get_data(context_.get(), bytes.data(), bytes.size(), sequence));
    return bytes;
  }
  bool restore(llama_seq_id sequence, std::span<const std::uint8_t> bytes) {
    return llama_state_seq_set_data(context_.get(), bytes.data(), bytes.size(), sequence) ==
           bytes.size();
  }
  void cut(std::uint32_t sequences) {
    for (std::uint32_t i = 0; i < sequences; ++i) {
      llama_memory_seq_rm(memory_, static_cast<llama_seq_id>(i), kPrefixTokens, -1);
    }
  }
  void clear() { llama_memory_clear(memory_, false); }

 private:
  Context(LlamaContextPtr context, llama_model& model)
      : context_(std::move(context)),
        memory_(llama_get_memory(context_.get())),
        batch_(llama_batch_init(kBatch, 0, 1)),
        vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(&model))) {}
  void add(TokenId token, llama_pos position, llama_seq_id sequence, bool logits) {
    const std::int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits ? 1 : 0;
  }
  TokenId best(std::int32_t row) const {
    const float* const logits = llama_get_logits_ith(context_.get(), row);
    return static_cast<TokenId>(std::max_element(logits, logits + vocabulary_) - logits);
  }

  LlamaContextPtr context_;
  llama_memory_t memory_;
  llama_batch batch_;
  std::int32_t vocabulary_;
};

Status computed(bool good) {
  return good ? ok_status() : Status(StatusCode::internal, "llama_decode failed");
}

class Lanes {
 public:
  Status open(llama_model& model) {
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      HITIDE_ASSIGN_OR_RETURN(auto lane, Context::make(model, 2 * kPrefixTokens, 1, 1));
      lanes_.push_back(std::move(lane));
    }
    return ok_status();
  }
  // Each request in turn on the lane that is free next.
  template <typename Request>
  Status serve(std::uint32_t requests, Request&& request) {
    std::atomic<std::uint32_t> next{0};
    std::atomic<bool> good{true};
    std::vector<std::thread> threads;
    for (const auto& lane : lanes_) {
      threads.emplace_back([&, context = lane.get()] {
        while (next.fetch_add(1) < requests) {
          context->clear();
          if (!request(*context)) good = false;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return computed(good);
  }

 private:
  std::vector<std::unique_ptr<Context>> lanes_;
};

Status lanes(const Settings& settings, Report& report) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  HITIDE_ASSIGN_OR_RETURN(const LlamaModelPtr model, load_llama_model(settings.model_path, 0));
  Lanes small;
  HITIDE_RETURN_IF_ERROR(small.open(*model));
  const auto make_shared = [&](std::uint32_t others) {
    const std::uint32_t sequences = kRequestsMost + others;
    return Context::make(*model, (sequences + kRequestsMost / 4) * kPrefixTokens, sequences,
                         kLanes);
  };
  HITIDE_ASSIGN_OR_RETURN(const auto shared, make_shared(0));
  HITIDE_ASSIGN_OR_RETURN(const auto full, make_shared(kResidents));
  const std::vector<TokenId> tokens = make_prompt(kPrefixTokens, 77);
  HITIDE_RETURN_IF_ERROR(computed(shared->compute(0, tokens)));
  const std::vector<std::uint8_t> bytes = shared->save(0);

  const auto speed = [](std::uint32_t count, const Stopwatch& watch) {
    return count / watch.seconds();
  };
  const auto answer = [&](Context& context) {
    return context.restore(0, bytes) && context.answer(1);
  };
  for (const bool residents : {false, true}) {
    Context& context = residents ? *full : *shared;
    context.clear();
    for (std::uint32_t i = 0; i < kRequestsMost + (residents ? kResidents : 0); ++i) {
      HITIDE_RETURN_IF_ERROR(computed(context.restore(static_cast<llama_seq_id>(i), bytes)));
    }
    for (std::uint32_t requests = 1; requests <= kRequestsMost; requests *= 2) {
      Row row{.name = fmt::format("lanes.decode{}_{}", residents ? "_full" : "", requests),
              .unit = "tok/s"};
      row.note = fmt::format("{} requests; {} cells in the shared context", requests,
                             (kRequestsMost + (residents ? kResidents : 0)) * kPrefixTokens);
      HITIDE_RETURN_IF_ERROR(measure_checked(
          1, kPairs,
          [&](double& value) -> Status {
            const Stopwatch watch;
            Status status = small.serve(requests, answer);
            value = speed(requests * kAnswerTokens, watch);
            return status;
          },
          [&](double& value) -> Status {
            context.cut(requests);
            const Stopwatch watch;
            Status status = computed(context.answer(requests));
            value = speed(requests * kAnswerTokens, watch);
            return status;
          },
          row.pairs));
      report.add(row);
    }
  }

  Row prefill{.name = "lanes.prefill_2", .unit = "tok/s", .note = "two prompts"};
  const std::span<const TokenId> part = std::span(tokens).first(kBatch);
  HITIDE_RETURN_IF_ERROR(measure_checked(
      1, kPairs,
      [&](double& value) -> Status {
        const Stopwatch watch;
        Status status = small.serve(2, [&](Context& context) { return context.compute(0, part); });
        value = speed(2 * kBatch, watch);
        return status;
      },
      [&](double& value) -> Status {
        shared->clear();
        const Stopwatch watch;
        Status status = computed(shared->compute(0, part) && shared->compute(1, part));
        value = speed(2 * kBatch, watch);
        return status;
      },
      prefill.pairs));
  report.add(prefill);
  return ok_status();
}

}  // namespace

std::vector<Case> lane_cases() {
  return {{.rows = {"lanes.decode_1", "lanes.decode_2", "lanes.decode_4", "lanes.decode_8",
                    "lanes.decode_full_1", "lanes.decode_full_2", "lanes.decode_full_4",
                    "lanes.decode_full_8", "lanes.prefill_2"},
           .needs_model = true,
           .run = lanes}};
}

}  // namespace hitide::bench
