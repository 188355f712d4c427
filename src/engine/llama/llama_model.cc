#include "engine/llama/llama_model.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <gguf.h>
#include <llama.h>

#include "base/file.h"
#include "base/log.h"

namespace hitide {
namespace {

void forward_log(ggml_log_level level, const char* text, void* /*user_data*/) {
  std::string_view line(text);
  while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  if (line.empty()) return;
  if (level == GGML_LOG_LEVEL_ERROR) {
    log_limited(LogLevel::warning, "llama_error", std::chrono::seconds(1), {{"text", line}});
  } else {
    log_event(LogLevel::debug, "llama", {{"text", line}});
  }
}

void start_backend_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(forward_log, nullptr);
    llama_backend_init();
  });
}

struct GgufFree {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufFree>;

std::string text_value(const gguf_context* file, const std::string& key) {
  const std::int64_t id = gguf_find_key(file, key.c_str());
  if (id < 0 || gguf_get_kv_type(file, id) != GGUF_TYPE_STRING) return {};
  return gguf_get_val_str(file, id);
}

// The value, or the first one of an array with one per layer; 0 when absent or of another type.
std::uint32_t number_value(const gguf_context* file, const std::string& key) {
  const std::int64_t id = gguf_find_key(file, key.c_str());
  if (id < 0) return 0;
  switch (gguf_get_kv_type(file, id)) {
    case GGUF_TYPE_UINT16:
      return gguf_get_val_u16(file, id);
    case GGUF_TYPE_UINT32:
      return gguf_get_val_u32(file, id);
    case GGUF_TYPE_INT32:
      return static_cast<std::uint32_t>(gguf_get_val_i32(file, id));
    case GGUF_TYPE_UINT64:
      return static_cast<std::uint32_t>(gguf_get_val_u64(file, id));
    case GGUF_TYPE_ARRAY: {
      const gguf_type type = gguf_get_arr_type(file, id);
      if (gguf_get_arr_n(file, id) == 0) return 0;
      if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) return 0;
      return *static_cast<const std::uint32_t*>(gguf_get_arr_data(file, id));
    }
    default:
      return 0;
  }
}

ggml_type to_ggml(KvType type) {
  switch (type) {
    case KvType::q8_0:
      return GGML_TYPE_Q8_0;
    case KvType::f16:
      return GGML_TYPE_F16;
    case KvType::bf16:
      return GGML_TYPE_BF16;
  }
  return GGML_TYPE_F16;
}

}  // namespace

void LlamaModelFree::operator()(llama_model* model) const { llama_model_free(model); }
void LlamaContextFree::operator()(llama_context* context) const { llama_free(context); }

const char* to_string(KvType type) {
  return type == KvType::q8_0 ? "q8_0" : type == KvType::f16 ? "f16" : "bf16";
}

Result<ModelFacts> read_model_facts(const std::string& path) {
  const UniqueFd probe(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!probe.valid()) return errno_status(errno, "open model", path);
  llama_log_set(forward_log, nullptr);
  const GgufPtr file(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
  ModelFacts facts;
  if (file) facts.architecture = text_value(file.get(), "general.architecture");
  if (facts.architecture.empty()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} is not a GGUF model, or its header is damaged; give the path of "
                              "a complete .gguf file",
                              path));
  }
  const std::string& arch = facts.architecture;
  facts.rope_scaling = text_value(file.get(), arch + ".rope.scaling.type");
  if (facts.rope_scaling.empty()) facts.rope_scaling = "none";
  facts.context_length = number_value(file.get(), arch + ".context_length");
  facts.sliding_window = number_value(file.get(), arch + ".attention.sliding_window");
  facts.key_dim = number_value(file.get(), arch + ".attention.key_length");
  facts.value_dim = number_value(file.get(), arch + ".attention.value_length");
  facts.split_files = std::max(1u, number_value(file.get(), "split.count"));
  const std::uint32_t heads = number_value(file.get(), arch + ".attention.head_count");
  const std::uint32_t width = number_value(file.get(), arch + ".embedding_length");
  if (facts.key_dim == 0 && heads > 0) facts.key_dim = width / heads;
  if (facts.value_dim == 0) facts.value_dim = facts.key_dim;
  return facts;
}

Result<LlamaModelPtr> load_llama_model(const std::string& path, std::uint32_t gpu_layers) {
  start_backend_once();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = static_cast<std::int32_t>(gpu_layers);
  LlamaModelPtr model;
  try {
    model.reset(llama_model_load_from_file(path.c_str(), params));
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("llama.cpp cannot load {}: {}", path, error.what()));
  }
  if (!model) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("llama.cpp cannot load {}: the file is damaged, incomplete, or of an "
                              "architecture that this build does not know; see the log",
                              path));
  }
  return model;
}

Result<LlamaContextPtr> make_llama_context(llama_model& model, const ContextPlan& plan) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = plan.cells;
  // At start llama.cpp makes room for one output per sequence, and aborts when a batch is smaller.
  params.n_batch = std::max(plan.batch, plan.sequences);
  params.n_ubatch = plan.micro_batch;
  params.n_seq_max = plan.sequences;
  params.n_threads = static_cast<std::int32_t>(plan.threads);
  params.n_threads_batch = static_cast<std::int32_t>(plan.threads);
  params.type_k = to_ggml(plan.kv_type);
  params.type_v = to_ggml(plan.kv_type);
  params.flash_attn_type =
      plan.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;
  params.kv_unified = plan.unified;
  params.swa_full = true;
  params.no_perf = true;
  LlamaContextPtr context;
  try {
    context.reset(llama_init_from_model(&model, params));
  } catch (const std::exception& error) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("llama.cpp cannot make a context of {} cells with KV type {}: {}",
                              plan.cells, to_string(plan.kv_type), error.what()));
  }
  if (!context) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("llama.cpp cannot make a context of {} cells with KV type {}: no "
                              "memory, or the model cannot be run this way; see the log",
                              plan.cells, to_string(plan.kv_type)));
  }
  return context;
}

}  // namespace hitide
