#include "server/openai_types.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace hitide {
namespace {

using Json = nlohmann::json;

ApiRequest parsed(ApiKind kind, const std::string& body) {
  ApiParse parse = parse_request(kind, body);
  EXPECT_FALSE(parse.error.has_value()) << body << ": " << parse.error->message;
  return std::move(parse.request);
}

// The refusal's field; the message must name it.
std::string refused(ApiKind kind, const std::string& body) {
  const ApiParse parse = parse_request(kind, body);
  EXPECT_TRUE(parse.error.has_value()) << body;
  if (!parse.error) return "";
  EXPECT_EQ(parse.error->status, 400);
  EXPECT_EQ(parse.error->type, "invalid_request_error");
  EXPECT_FALSE(parse.error->message.empty());
  EXPECT_EQ(parse.error->message.find('\n'), std::string::npos);
  if (!parse.error->param.empty()) {
    EXPECT_EQ(parse.error->message.find(parse.error->param), 0u) << parse.error->message;
  }
  return parse.error->param;
}

std::string chat_with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}";
}

TEST(OpenAiParse, ChatWithEverything) {
  const ApiRequest request = parsed(ApiKind::chat, R"({
      "model": "any/name", "stream": true, "stream_options": {"include_usage": true},
      "messages": [{"role": "developer", "content": "be short"},
                   {"role": "user", "content": [{"type": "text", "text": "a"},
                                                {"type": "text", "text": "b"}]},
                   {"role": "assistant", "content": null}],
      "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1,
      "seed": 42, "stop": ["x", "y"], "n": 1, "ignore_eos": true, "cache_salt": "tenant",
      "extra_key": "lora", "priority": -3, "user": "somebody", "logprobs": false, "tools": [],
      "presence_penalty": 0.0, "response_format": {"type": "text"}, "unknown_field": {"a": 1}})");
  EXPECT_EQ(request.model, "any/name");
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  ASSERT_EQ(request.messages.size(), 3u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.messages[2].content, "");
  const GenerationRequest& generation = request.generation;
  EXPECT_EQ(generation.tokens_max, 7u);
  EXPECT_EQ(generation.sampling.temperature, 0.0f);
  EXPECT_EQ(generation.sampling.top_p, 0.5f);
  EXPECT_EQ(generation.sampling.top_k, 3);
  EXPECT_EQ(generation.sampling.min_p, 0.1f);
  EXPECT_EQ(generation.sampling.seed, 42u);
  EXPECT_EQ(generation.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(generation.ignore_eos);
  EXPECT_EQ(generation.cache_salt, "tenant");
  EXPECT_EQ(generation.extra_key, "lora");
  EXPECT_EQ(generation.priority, -3);
}

TEST(OpenAiParse, AbsentFieldsAreOpenAisDefaults) {
  const ApiRequest chat = parsed(ApiKind::chat, chat_with(R"("model":null)"));
  EXPECT_EQ(chat.generation.tokens_max, 0u);
  EXPECT_EQ(chat.generation.sampling.temperature, 1.0f);
  EXPECT_FALSE(chat.generation.sampling.seed.has_value());
  EXPECT_FALSE(chat.generation.cache_salt.has_value());
  EXPECT_FALSE(chat.stream);
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":"p"})").generation.tokens_max, 16u);
}

TEST(OpenAiParse, PromptsOfEveryShape) {
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":"text"})").prompt_text, "text");
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":["text"]})").prompt_text, "text");
  const std::vector<TokenId> ids = {1, 2, 3};
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":[1,2,3]})").prompt_tokens, ids);
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":[[1,2,3]]})").prompt_tokens, ids);
  for (const char* bad : {R"("")", "[]", "[[]]", R"(["a","b"])", "[[1],[2]]", "7", "{}", R"([""])",
                          "null", "[true]"}) {
    EXPECT_EQ(refused(ApiKind::completion, std::string(R"({"prompt":)") + bad + "}"), "prompt");
  }
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":[1,"a"]})"), "prompt[1]");
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":[1,-2]})"), "prompt[1]");
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":[1,4294967296]})"), "prompt[1]");
  EXPECT_EQ(refused(ApiKind::completion, "{}"), "prompt");
}

