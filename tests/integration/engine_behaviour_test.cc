// What the engine does beside computing: text, sampling, limits, cancelling, closing, bad models.
#include <fstream>
#include <thread>

#include "engine/llama/page_probe.h"
#include "tests/integration/engine_harness.h"
#include "tests/integration/tiny_model.h"

namespace hitide {
namespace {

using test::generate;

class EngineBehaviour : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = test::TestOptions().open(); }
  static void TearDownTestSuite() { engine_.reset(); }

  static std::vector<TokenId> question(const std::string& text) {
    const auto prompt = engine_->apply_chat_template({{"user", text}});
    EXPECT_TRUE(prompt.ok()) << prompt.status().to_string();
    return engine_->tokenize(prompt.value(), false, true);
  }
  static std::pair<std::string, GenerationResult> answer(GenerationRequest request) {
    test::WaitingSink sink;
    EXPECT_TRUE(engine_->submit(std::move(request), &sink).ok());
    GenerationResult result = sink.wait();
    return {sink.text(), std::move(result)};
  }

  static inline std::unique_ptr<Engine> engine_;
};

TEST_F(EngineBehaviour, AnswersInTheModelsChatFormat) {
  GenerationRequest request = test::greedy_request(question("What is the capital of France?"), 32);
  request.ignore_eos = false;
  request.return_logits = false;
  const auto [text, result] = answer(request);
  EXPECT_NE(text.find("Paris"), std::string::npos) << text;
  EXPECT_EQ(result.finish, FinishReason::stop);
  EXPECT_EQ(engine_->detokenize(result.tokens), text);
  EXPECT_TRUE(result.logits.empty());
  EXPECT_GT(result.total_time, result.first_token_time);
  EXPECT_GE(result.first_token_time, result.queue_time);
  EXPECT_FALSE(result.explanation_id.empty());
  const auto explanation = engine_->explain(result.explanation_id);
  ASSERT_TRUE(explanation.ok());
  EXPECT_EQ(explanation.value().prompt_tokens, result.prompt_tokens);
}

