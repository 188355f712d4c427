// OpenAI's request and response bodies as values: parsing with clear refusals, and writing. Knows
// no HTTP and no engine call. docs/server.md lists the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace hitide {

// An answer in OpenAI's error shape.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field; empty: none
  std::string code;   // empty: none
};
std::string error_json(const ApiError& error);
// What an engine's failure means to a client.
ApiError error_of(const Status& status);

enum class ApiKind : std::uint8_t { chat, completion };

struct ApiRequest {
  ApiKind kind = ApiKind::chat;
  std::string model;                  // as asked for; empty: none was named
  std::vector<ChatMessage> messages;  // chat
  std::string prompt_text;            // completion, unless token ids were given
  std::vector<TokenId> prompt_tokens;
  GenerationRequest generation;  // all but the prompt
  bool stream = false;
  bool include_usage = false;
};

struct ApiParse {
  ApiRequest request;
  std::optional<ApiError> error;  // set: `request` means nothing
};
ApiParse parse_request(ApiKind kind, std::string_view body);

// What all parts of one answer share.
struct AnswerHead {
  ApiKind kind = ApiKind::chat;
  std::string id;
  std::string model;
  std::int64_t created = 0;     // seconds since 1970
  bool cache_report = false;    // usage says more
  bool include_usage = false;   // streams: parts carry a usage field
  std::string storage_backend;  // "none" when there is no L3
};

// A whole answer.
std::string answer_json(const AnswerHead& head, std::string_view text,
                        const GenerationResult& result);
// The parts of a streamed answer, in order; the first is for chats only, the last only with usage.
std::string role_chunk_json(const AnswerHead& head);
std::string text_chunk_json(const AnswerHead& head, std::string_view text);
std::string finish_chunk_json(const AnswerHead& head, FinishReason finish);
std::string usage_chunk_json(const AnswerHead& head, const GenerationResult& result);

}  // namespace hitide
