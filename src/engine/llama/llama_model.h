// Loading a model and making a context: llama.cpp's objects behind owning pointers, its log behind
// ours, and what the model file says about itself before anything is loaded.
//
// Threading: the functions may be called from any thread; a context belongs to one thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <hitide/result.h>
#include <hitide/types.h>

struct llama_context;
struct llama_model;

namespace hitide {

struct LlamaModelFree {
  void operator()(llama_model* model) const;
};
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaModelFree>;

struct LlamaContextFree {
  void operator()(llama_context* context) const;
};
using LlamaContextPtr = std::unique_ptr<llama_context, LlamaContextFree>;

enum class KvType : std::uint8_t { q8_0, f16, bf16 };
// llama.cpp's own spelling: "q8_0", "f16", "bf16".
const char* to_string(KvType type);

// What the header of a GGUF file says; no weight is read.
struct ModelFacts {
  std::string architecture;          // general.architecture
  std::string rope_scaling;          // "none" when the file does not say
  std::uint32_t context_length = 0;  // 0: the file does not say
  std::uint32_t sliding_window = 0;  // tokens; 0: none
  std::uint32_t key_dim = 0;         // per head
  std::uint32_t value_dim = 0;
  std::uint32_t split_files = 1;  // that make up the model
};

// not_found, failed_precondition or unavailable when the file cannot be opened; invalid_argument
// when it is not a GGUF model or its header is damaged.
Result<ModelFacts> read_model_facts(const std::string& path);

// invalid_argument when llama.cpp cannot load the file (damaged, incomplete, unknown architecture).
Result<LlamaModelPtr> load_llama_model(const std::string& path, std::uint32_t gpu_layers);

struct ContextPlan {
  std::uint32_t cells = 0;  // n_ctx; llama.cpp rounds it up to a multiple of 256
  std::uint32_t batch = 0;  // tokens per decode call, at most
  std::uint32_t micro_batch = 0;
  std::uint32_t sequences = 1;  // ids 0..sequences-1
  std::uint32_t threads = 1;
  KvType kv_type = KvType::q8_0;
  bool unified = true;  // all sequences share one row of cells
  bool flash_attention = true;
};

// resource_exhausted when llama.cpp refuses: no memory, or the model cannot be run this way.
Result<LlamaContextPtr> make_llama_context(llama_model& model, const ContextPlan& plan);

}  // namespace hitide
