// What the tests with a real model share: the model, tokens to feed it, and a reference context.
//
// The model's path comes from HITIDE_TEST_MODEL. Without it the program says so and exits with 77,
// which CTest shows as skipped.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include <hitide/types.h>

#include "engine/llama/llama_model.h"

namespace hitide::test {

inline std::string model_path() {
  const char* const path = std::getenv("HITIDE_TEST_MODEL");
  return path == nullptr ? "" : path;
}

class NeedsModel : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!model_path().empty()) return;
    std::fprintf(stderr, "skipped: HITIDE_TEST_MODEL does not name a model file\n");
    std::exit(77);
  }
};
// One per program, registered before main.
inline ::testing::Environment* const kNeedsModel =
    ::testing::AddGlobalTestEnvironment(new NeedsModel);

// Loaded once per program.
inline llama_model& shared_model() {
  static const LlamaModelPtr model = load_llama_model(model_path(), 0).value();
  return *model;
}

inline int vocabulary_size() {
  return llama_vocab_n_tokens(llama_model_get_vocab(&shared_model()));
}

// `count` tokens of plain English-like text, different for each seed.
inline std::vector<TokenId> some_tokens(std::size_t count, std::uint32_t seed) {
  static const char* const kWords[] = {
      "the",     "river",  "city",  "of",    "and",   "a",    "light",   "stone",  "engine",
      "cache",   "memory", "page",  "tree",  "under", "over", "quickly", "slowly", "writes",
      "reads",   "keeps",  "finds", "many",  "few",   "old",  "new",     "answer", "question",
      "because", "when",   "where", "green", "blue",  "house"};
  std::mt19937 random(seed);
  std::string text;
  for (std::size_t i = 0; i < 2 * count + 8; ++i) {
    text += kWords[random() % std::size(kWords)];
    text += i % 13 == 12 ? ". " : " ";
  }
  std::vector<TokenId> tokens(text.size() + 8);
  const int n = llama_tokenize(llama_model_get_vocab(&shared_model()), text.data(),
                               static_cast<std::int32_t>(text.size()), tokens.data(),
                               static_cast<std::int32_t>(tokens.size()), false, false);
  EXPECT_GE(n, static_cast<int>(count));
  tokens.resize(count);
  return tokens;
}

// A context of its own, emptied before each prompt: what a run without any cache computes.
class Reference {
 public:
  explicit Reference(KvType type, std::uint32_t micro_batch = 32)
      : context_(make_llama_context(shared_model(), {.cells = 2048,
                                                     .batch = 512,
                                                     .micro_batch = micro_batch,
                                                     .sequences = 1,
                                                     .threads = 1,
                                                     .kv_type = type})
                     .value()),
        batch_(llama_batch_init(512, 0, 1)) {}
  ~Reference() { llama_batch_free(batch_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // Logits of the last token, the whole prompt computed from nothing.
  std::vector<float> logits(const std::vector<TokenId>& tokens) {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    for (std::size_t at = 0; at < tokens.size();) {
      batch_.n_tokens = 0;
      for (; at < tokens.size() && batch_.n_tokens < 512; ++at) {
        const int i = batch_.n_tokens++;
        batch_.token[i] = tokens[at];
        batch_.pos[i] = static_cast<llama_pos>(at);
        batch_.n_seq_id[i] = 1;
        batch_.seq_id[i][0] = 0;
        batch_.logits[i] = at + 1 == tokens.size() ? 1 : 0;
      }
      EXPECT_EQ(llama_decode(context_.get(), batch_), 0);
    }
    const float* const out = llama_get_logits_ith(context_.get(), -1);
    return {out, out + vocabulary_size()};
  }

 private:
  LlamaContextPtr context_;
  llama_batch batch_;
};

inline bool same_bits(const float* a, const float* b) {
  return std::memcmp(a, b, sizeof(float) * static_cast<std::size_t>(vocabulary_size())) == 0;
}

inline TokenId greedy(const float* logits) {
  return static_cast<TokenId>(std::max_element(logits, logits + vocabulary_size()) - logits);
}

}  // namespace hitide::test
