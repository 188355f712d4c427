// The bytes of an HTTP/1.1 answer.
#pragma once

#include <string>
#include <string_view>

#include "server/reply.h"

namespace hitide {

struct AnswerFraming {
  bool head_only = false;  // to HEAD
  bool last = false;       // the connection is closed behind it
  bool chunked = false;    // streams; their end is said by last_chunk()
};

// A reply without a stream.
std::string whole_answer_bytes(const Reply& reply, const AnswerFraming& framing);
// The head of a stream; unless it is chunked it ends with the connection.
std::string stream_head_bytes(const Reply& reply, const AnswerFraming& framing);
// Not empty.
std::string chunk_bytes(std::string_view piece);
std::string_view last_chunk();

}  // namespace hitide
