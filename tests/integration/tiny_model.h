// Writes a recurrent model of a few thousand random weights: one whose state llama.cpp cannot copy
// by pages. It generates noise; what matters is that it is served.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ggml.h>
#include <gguf.h>

namespace hitide::test {

class TinyMamba {
 public:
  static void write(const std::string& path) { TinyMamba().save(path); }

 private:
  static constexpr std::int64_t kWidth = 32, kInner = 64, kState = 8, kConv = 4, kRank = 2;
  static constexpr std::uint32_t kLayers = 2;

  TinyMamba()
      : tensors_(ggml_init({.mem_size = 4u << 20, .mem_buffer = nullptr, .no_alloc = false})),
        file_(gguf_init_empty()) {}
  ~TinyMamba() {
    gguf_free(file_);
    ggml_free(tensors_);
  }

  void save(const std::string& path) {
    gguf_set_val_str(file_, "general.architecture", "mamba");
    gguf_set_val_u32(file_, "mamba.context_length", 512);
    gguf_set_val_u32(file_, "mamba.embedding_length", kWidth);
    gguf_set_val_u32(file_, "mamba.block_count", kLayers);
    gguf_set_val_u32(file_, "mamba.ssm.conv_kernel", kConv);
    gguf_set_val_u32(file_, "mamba.ssm.inner_size", kInner);
    gguf_set_val_u32(file_, "mamba.ssm.state_size", kState);
    gguf_set_val_u32(file_, "mamba.ssm.time_step_rank", kRank);
    gguf_set_val_f32(file_, "mamba.attention.layer_norm_rms_epsilon", 1e-5f);
    const std::int64_t vocabulary = add_vocabulary();
    add("token_embd.weight", {kWidth, vocabulary}, 1.0f);
    add("output_norm.weight", {kWidth}, 1.0f);
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      add(layer + "attn_norm.weight", {kWidth}, 1.0f);
      add(layer + "ssm_in.weight", {kWidth, 2 * kInner}, 0.2f);
      add(layer + "ssm_conv1d.weight", {kConv, kInner}, 0.2f);
      add(layer + "ssm_conv1d.bias", {kInner}, 0.2f);
      add(layer + "ssm_x.weight", {kInner, kRank + 2 * kState}, 0.2f);
      add(layer + "ssm_dt.weight", {kRank, kInner}, 0.2f);
      add(layer + "ssm_dt.bias", {kInner}, 0.2f);
      add(layer + "ssm_a", {kState, kInner}, -0.5f);
      add(layer + "ssm_d", {kInner}, 0.2f);
      add(layer + "ssm_out.weight", {kInner, kWidth}, 0.2f);
    }
    gguf_write_to_file(file_, path.c_str(), false);
  }

  // The bytes of a byte-fallback vocabulary: every text can be written with it.
  std::int64_t add_vocabulary() {
    std::vector<std::string> names{"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types{2, 3, 3};  // unknown, control, control
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", byte);
      names.emplace_back(name);
      types.push_back(6);  // byte
    }
    std::vector<const char*> pointers;
    for (const std::string& name : names) pointers.push_back(name.c_str());
    const std::vector<float> scores(names.size(), 0.0f);
    gguf_set_val_str(file_, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file_, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
    gguf_set_arr_data(file_, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(),
                      scores.size());
    gguf_set_arr_data(file_, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
    return static_cast<std::int64_t>(names.size());
  }

  // Random values in [0, scale] or [scale, 0].
  void add(const std::string& name, const std::vector<std::int64_t>& shape, float scale) {
    ggml_tensor* const tensor =
        ggml_new_tensor(tensors_, GGML_TYPE_F32, static_cast<int>(shape.size()), shape.data());
    ggml_set_name(tensor, name.c_str());
    auto* const values = static_cast<float*>(tensor->data);
    for (std::int64_t i = 0; i < ggml_nelements(tensor); ++i) {
      values[i] = scale * static_cast<float>(random_() % 1000) / 1000.0f;
    }
    gguf_add_tensor(file_, tensor);
  }

  ggml_context* tensors_;
  gguf_context* file_;
  std::mt19937 random_{7};
};

}  // namespace hitide::test
