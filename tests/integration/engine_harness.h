// Runs an engine with the real model in tests: options that fit a test, a sink that waits, and the
// same prompt on an engine without a cache.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llama/llama_engine.h"
#include "tests/integration/engine_support.h"
#include "tests/support/temp_directory.h"

namespace hitide::test {

class WaitingSink final : public GenerationSink {
 public:
  void on_admitted(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    admitted_ = true;
    explanation_id_ = id;
    changed_.notify_all();
  }
  void on_text(std::string_view text) override {
    const std::lock_guard lock(mutex_);
    text_ += text;
    ++texts_;
    changed_.notify_all();
  }
  void on_done(GenerationResult result) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(done_) << "on_done came twice";
    result_ = std::move(result);
    done_ = true;
    changed_.notify_all();
  }

  // The result; the test fails when it does not come within two minutes.
  GenerationResult wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(2), [&] { return done_; }));
    return result_;
  }
  void wait_admitted() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(2), [&] { return admitted_ || done_; });
  }
  void wait_texts(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(2), [&] { return texts_ >= count || done_; });
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool admitted_ = false, done_ = false;
  int texts_ = 0;
  std::string text_, explanation_id_;
  GenerationResult result_;
};

struct TestOptions {
  EngineOptions engine;
  CacheOptions cache;

  TestOptions() {
    engine.model_path = model_path();
    engine.context_length = 512;
    engine.page_size = 16;
    engine.device_tokens = 1024;
    engine.sequences_max = 32;
    engine.running_requests_max = 3;
    engine.threads = 1;
    engine.prefill_chunk_tokens = 64;
    cache.host.bytes = 64u << 20;
    cache.storage.backend = "none";
    cache.policy.prefetch_threshold_tokens = 32;
    cache.policy.load_back_threshold_tokens = 1;
  }
  std::unique_ptr<Engine> open() const {
    auto opened = open_llama_engine(engine, cache);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
};

inline GenerationRequest greedy_request(std::vector<TokenId> prompt, std::uint32_t tokens_max) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.tokens_max = tokens_max;
  request.sampling.temperature = 0.0f;
  request.ignore_eos = true;
  request.return_logits = true;
  return request;
}

inline GenerationResult generate(Engine& engine, GenerationRequest request) {
  WaitingSink sink;
  const auto id = engine.submit(std::move(request), &sink);
  EXPECT_TRUE(id.ok()) << id.status().to_string();
  return id.ok() ? sink.wait() : GenerationResult{};
}
inline GenerationResult generate(Engine& engine, const std::vector<TokenId>& prompt,
                                 std::uint32_t tokens_max) {
  return generate(engine, greedy_request(prompt, tokens_max));
}

// The same prompts on an engine that keeps nothing.
class Uncached {
 public:
  explicit Uncached(TestOptions options) {
    options.cache.enabled = false;
    engine_ = options.open();
  }
  GenerationResult generate(const std::vector<TokenId>& prompt, std::uint32_t tokens_max) {
    return test::generate(*engine_, prompt, tokens_max);
  }
  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
};

// Equal tokens and, at every step, the same bits in every logit.
inline void expect_same(const GenerationResult& a, const GenerationResult& b,
                        const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  ASSERT_EQ(a.logits.size(), b.logits.size()) << what;
  for (std::size_t i = 0; i < a.logits.size(); ++i) {
    EXPECT_TRUE(same_bits(a.logits[i].data(), b.logits[i].data())) << what << ", step " << i;
  }
}

// Waits until `done` holds; the test fails after half a minute. For states of other threads that
// nothing announces.
template <typename Condition>
void wait_for(const char* what, Condition done) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "still waiting for " << what;
    never.wait_for(lock, std::chrono::milliseconds(5));
  }
}

}  // namespace hitide::test