TEST_F(EngineBehaviour, StopsBeforeAStopString) {
  const std::vector<TokenId> prompt = question("Count from one to ten in words.");
  const auto [whole, all] = answer(test::greedy_request(prompt, 24));
  ASSERT_GT(whole.size(), 20u);
  const std::string stop = whole.substr(whole.size() / 2, 4);
  GenerationRequest request = test::greedy_request(prompt, 24);
  request.stop = {"no such text", stop};
  const auto [text, result] = answer(request);
  EXPECT_EQ(text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(result.finish, FinishReason::stop);
  EXPECT_LE(result.tokens.size(), all.tokens.size());
}

TEST_F(EngineBehaviour, EqualSeedsGiveEqualTextsWithAndWithoutTheCache) {
  GenerationRequest request = test::greedy_request(test::some_tokens(40, 71), 12);
  request.sampling = {.temperature = 1.0f, .top_k = 50, .top_p = 0.95f, .min_p = 0.01f, .seed = 3};
  const auto [first, cold] = answer(request);
  const auto [second, warm] = answer(request);
  EXPECT_EQ(warm.cached_tokens, 32u);
  EXPECT_EQ(cold.tokens, warm.tokens);
  EXPECT_EQ(first, second);
  request.sampling.seed = 4;
  EXPECT_NE(answer(request).second.tokens, cold.tokens);
}

TEST_F(EngineBehaviour, RefusesWhatCannotBeServed) {
  test::WaitingSink sink;
  const auto code = [&](std::vector<TokenId> prompt) {
    return engine_->submit(test::greedy_request(std::move(prompt), 4), &sink).status().code();
  };
  EXPECT_EQ(code({}), StatusCode::invalid_argument);
  EXPECT_EQ(code({1, -1}), StatusCode::invalid_argument);
  EXPECT_EQ(code({1, test::vocabulary_size()}), StatusCode::invalid_argument);
  EXPECT_EQ(code(std::vector<TokenId>(512, 1)), StatusCode::invalid_argument);
  EXPECT_EQ(engine_->apply_chat_template({{"pilot", "x"}}).status().code(),
            StatusCode::invalid_argument);
  EXPECT_TRUE(engine_->apply_chat_template({{"developer", "Be brief."}, {"user", "x"}}).ok());
  engine_->cancel(123456);  // unknown: ignored
  EXPECT_TRUE(engine_->health().ok());
}

TEST_F(EngineBehaviour, EndsAtTheContext) {
  GenerationRequest request = test::greedy_request(test::some_tokens(505, 73), 0);
  request.return_logits = false;
  const auto [text, result] = answer(request);
  EXPECT_EQ(result.finish, FinishReason::length);
  EXPECT_EQ(result.tokens.size(), 7u);
}

TEST_F(EngineBehaviour, TokenizeAndDetokenizeAreInverse) {
  for (const std::string text :
       {"", "Hello, world", "na\xc3\xafve \xf0\x9f\x98\x80", "a\n\nb  c"}) {
    EXPECT_EQ(engine_->detokenize(engine_->tokenize(text, false, false)), text);
  }
  EXPECT_EQ(engine_->tokenize("<|im_start|>", false, true).size(), 1u);
  EXPECT_GT(engine_->tokenize("<|im_start|>", false, false).size(), 1u);
}

TEST_F(EngineBehaviour, SaltsDoNotShareAndFlushForgets) {
  GenerationRequest request = test::greedy_request(test::some_tokens(50, 74), 2);
  request.cache_salt = "one";
  EXPECT_EQ(answer(request).second.cached_tokens, 0u);
  EXPECT_EQ(answer(request).second.cached_tokens, 48u);
  request.cache_salt = "two";
  EXPECT_EQ(answer(request).second.cached_tokens, 0u);
  request.cache_salt = "one";
  EXPECT_TRUE(engine_->flush_cache().ok());
  EXPECT_EQ(answer(request).second.cached_tokens, 0u);
}

TEST_F(EngineBehaviour, CancelsWhatWaitsAndWhatRuns) {
  std::vector<test::WaitingSink> sinks(5);  // three run, two wait
  std::vector<std::uint64_t> ids;
  for (std::uint32_t i = 0; i < 5; ++i) {
    GenerationRequest request = test::greedy_request(test::some_tokens(40, 75 + i), 400);
    request.return_logits = false;
    const auto id = engine_->submit(std::move(request), &sinks[i]);
    ASSERT_TRUE(id.ok());
    ids.push_back(id.value());
  }
  sinks[0].wait_texts(2);
  engine_->cancel(ids[4]);
  EXPECT_EQ(sinks[4].wait().finish, FinishReason::cancelled);
  EXPECT_EQ(sinks[4].text(), "");
  for (std::size_t i = 0; i < 4; ++i) engine_->cancel(ids[i]);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sinks[i].wait().finish, FinishReason::cancelled) << i;
  }
  EXPECT_FALSE(sinks[0].text().empty());
}

TEST(EngineClose, EndsEverythingOnceAndRefusesMore) {
  const auto engine = test::TestOptions().open();
  ASSERT_NE(engine, nullptr);
  std::vector<test::WaitingSink> sinks(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(
        engine->submit(test::greedy_request(test::some_tokens(60, 81 + i), 300), &sinks[i]).ok());
  }
  sinks[0].wait_admitted();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::thread other([&] { EXPECT_TRUE(engine->close(deadline).ok()); });
  EXPECT_TRUE(engine->close(deadline).ok());
  other.join();
  for (test::WaitingSink& sink : sinks) EXPECT_EQ(sink.wait().finish, FinishReason::cancelled);
  test::WaitingSink late;
  EXPECT_EQ(engine->submit(test::greedy_request({1, 2, 3}, 1), &late).status().code(),
            StatusCode::failed_precondition);
  EXPECT_EQ(engine->health().code(), StatusCode::unavailable);
  EXPECT_TRUE(engine->close(deadline).ok());
}

TEST(EngineModel, BadFilesAreNamed) {
  const TempDirectory folder;
  test::TestOptions options;
  const auto open_code = [&](const std::string& path) {
    options.engine.model_path = path;
    const Status status = open_llama_engine(options.engine, options.cache).status();
    EXPECT_NE(status.to_string().find(path), std::string::npos) << status.to_string();
    return status.code();
  };
  EXPECT_EQ(open_code(folder / "missing.gguf"), StatusCode::not_found);
  const std::string text = folder / "text.gguf";
  std::ofstream(text) << "this is no model";
  EXPECT_EQ(open_code(text), StatusCode::invalid_argument);
  EXPECT_EQ(open_code(folder.path()), StatusCode::invalid_argument);  // a directory
  const std::string half = folder / "half.gguf";
  std::filesystem::copy_file(test::model_path(), half);
  std::filesystem::resize_file(half, std::filesystem::file_size(half) / 2);
  EXPECT_EQ(open_code(half), StatusCode::invalid_argument);
}

