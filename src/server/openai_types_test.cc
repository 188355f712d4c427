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
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":"text"})").prompts.at(0).text, "text");
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":["text"]})").prompts.at(0).text, "text");
  const std::vector<TokenId> ids = {1, 2, 3};
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":[1,2,3]})").prompts.at(0).tokens, ids);
  EXPECT_EQ(parsed(ApiKind::completion, R"({"prompt":[[1,2,3]]})").prompts.at(0).tokens, ids);
  const ApiRequest several = parsed(ApiKind::completion, R"({"prompt":["a",[1,2,3],"c"],"n":2})");
  ASSERT_EQ(several.prompts.size(), 3u);
  EXPECT_EQ(several.prompts[0].text, "a");
  EXPECT_EQ(several.prompts[1].tokens, ids);
  EXPECT_EQ(several.prompts[2].text, "c");
  EXPECT_EQ(several.choices, 2u);
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":["a",""]})"), "prompt[1]");
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":["a",5]})"), "prompt[1]");
  for (const char* bad : {R"("")", "[]", "[[]]", "7", "{}", R"([""])", "null", "[true]"}) {
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
      {"n", "129"},
      {"n", "0"},
      {"best_of", "2"},
      {"logprobs", "2"},
      {"top_logprobs", "3"},
      {"tools", R"([{"type":"function"}])"},
      {"logit_bias", R"({"1":500})"},
      {"logit_bias", R"({"one":5})"},
      {"logit_bias", R"({"-1":5})"},
      {"logit_bias", "[5]"},
      {"presence_penalty", "2.5"},
      {"frequency_penalty", R"("x")"},
      {"repetition_penalty", "0"},
      {"min_tokens", "-1"},
      {"stop_token_ids", "5"},
      {"no_stop_trim", "1"},
      {"regex", R"("a+")"},
      {"structural_tag", R"({"a":1})"},
      {"chat_template_kwargs", R"({"a":1})"},
      {"grammar", R"("")"},
      {"ebnf", "5"},
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

TEST(OpenAiParse, WhatChangesTheNextToken) {
  const GenerationRequest generation =
      parsed(ApiKind::chat, chat_with(R"("presence_penalty":0.5,"frequency_penalty":-1,
          "repetition_penalty":1.25,"min_tokens":3,"stop_token_ids":[2,5],"no_stop_trim":true,
          "logit_bias":{"7":-100,"12":1.5},"logprobs":true,"top_logprobs":4)"))
          .generation;
  EXPECT_EQ(generation.sampling.presence_penalty, 0.5f);
  EXPECT_EQ(generation.sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(generation.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(generation.sampling.tokens_min, 3u);
  EXPECT_EQ(generation.stop_tokens, (std::vector<TokenId>{2, 5}));
  EXPECT_TRUE(generation.keep_stop);
  ASSERT_EQ(generation.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(generation.top_logprobs, 4u);
}

TEST(OpenAiParse, LogprobsAreSaidInTwoWays) {
  const auto chat = [](const char* fields) {
    return parsed(ApiKind::chat, chat_with(fields)).generation.top_logprobs;
  };
  EXPECT_EQ(chat(R"("logprobs":true)"), 0u);
  EXPECT_EQ(chat(R"("logprobs":false)"), std::nullopt);
  EXPECT_EQ(chat(R"("top_logprobs":0)"), std::nullopt);
  const auto completion = [](const char* value) {
    return parsed(ApiKind::completion, fmt::format(R"({{"prompt":"p","logprobs":{}}})", value))
        .generation.top_logprobs;
  };
  EXPECT_EQ(completion("3"), 3u);
  EXPECT_EQ(completion("0"), 0u);
  EXPECT_EQ(completion("null"), std::nullopt);
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":"p","logprobs":true})"), "logprobs");
  EXPECT_EQ(refused(ApiKind::completion, R"({"prompt":"p","logprobs":21})"), "logprobs");
}

TEST(OpenAiParse, GrammarsComeFromOneField) {
  const auto grammar = [](const std::string& fields) {
    return parsed(ApiKind::chat, chat_with(fields)).generation.grammar;
  };
  EXPECT_EQ(grammar(R"("response_format":{"type":"text"})"), "");
  EXPECT_EQ(grammar(R"("ebnf":"root ::= \"a\"")"), "root ::= \"a\"");
  EXPECT_NE(grammar(R"("response_format":{"type":"json_object"})"), "");
  const std::string schema = R"({"type":"object","properties":{"zeta":{},"alpha":{}}})";
  const std::string by_format =
      grammar(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" +
              schema + "}}");
  EXPECT_LT(by_format.find("zeta"), by_format.find("alpha"));
  EXPECT_EQ(grammar(R"("guided_json":)" + schema), by_format);
  EXPECT_EQ(grammar(R"("guided_json":"{\"const\":5}")"), grammar(R"("guided_json":{"const":5})"));
  const std::pair<const char*, const char*> refusals[] = {
      {R"("ebnf":"x","grammar":"y")", "ebnf"},
      {R"("response_format":{"type":"json_object"},"ebnf":"y")", "ebnf"},
      {R"("response_format":{"type":"grammar"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"x"}}})",
       "response_format.json_schema.schema"},
      {R"("guided_json":"{")", "guided_json"},
      {R"("ebnf":"x","ignore_eos":true)", "ignore_eos"},
      {R"("ebnf":"x","min_tokens":1)", "min_tokens"},
  };
  for (const auto& [fields, param] : refusals) {
    EXPECT_EQ(refused(ApiKind::chat, chat_with(fields)), param) << fields;
  }
  std::string deep = "\"guided_json\":\"";
  for (int i = 0; i < 5000; ++i) deep += "[";
  EXPECT_EQ(refused(ApiKind::chat, chat_with(deep + "\"")), "guided_json");
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
  EXPECT_EQ(completion.request.prompts.at(0).text, std::string("a\0b", 3));
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
  for (const char* field : {"prompt",          "model",        "max_tokens",  "temperature",
                            "top_k",           "seed",         "stop",        "stream",
                            "stream_options",  "cache_salt",   "n",           "logprobs",
                            "tools",           "logit_bias",   "echo",        "presence_penalty",
                            "response_format", "top_logprobs", "best_of",     "suffix",
                            "min_tokens",      "grammar",      "guided_json", "stop_token_ids"}) {
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
  for (const char* field : {"tools", "functions", "regex", "suffix"}) {
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
