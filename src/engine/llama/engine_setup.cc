#include "engine/llama/engine_setup.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <llama.h>

#include "base/log.h"
#include "engine/llama/model_identity.h"
#include "engine/llama/page_probe.h"

namespace hitide {
namespace {

constexpr std::uint32_t kPhysicalIds = 256;  // llama.cpp's limit, fixed when it is compiled
constexpr std::uint32_t kContextDefaultMax = 8192;
constexpr std::uint32_t kChildProbeCells = 512;
constexpr Duration kChildProbeLimit = std::chrono::seconds(120);

Status invalid(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

std::uint32_t round_up(std::uint32_t value, std::uint32_t unit) {
  return (value + unit - 1) / unit * unit;
}

// What was chosen from the options, the machine and the model file.
struct Choices {
  KvType kv_type = KvType::q8_0;
  bool kv_type_given = false;
  std::uint32_t threads = 1;
  std::uint32_t micro_batch = 0;
  std::uint32_t context_length = 0;
  std::uint32_t page_count = 0;
  bool copyable = true;     // as far as is known before loading
  std::string copy_detail;  // why not
};

Result<KvType> choose_kv_type(const std::string& option, const ModelFacts& facts) {
  const bool blocks_fit = facts.key_dim > 0 && facts.key_dim % 32 == 0 && facts.value_dim % 32 == 0;
  if (option == "auto") return blocks_fit ? KvType::q8_0 : KvType::f16;
  if (option == "f16") return KvType::f16;
  if (option == "bf16") return KvType::bf16;
  if (option != "q8_0") {
    return invalid(
        fmt::format("--kv-cache-dtype: '{}' is not one of auto, q8_0, f16, bf16", option));
  }
  if (!blocks_fit) {
    return invalid(
        fmt::format("--kv-cache-dtype q8_0 needs head sizes that are multiples of 32, "
                    "this model has {} and {}: use auto or f16",
                    facts.key_dim, facts.value_dim));
  }
  return KvType::q8_0;
}

Status check_options(const EngineOptions& options) {
  if (options.page_size == 0 || options.prefill_chunk_tokens < options.page_size ||
      options.prefill_chunk_tokens % options.page_size != 0) {
    return invalid(fmt::format("prefill chunk {} is not a multiple of page size {}",
                               options.prefill_chunk_tokens, options.page_size));
  }
  if (options.running_requests_max == 0 || options.sequences_max <= options.running_requests_max ||
      options.sequences_max > 192) {
    return invalid(
        fmt::format("{} running requests and {} sequences: at least one more sequence "
                    "than requests, and at most 192, are needed",
                    options.running_requests_max, options.sequences_max));
  }
  return ok_status();
}

Status choose_sizes(const EngineOptions& options, const ModelFacts& facts, Choices& choices) {
  std::uint32_t context = options.context_length;
  if (context == 0) {
    context = facts.context_length == 0 ? kContextDefaultMax
                                        : std::min(facts.context_length, kContextDefaultMax);
    if (options.device_tokens > 0) context = std::min(context, options.device_tokens);
  }
  const std::uint32_t tokens =
      options.device_tokens > 0 ? options.device_tokens : context + context / 2;
  choices.context_length = context;
  choices.page_count = tokens / options.page_size;
  if (std::uint64_t{choices.page_count} * options.page_size < context) {
    return invalid(
        fmt::format("{} device tokens in whole pages of {} do not hold one context of {}", tokens,
                    options.page_size, context));
  }
  return ok_status();
}

Result<Choices> choose(const EngineOptions& options, const ModelFacts& facts) {
  HITIDE_RETURN_IF_ERROR(check_options(options));
  Choices choices;
  HITIDE_ASSIGN_OR_RETURN(choices.kv_type, choose_kv_type(options.kv_cache_dtype, facts));
  choices.kv_type_given = options.kv_cache_dtype != "auto";
  HITIDE_RETURN_IF_ERROR(choose_sizes(options, facts, choices));
  return choices;
}

// Threads and micro-batch depend on the KV type: F16 is exact with one thread and below 64 only.
void choose_shape(const EngineOptions& options, Choices& choices) {
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  const bool f16 = choices.kv_type == KvType::f16;
  choices.threads = options.threads > 0 ? options.threads : f16 ? 1 : std::max(1u, cores - 1);
  choices.micro_batch = options.micro_batch > 0 ? options.micro_batch : f16 ? 32 : 512;
}

ContextPlan context_plan(const EngineOptions& options, const Choices& choices) {
  ContextPlan plan;
  plan.batch = options.prefill_chunk_tokens + options.running_requests_max;
  plan.micro_batch = std::min(choices.micro_batch, round_up(plan.batch, 32));
  plan.threads = choices.threads;
  plan.kv_type = choices.kv_type;
  if (choices.copyable) {
    const std::uint32_t tokens = choices.page_count * options.page_size;
    // Cells beyond the pages: the more there are, the rarer compactions; each one costs time in
    // every token.
    plan.cells = round_up(tokens + std::max(256u, tokens / 8), 256);
    plan.sequences = kPhysicalIds;
  } else {
    plan.unified = false;
    plan.sequences = options.running_requests_max;
    plan.cells = round_up(choices.context_length, 256) * plan.sequences;
  }
  return plan;
}

// Asks the name first, then, in a child process, the model itself.
void look_for_copyability(const EngineOptions& options, const ModelFacts& facts, bool wanted,
                          Choices& choices) {
  const Copyability known = copyability_of(facts.architecture);
  if (known == Copyability::no) {
    choices.copyable = false;
    choices.copy_detail = fmt::format(
        "the state of architecture '{}' is not made of pages that "
        "llama.cpp can copy",
        facts.architecture);
    return;
  }
  if (facts.sliding_window > 0 && facts.sliding_window < options.page_size) {
    choices.copyable = false;
    choices.copy_detail = fmt::format(
        "a page of {} tokens is larger than the model's sliding "
        "window of {}",
        options.page_size, facts.sliding_window);
    return;
  }
  if (known == Copyability::yes) return;
  if (!wanted) {
    choices.copyable = false;
    choices.copy_detail = "not tried";
    return;
  }
  ContextPlan plan = context_plan(options, choices);
  plan.cells = kChildProbeCells + round_up(options.page_size * 4, 256);
  const Status tried = probe_in_child(
      options.model_path, plan, {.page_size = options.page_size, .physical_count = plan.sequences},
      kChildProbeLimit);
  choices.copyable = tried.ok();
  if (!tried.ok()) {
    choices.copy_detail = fmt::format("architecture '{}': {}", facts.architecture, tried.message());
  }
}

Status check_generates(const llama_model& model, const std::string& architecture) {
  if (llama_model_has_encoder(&model) || !llama_model_has_decoder(&model) ||
      llama_model_is_diffusion(&model)) {
    return invalid(
        fmt::format("a model of architecture '{}' does not generate text token by "
                    "token; use a decoder model",
                    architecture));
  }
  return ok_status();
}

// Makes the context; with a KV type of our own choice F16 is tried when Q8_0 is refused.
Result<LlamaContextPtr> open_context(const EngineOptions& options, llama_model& model,
                                     Choices& choices, ContextPlan& plan) {
  choose_shape(options, choices);
  plan = context_plan(options, choices);
  auto context = make_llama_context(model, plan);
  if (context.ok() || choices.kv_type_given || choices.kv_type == KvType::f16) return context;
  choices.kv_type = KvType::f16;
  choose_shape(options, choices);
  plan = context_plan(options, choices);
  plan.flash_attention = choices.copyable;
  return make_llama_context(model, plan);
}

void describe_exactness(const Choices& choices, const ContextPlan& plan, const ProbeReport& probe,
                        bool gpu, EngineInfo& info) {
  switch (choices.kv_type) {
    case KvType::q8_0:
      info.exact = true;
      info.exact_detail = "q8_0: the same bits for every batch shape and number of threads";
      break;
    case KvType::f16:
      info.exact = plan.micro_batch < 64 && plan.threads == 1;
      info.exact_detail = info.exact ? "f16 with one thread and micro-batches below 64"
                                     : "f16 is exact with --threads 1 and micro-batches below 64";
      break;
    case KvType::bf16:
      info.exact = plan.threads == 1;
      info.exact_detail =
          info.exact ? "bf16 with one thread" : "bf16 has been shown exact with --threads 1 only";
      break;
  }
  if (gpu) {
    info.exact = false;
    info.exact_detail = "layers on a GPU have not been shown to give the same bits each time";
  } else if (info.exact && !probe.same_logits_by_token) {
    info.exact = false;
    info.exact_detail =
        "measured at start: this file's quantisation gives other bits for other batch shapes";
  }
}

std::string description_of(const llama_model& model) {
  char text[256] = {};
  llama_model_desc(&model, text, sizeof text);
  return text;
}

}  // namespace

Result<EngineSetup> set_up_engine(const EngineOptions& options, const CacheOptions& cache) {
  HITIDE_ASSIGN_OR_RETURN(const ModelFacts facts, read_model_facts(options.model_path));
  HITIDE_ASSIGN_OR_RETURN(Choices choices, choose(options, facts));
  choose_shape(options, choices);
  look_for_copyability(options, facts, cache.enabled, choices);

  EngineSetup setup;
  HITIDE_ASSIGN_OR_RETURN(setup.model, load_llama_model(options.model_path, options.gpu_layers));
  llama_model& model = *setup.model;
  HITIDE_RETURN_IF_ERROR(check_generates(model, facts.architecture));
  if (choices.copyable && (llama_model_is_recurrent(&model) || llama_model_is_hybrid(&model))) {
    choices.copyable = false;
    choices.copy_detail = "the model is recurrent or hybrid";
  }

  ContextPlan plan;
  HITIDE_ASSIGN_OR_RETURN(setup.context, open_context(options, model, choices, plan));
  ProbeReport probe;
  probe.same_logits_by_token = true;  // until it has been measured
  if (cache.enabled && choices.copyable) {
    const auto vocabulary =
        static_cast<std::uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(&model)));
    auto tried = probe_pages(*setup.context, {.page_size = options.page_size,
                                              .physical_count = plan.sequences,
                                              .vocabulary = vocabulary});
    if (tried.ok()) {
      probe = std::move(tried).value();
    } else if (tried.status().code() == StatusCode::unimplemented) {
      choices.copyable = false;
      choices.copy_detail = tried.status().message();
      setup.context.reset();
      HITIDE_ASSIGN_OR_RETURN(setup.context, open_context(options, model, choices, plan));
    } else {
      return tried.status();
    }
  }
  setup.prefill_tokens_per_s = probe.prefill_tokens_per_s;

