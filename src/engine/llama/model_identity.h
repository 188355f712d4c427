// The ModelSpec of a GGUF model on this build and machine: whatever changes a stored bit is in it.
#pragma once

#include <cstdint>
#include <string>

#include <hitide/model_spec.h>
#include <hitide/result.h>

#include "engine/llama/llama_model.h"
#include "engine/llama/page_probe.h"

namespace hitide {

struct IdentityInputs {
  std::string model_path;
  std::string model_name;
  ModelFacts facts;
  ProbeReport probe;
  KvType kv_type = KvType::q8_0;
  std::uint32_t page_size = 0;
  std::uint32_t cells = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t threads = 1;
  std::uint32_t gpu_layers = 0;
  std::uint32_t scratch_id = 0;  // stands in the stored bytes
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
};

// Reads the whole model file for its digest, once per process and file. Errors as file_sha256.
Result<ModelSpec> make_model_spec(const IdentityInputs& inputs);

}  // namespace hitide
