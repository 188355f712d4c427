#include "server/openai_answer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace hitide {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Text goes out as UTF-8 whatever came in.
std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string_view finish_text(FinishReason finish) {
  return finish == FinishReason::length ? "length" : "stop";
}

OrderedJson usage_json(const AnswerHead& head, const AnswerUsage& usage) {
  std::uint64_t prompt = 0;
  std::uint64_t completion = 0;
  std::uint64_t cached = 0;
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t storage = 0;
  Duration saved{};
  OrderedJson explanations = OrderedJson::array();
  for (std::size_t i = 0; i < usage.results.size(); ++i) {
    const GenerationResult& result = usage.results[i];
    completion += result.tokens.size();
    saved += result.saved;
    explanations.push_back(result.explanation_id);
    if (i % usage.per_prompt != 0) continue;
    prompt += result.prompt_tokens;
    cached += result.cached_tokens;
    device += result.cached_device;
    host += result.cached_host;
    storage += result.cached_storage;
  }
  OrderedJson details = {{"cached_tokens", cached}};
  if (head.cache_report) {
    details["cached_tokens_details"] = {{"device", device},
                                        {"host", host},
                                        {"storage", storage},
                                        {"storage_backend", head.storage_backend}};
  }
  OrderedJson json = {{"prompt_tokens", prompt},
                      {"completion_tokens", completion},
                      {"total_tokens", prompt + completion},
                      {"prompt_tokens_details", std::move(details)}};
  if (head.cache_report) {
    json["hitide"] = {{"explanation_id", explanations.empty() ? "" : explanations[0]},
                      {"saved_ms", to_milliseconds(saved)}};
    if (explanations.size() > 1) json["hitide"]["explanation_ids"] = std::move(explanations);
  }
  return json;
}

OrderedJson head_json(const AnswerHead& head, bool chunk) {
  const char* object = "text_completion";
  if (head.kind == ApiKind::chat) object = chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

// A token as text; one that is a part of a character as OpenAI writes it, "bytes:\xe2\x82".
std::string token_text(const std::string& bytes) {
  const OrderedJson text(bytes);
  try {
    (void)text.dump();
    return bytes;
  } catch (const OrderedJson::exception&) {
    std::string out = "bytes:";
    for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return out;
  }
}

OrderedJson chat_token(const TokenLikelihood& token) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {
      {"token", token_text(token.bytes)}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

OrderedJson chat_logprobs(const std::vector<TokenLogprob>& tokens) {
  OrderedJson content = OrderedJson::array();
  for (const TokenLogprob& token : tokens) {
    OrderedJson entry = chat_token(token);
    entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLikelihood& other : token.top)
      entry["top_logprobs"].push_back(chat_token(other));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson completion_logprobs(const std::vector<TokenLogprob>& tokens, std::size_t offset) {
  OrderedJson json = {{"text_offset", OrderedJson::array()},
                      {"token_logprobs", OrderedJson::array()},
                      {"tokens", OrderedJson::array()},
                      {"top_logprobs", OrderedJson::array()}};
  for (const TokenLogprob& token : tokens) {
    json["text_offset"].push_back(offset);
    offset += character_count(token.bytes);
    json["token_logprobs"].push_back(token.logprob);
    json["tokens"].push_back(token_text(token.bytes));
    OrderedJson top = OrderedJson::object();
    for (const TokenLikelihood& other : token.top) top[token_text(other.bytes)] = other.logprob;
    json["top_logprobs"].push_back(token.top.empty() ? OrderedJson(nullptr) : std::move(top));
  }
  return json;
}

OrderedJson logprobs_json(ApiKind kind, const LogprobList& list) {
  if (list.tokens == nullptr) return nullptr;
  return kind == ApiKind::chat ? chat_logprobs(*list.tokens)
                               : completion_logprobs(*list.tokens, list.offset);
}

// One choice of a streamed part; `delta` is what is new.
std::string chunk_json(const AnswerHead& head, const AnswerChoice& new_part, OrderedJson delta,
                       OrderedJson finish) {
  OrderedJson choice = {{"index", new_part.index}};
  if (head.kind == ApiKind::chat) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = delta.value("content", "");
  }
  choice["logprobs"] = logprobs_json(head.kind, new_part.logprobs);
  choice["finish_reason"] = std::move(finish);
  OrderedJson chunk = head_json(head, true);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (head.include_usage) chunk["usage"] = nullptr;
  return dump(chunk);
}

}  // namespace

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string answer_json(const AnswerHead& head, std::span<const AnswerChoice> choices,
                        const AnswerUsage& usage) {
  OrderedJson list = OrderedJson::array();
  for (const AnswerChoice& choice : choices) {
    OrderedJson json = {{"index", choice.index}};
    if (head.kind == ApiKind::chat) {
      json["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      json["text"] = choice.text;
    }
    json["logprobs"] = logprobs_json(head.kind, choice.logprobs);
    json["finish_reason"] = finish_text(choice.finish);
    list.push_back(std::move(json));
  }
  OrderedJson answer = head_json(head, false);
  answer["choices"] = std::move(list);
  answer["usage"] = usage_json(head, usage);
  return dump(answer);
}

std::string role_chunk_json(const AnswerHead& head, std::uint32_t index) {
  return chunk_json(head, {.index = index, .text = {}, .logprobs = {}},
                    {{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::string text_chunk_json(const AnswerHead& head, const AnswerChoice& choice) {
  return chunk_json(head, choice, {{"content", choice.text}}, nullptr);
}

std::string finish_chunk_json(const AnswerHead& head, std::uint32_t index, FinishReason finish) {
  return chunk_json(head, {.index = index, .text = {}, .logprobs = {}}, OrderedJson::object(),
                    finish_text(finish));
}

std::string usage_chunk_json(const AnswerHead& head, const AnswerUsage& usage) {
  OrderedJson chunk = head_json(head, true);
  chunk["choices"] = OrderedJson::array();
  chunk["usage"] = usage_json(head, usage);
  return dump(chunk);
}

}  // namespace hitide