  EngineInfo& info = setup.info;
  info.model_name = std::filesystem::path(options.model_path).stem().string();
  info.model_description = description_of(model);
  info.context_length = choices.context_length;
  info.page_size = options.page_size;
  info.kv_cache_dtype = to_string(choices.kv_type);
  info.cache_on = cache.enabled && choices.copyable;
  info.cache_detail = !cache.enabled ? "turned off by an option" : choices.copy_detail;
  const bool gpu = options.gpu_layers > 0 && llama_supports_gpu_offload();
  describe_exactness(choices, plan, probe, gpu, info);
  if (cache.enabled && !choices.copyable) {
    log_warning("cache_off", {{"model", options.model_path}, {"reason", info.cache_detail}});
  }

  LlamaDeviceOptions& device = setup.device;
  device.geometry = {.page_count = choices.page_count,
                     .page_size = options.page_size,
                     .page_bytes = probe.page_bytes,
                     .sequence_count = options.sequences_max};
  device.cells = plan.cells;
  device.batch = plan.batch;
  device.physical_count = plan.sequences;
  device.shareable = choices.copyable;
  // A saved run must not be longer than the window: llama.cpp leaves out what lies outside.
  if (facts.sliding_window > 0) device.run_tokens_max = options.page_size;
  if (!choices.copyable) {
    device.geometry.sequence_count = options.running_requests_max;
    device.geometry.page_count = plan.cells / options.page_size;
  }
  if (info.cache_on) {
    HITIDE_ASSIGN_OR_RETURN(
        setup.spec,
        make_model_spec({.model_path = options.model_path,
                         .model_name = info.model_name,
                         .facts = facts,
                         .probe = probe,
                         .kv_type = choices.kv_type,
                         .page_size = options.page_size,
                         .cells = plan.cells,
                         .micro_batch = plan.micro_batch,
                         .threads = plan.threads,
                         .gpu_layers = options.gpu_layers,
                         .scratch_id = plan.sequences - 1,
                         .layers = static_cast<std::uint32_t>(llama_model_n_layer(&model)),
                         .kv_heads = static_cast<std::uint32_t>(llama_model_n_head_kv(&model))}));
  }
  return setup;
}

}  // namespace hitide