TEST(EngineModel, BadOptionsAreNamed) {
  const auto refused = [](auto change) {
    test::TestOptions options;
    change(options.engine);
    return open_llama_engine(options.engine, options.cache).status().code();
  };
  using E = EngineOptions;
  EXPECT_EQ(refused([](E& e) { e.kv_cache_dtype = "q3"; }), StatusCode::invalid_argument);
  EXPECT_EQ(refused([](E& e) { e.device_tokens = 100; }), StatusCode::invalid_argument);
  EXPECT_EQ(refused([](E& e) { e.prefill_chunk_tokens = 40; }), StatusCode::invalid_argument);
  EXPECT_EQ(refused([](E& e) { e.running_requests_max = 40; }), StatusCode::invalid_argument);
  EXPECT_EQ(refused([](E& e) { e.sequences_max = 200; }), StatusCode::invalid_argument);
}

// A recurrent model: served, several requests at a time, without a cache.
TEST(EngineModel, WhatCannotBeCopiedIsServedWithoutACache) {
  const TempDirectory folder;
  test::TestOptions options;
  options.engine.model_path = folder / "tiny.gguf";
  options.engine.context_length = 128;
  options.engine.device_tokens = 0;
  test::TinyMamba::write(options.engine.model_path);
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  EXPECT_FALSE(engine->info().cache_on);
  EXPECT_NE(engine->info().cache_detail.find("mamba"), std::string::npos);
  EXPECT_EQ(engine->flush_cache().code(), StatusCode::failed_precondition);
  const std::vector<TokenId> prompt = engine->tokenize("page after page after page", true, false);
  const GenerationResult alone = generate(*engine, prompt, 20);
  EXPECT_EQ(alone.tokens.size(), 20u);
  EXPECT_EQ(generate(*engine, prompt, 20).tokens, alone.tokens);  // no state of the first is left
  std::vector<test::WaitingSink> sinks(6);
  for (test::WaitingSink& sink : sinks) {
    ASSERT_TRUE(engine->submit(test::greedy_request(prompt, 20), &sink).ok());
  }
  for (test::WaitingSink& sink : sinks) {
    const GenerationResult result = sink.wait();
    EXPECT_EQ(result.finish, FinishReason::length);
    EXPECT_EQ(result.cached_tokens, 0u);
    EXPECT_EQ(result.tokens, alone.tokens);
  }
}

TEST(PageProbe, InAChildProcess) {
  const ContextPlan context{.cells = 512, .batch = 64, .micro_batch = 64, .sequences = 8};
  const ProbePlan plan{.page_size = 16, .physical_count = 8};
  using std::chrono::seconds;
  EXPECT_EQ(probe_in_child(test::model_path(), context, plan, seconds(60)).to_string(), "ok");
  const TempDirectory folder;
  const std::string recurrent = folder / "tiny.gguf";
  test::TinyMamba::write(recurrent);
  EXPECT_EQ(probe_in_child(recurrent, context, plan, seconds(60)).code(),
            StatusCode::unimplemented);
  EXPECT_EQ(probe_in_child(folder / "missing", context, plan, seconds(60)).code(),
            StatusCode::unimplemented);
  // Out of time: the child is ended.
  EXPECT_EQ(probe_in_child(test::model_path(), context, plan, seconds(0)).code(),
            StatusCode::unimplemented);
}

TEST(PageProbe, NamesDecideFirst) {
  EXPECT_EQ(copyability_of("llama"), Copyability::yes);
  EXPECT_EQ(copyability_of("deepseek4"), Copyability::no);
  EXPECT_EQ(copyability_of("qwen4exp"), Copyability::no);
  EXPECT_EQ(copyability_of("glm5-next"), Copyability::no);
  EXPECT_EQ(copyability_of("mamba"), Copyability::no);
  EXPECT_EQ(copyability_of("something-new"), Copyability::unknown);
}

}  // namespace
}  // namespace hitide
