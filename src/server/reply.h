// Reply: what an endpoint answers, without any word about the HTTP library that sends it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai_types.h"

namespace hitide {

// Whether the client has closed its connection. Cheap; called several times a second.
using ClientGone = std::function<bool()>;
// Sends a piece; false: it cannot be sent, the client is away.
using SendPiece = std::function<bool(std::string_view piece)>;

// `held` stands for the memory of `text`, and goes with it.
struct RequestBody {
  std::string text;
  std::shared_ptr<void> held;
  std::string cache_salt = {};  // of the headers; empty: none
  std::string extra_key = {};
};

struct Reply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Set: the body is streamed by this call, which returns when all is sent or sending has failed.
  std::function<void(const SendPiece& send)> stream;
};

inline Reply error_reply(const ApiError& error) {
  Reply reply;
  reply.status = error.status;
  reply.body = error_json(error);
  if (error.status == 429 || error.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

inline Reply json_reply(std::string body) {
  Reply reply;
  reply.body = std::move(body);
  return reply;
}

}  // namespace hitide