TEST(OpenAiParse, WrongTypesAndRangesNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"model", "7"},
      {"max_tokens", "0"},
      {"max_tokens", "-1"},
      {"max_tokens", "1.5"},
      {"max_tokens", R"("5")"},
      {"max_tokens", "18446744073709551615"},
      {"max_completion_tokens", "true"},
      {"temperature", R"("hot")"},
      {"temperature", "-0.1"},
      {"top_p", "1.1"},
      {"top_k", "0.5"},
      {"top_k", "-2"},
      {"min_p", "2"},
      {"seed", R"("s")"},
      {"stop", "5"},
      {"stop", R"([1])"},
      {"stop", R"([""])"},
      {"stream", "1"},
      {"stream", R"("true")"},
      {"stream_options", R"({"include_usage":true})"},
      {"n", "2"},
      {"n", "0"},
      {"best_of", "2"},
      {"logprobs", "true"},
      {"top_logprobs", "3"},
      {"tools", R"([{"type":"function"}])"},
      {"logit_bias", R"({"1":5})"},
      {"presence_penalty", "0.5"},
      {"frequency_penalty", R"("x")"},
      {"response_format", R"({"type":"json_object"})"},
      {"echo", "true"},
      {"suffix", R"("s")"},
      {"ignore_eos", "0"},
      {"cache_salt", "5"},
      {"extra_key", "[]"},
      {"priority", "\"high\""},
      {"priority", "4000000000"},
  };
  for (const auto& [field, value] : cases) {
    EXPECT_EQ(refused(ApiKind::chat, chat_with(std::string("\"") + field + "\":" + value)), field)
        << value;
  }
  EXPECT_EQ(refused(ApiKind::chat, chat_with(R"("stream":true,"stream_options":5)")),
            "stream_options");
  EXPECT_EQ(
      refused(ApiKind::chat, chat_with(R"("stream":true,"stream_options":{"include_usage":1})")),
      "stream_options.include_usage");
}

TEST(OpenAiParse, BadMessagesNameThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "messages"},
      {"5", "messages"},
      {R"(["hi"])", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":5,"content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
       "messages[0].content[0]"},
  };
  for (const auto& [messages, place] : cases) {
    EXPECT_EQ(refused(ApiKind::chat, std::string(R"({"messages":)") + messages + "}"), place);
  }
  EXPECT_EQ(refused(ApiKind::chat, "{}"), "messages");
}

TEST(OpenAiParse, BodiesThatAreNoJsonObject) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string bodies[] = {"",
                                "{",
                                "[]",
                                "7",
                                "{\"a\":}",
                                "nope",
                                "{}{}",
                                "{\"a\":1e999}",
                                "\xff\xfe",
                                "{\"a\":\"\xc3\x28\"}",
                                deep,
                                "\"\\u",
                                std::string(1, '\0')};
  for (const std::string& body : bodies) EXPECT_EQ(refused(ApiKind::chat, body), "");
  const std::string brackets_in_text(1000, '[');
  parsed(ApiKind::chat, R"({"messages":[{"role":"user","content":")" + brackets_in_text + "\"}]}");
}

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

