#include "server/openai_answer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace hitide {
namespace {

using Json = nlohmann::json;

GenerationResult sample_result() {
  GenerationResult result;
  result.prompt_tokens = 100;
  result.tokens = {1, 2, 3};
  result.cached_tokens = 64;
  result.cached_device = 32;
  result.cached_storage = 32;
  result.explanation_id = "ex-9";
  result.saved = std::chrono::microseconds(1500);
  return result;
}

AnswerHead sample_head(ApiKind kind) {
  AnswerHead head;
  head.kind = kind;
  head.id = "id-1";
  head.model = "m";
  head.created = 5;
  head.storage_backend = "file";
  return head;
}

AnswerChoice text_part(std::string_view text) {
  AnswerChoice part;
  part.text = text;
  return part;
}

Json whole(const AnswerHead& head, const GenerationResult& result) {
  AnswerChoice choice = text_part("hi");
  choice.finish = result.finish;
  return Json::parse(answer_json(head, {&choice, 1}, {{&result, 1}, 1}));
}

TEST(OpenAiAnswer, ChatCarriesUsage) {
  const Json answer = whole(sample_head(ApiKind::chat), sample_result());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "hi");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  const Json usage = answer["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 100);
  EXPECT_EQ(usage["completion_tokens"], 3);
  EXPECT_EQ(usage["total_tokens"], 103);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 64);
  EXPECT_FALSE(usage["prompt_tokens_details"].contains("cached_tokens_details"));
  EXPECT_FALSE(usage.contains("hitide"));
}

TEST(OpenAiAnswer, CacheReportSplitsByTierAndSumsUp) {
  AnswerHead head = sample_head(ApiKind::completion);
  head.cache_report = true;
  GenerationResult result = sample_result();
  result.finish = FinishReason::length;
  const Json answer = whole(head, result);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "hi");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  const Json details = answer["usage"]["prompt_tokens_details"]["cached_tokens_details"];
  EXPECT_EQ(
      details["device"].get<int>() + details["host"].get<int>() + details["storage"].get<int>(),
      answer["usage"]["prompt_tokens_details"]["cached_tokens"]);
  EXPECT_EQ(details["storage_backend"], "file");
  EXPECT_EQ(answer["usage"]["hitide"]["explanation_id"], "ex-9");
  EXPECT_EQ(answer["usage"]["hitide"]["saved_ms"], 1.5);
}

TEST(OpenAiAnswer, PartsOfAStream) {
  AnswerHead head = sample_head(ApiKind::chat);
  const Json role = Json::parse(role_chunk_json(head, 0));
  EXPECT_EQ(role["object"], "chat.completion.chunk");
  EXPECT_EQ(role["choices"][0]["delta"]["role"], "assistant");
  EXPECT_FALSE(role.contains("usage"));
  head.include_usage = true;
  const Json text = Json::parse(text_chunk_json(head, text_part("a\n\"b")));
  EXPECT_EQ(text["choices"][0]["delta"]["content"], "a\n\"b");
  EXPECT_TRUE(text["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(text["usage"].is_null());
  const Json finish = Json::parse(finish_chunk_json(head, 0, FinishReason::length));
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(finish["choices"][0]["delta"].empty());
  const GenerationResult result = sample_result();
  const Json usage = Json::parse(usage_chunk_json(head, {{&result, 1}, 1}));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 103);
  const Json completion =
      Json::parse(text_chunk_json(sample_head(ApiKind::completion), text_part("piece")));
  EXPECT_EQ(completion["object"], "text_completion");
  EXPECT_EQ(completion["choices"][0]["text"], "piece");
}

TEST(OpenAiAnswer, EveryTextGoesOutAsValidUtf8) {
  const std::string body = text_chunk_json(sample_head(ApiKind::chat), text_part("a\xff z"));
  const Json chunk = Json::parse(body);
  EXPECT_EQ(chunk["choices"][0]["delta"]["content"], "a\xef\xbf\xbd z");
  EXPECT_EQ(body.find('\n'), std::string::npos) << "one line of an event";
}

// The prompt of several answers is counted once, and so is what was cached of it.
TEST(OpenAiAnswer, SeveralChoicesCountTheirPromptOnce) {
  AnswerHead head = sample_head(ApiKind::completion);
  head.cache_report = true;
  std::vector<GenerationResult> results(4, sample_result());
  results[1].cached_tokens = results[1].cached_device = 96;
  results[1].cached_storage = 0;
  results[3].explanation_id = "ex-other";
  std::vector<AnswerChoice> choices(4, text_part("t"));
  for (std::uint32_t i = 0; i < 4; ++i) choices[i].index = i;
  const Json answer = Json::parse(answer_json(head, choices, {results, 2}));
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answer["choices"][i]["index"], i);
  const Json usage = answer["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 200);
  EXPECT_EQ(usage["completion_tokens"], 12);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 128);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens_details"]["device"], 64);
  EXPECT_EQ(usage["hitide"]["explanation_id"], "ex-9");
  EXPECT_EQ(usage["hitide"]["explanation_ids"][3], "ex-other");
}

TEST(OpenAiAnswer, LogprobsInBothShapes) {
  std::vector<TokenLogprob> tokens(2);
  tokens[0].bytes = "caf";
  tokens[0].logprob = -0.5f;
  tokens[0].top = {{1, -0.25f, "the"}, {2, -0.5f, "caf"}};
  tokens[1].bytes = "\xc3";
  tokens[1].logprob = -9999.0f;
  AnswerChoice choice = text_part("caf");
  choice.logprobs = {&tokens, 10};
  const GenerationResult result = sample_result();
  const Json chat = Json::parse(
      answer_json(sample_head(ApiKind::chat), {&choice, 1}, {{&result, 1}, 1}))["choices"][0];
  const Json content = chat["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "caf");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["bytes"], (Json{99, 97, 102}));
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "the");
  EXPECT_EQ(content[1]["token"], "bytes:\\xc3") << "a part of a character";
  EXPECT_EQ(content[1]["bytes"], (Json{0xc3}));
  const Json completion = Json::parse(
      text_chunk_json(sample_head(ApiKind::completion), choice))["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"], (Json{"caf", "bytes:\\xc3"}));
  EXPECT_EQ(completion["token_logprobs"], (Json{-0.5, -9999.0}));
  EXPECT_EQ(completion["text_offset"], (Json{10, 13}));
  EXPECT_EQ(completion["top_logprobs"][0]["the"], -0.25);
  EXPECT_TRUE(completion["top_logprobs"][1].is_null());
}

}  // namespace
}  // namespace hitide
