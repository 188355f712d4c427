// OpenAI's request bodies as values, with clear refusals, and its error shape. Knows no HTTP and no
// engine call. docs/server.md lists the fields.
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

struct ApiPrompt {
  std::string text;             // unless token ids were given
  std::vector<TokenId> tokens;  // of the prompt
};

struct ApiRequest {
  ApiKind kind = ApiKind::chat;
  std::string model;                  // as asked for; empty: none was named
  std::vector<ChatMessage> messages;  // chat
  std::vector<ApiPrompt> prompts;     // completion, one or more
  std::uint32_t choices = 1;          // answers to each prompt
  std::string grammar_field;          // where the grammar came from
  bool echo = false;                  // completion: the prompt's text comes first
  GenerationRequest generation;       // what all of them share
  bool stream = false;
  bool include_usage = false;
};

struct ApiParse {
  ApiRequest request;
  std::optional<ApiError> error;  // set: `request` means nothing
};
ApiParse parse_request(ApiKind kind, std::string_view body);

}  // namespace hitide