TEST(OpenAiAnswer, ChatCarriesUsage) {
  const Json answer = Json::parse(answer_json(sample_head(ApiKind::chat), "hi", sample_result()));
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
  const Json answer = Json::parse(answer_json(head, "hi", result));
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
  const Json role = Json::parse(role_chunk_json(head));
  EXPECT_EQ(role["object"], "chat.completion.chunk");
  EXPECT_EQ(role["choices"][0]["delta"]["role"], "assistant");
  EXPECT_FALSE(role.contains("usage"));
  head.include_usage = true;
  const Json text = Json::parse(text_chunk_json(head, "a\n\"b"));
  EXPECT_EQ(text["choices"][0]["delta"]["content"], "a\n\"b");
  EXPECT_TRUE(text["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(text["usage"].is_null());
  const Json finish = Json::parse(finish_chunk_json(head, FinishReason::length));
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(finish["choices"][0]["delta"].empty());
  const Json usage = Json::parse(usage_chunk_json(head, sample_result()));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 103);
  const Json completion = Json::parse(text_chunk_json(sample_head(ApiKind::completion), "piece"));
  EXPECT_EQ(completion["object"], "text_completion");
  EXPECT_EQ(completion["choices"][0]["text"], "piece");
}

TEST(OpenAiAnswer, EveryTextGoesOutAsValidUtf8) {
  const std::string body = text_chunk_json(sample_head(ApiKind::chat), "a\xff z");
  const Json chunk = Json::parse(body);
  EXPECT_EQ(chunk["choices"][0]["delta"]["content"], "a\xef\xbf\xbd z");
  EXPECT_EQ(body.find('\n'), std::string::npos) << "one line of an event";
}

TEST(OpenAiError, ShapeAndStatusOfEachCode) {
  ApiError error;
  error.message = "bad \"thing\"";
  const Json json = Json::parse(error_json(error));
  EXPECT_EQ(json["error"]["message"], "bad \"thing\"");
  EXPECT_TRUE(json["error"]["param"].is_null());
  EXPECT_TRUE(json["error"]["code"].is_null());
  EXPECT_EQ(error_of(Status(StatusCode::invalid_argument, "m")).status, 400);
  EXPECT_EQ(error_of(Status(StatusCode::not_found, "m")).status, 404);
  EXPECT_EQ(error_of(Status(StatusCode::resource_exhausted, "m")).status, 503);
  EXPECT_EQ(error_of(Status(StatusCode::failed_precondition, "m")).status, 503);
  EXPECT_EQ(error_of(Status(StatusCode::internal, "m")).status, 500);
  EXPECT_EQ(error_of(Status(StatusCode::data_loss, "m")).status, 500);
  EXPECT_EQ(error_of(Status(StatusCode::internal, "why")).message, "why");
}

TEST(OpenAiParse, NulInAChatIsRefusedAndNamesTheField) {
  const auto refused_at = [](std::string_view body, std::string_view param) {
    const ApiParse parse = parse_request(ApiKind::chat, body);
    ASSERT_TRUE(parse.error) << body;
    EXPECT_EQ(parse.error->status, 400);
    EXPECT_EQ(parse.error->param, param) << body;
    EXPECT_NE(parse.error->message.find("NUL"), std::string::npos) << parse.error->message;
  };
  refused_at(R"({"messages":[{"role":"user","content":"a\u0000b"}]})", "messages[0].content");
  refused_at(R"({"messages":[{"role":"user","content":"a"},{"role":"us\u0000er","content":"b"}]})",
             "messages[1].role");
  refused_at(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
             R"({"type":"text","text":"\u0000"}]}]})",
             "messages[0].content");
  const ApiParse completion = parse_request(ApiKind::completion, R"({"prompt":"a\u0000b"})");
  ASSERT_FALSE(completion.error) << completion.error->message;
  EXPECT_EQ(completion.request.prompt_text, std::string("a\0b", 3));
}

// A field of a wrong type is said to be one: the body is JSON.
TEST(OpenAiParse, WrongTypesNameTheFieldAndTheTypeExpected) {
  for (const char* value : {"\"text\"", "[\"x\"]", "3", "true", "{\"type\":3}", "{}"}) {
    const ApiParse parse = parse_request(
        ApiKind::completion, fmt::format(R"({{"prompt":"p","response_format":{}}})", value));
    ASSERT_TRUE(parse.error) << value;
    EXPECT_EQ(parse.error->param.rfind("response_format", 0), 0u) << parse.error->message;
    EXPECT_NE(parse.error->message.find("must be"), std::string::npos) << parse.error->message;
  }
  // Every field with every type: refused with its name or taken, never with the parser's words.
  for (const char* field : {"prompt",          "model",        "max_tokens", "temperature",
                            "top_k",           "seed",         "stop",       "stream",
                            "stream_options",  "cache_salt",   "n",          "logprobs",
                            "tools",           "logit_bias",   "echo",       "presence_penalty",
                            "response_format", "top_logprobs", "best_of",    "suffix"}) {
    for (const char* value : {"null", "true", "0", "-1", "1.5", "\"\"", "\"x\"", "[]", "[1]",
                              "[[]]", "[{}]", "{}", "{\"a\":[]}", "18446744073709551615"}) {
      const bool prompt = std::string_view(field) == "prompt";
      const ApiParse parse = parse_request(
          ApiKind::completion,
          fmt::format(R"({{{}"{}":{}}})", prompt ? "" : R"("prompt":"p",)", field, value));
      if (!parse.error) continue;
      EXPECT_EQ(parse.error->message.rfind(field, 0), 0u)
          << field << " " << value << ": " << parse.error->message;
    }
  }
}

TEST(OpenAiParse, UnsupportedFieldsThatSayNothingAreTaken) {
  for (const char* field : {"tools", "functions", "logit_bias", "suffix"}) {
    for (const char* value : {"null", "0", "false", "[]", "{}", "\"\""}) {
      const ApiParse parse = parse_request(
          ApiKind::completion, fmt::format(R"({{"prompt":"p","{}":{}}})", field, value));
      EXPECT_FALSE(parse.error) << field << " " << value;
    }
    for (const char* value : {"1", "true", "[1]", "{\"a\":1}", "\"x\""}) {
      const ApiParse parse = parse_request(
          ApiKind::completion, fmt::format(R"({{"prompt":"p","{}":{}}})", field, value));
      ASSERT_TRUE(parse.error) << field << " " << value;
      EXPECT_EQ(parse.error->param, field);
    }
  }
}

}  // namespace
}  // namespace hitide
