#include "server/http_answer.h"

#include <fmt/format.h>

namespace hitide {
namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

// Up to the headers of the body's length.
std::string head_begin(const Reply& reply, const AnswerFraming& framing) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", reply.status,
                                 reason_of(reply.status), reply.content_type);
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += framing.last ? "Connection: close\r\n" : "Connection: keep-alive\r\n";
  return head;
}

}  // namespace

std::string whole_answer_bytes(const Reply& reply, const AnswerFraming& framing) {
  std::string bytes = head_begin(reply, framing);
  bytes += fmt::format("Content-Length: {}\r\n\r\n", reply.body.size());
  if (!framing.head_only) bytes += reply.body;
  return bytes;
}

std::string stream_head_bytes(const Reply& reply, const AnswerFraming& framing) {
  std::string bytes = head_begin(reply, framing);
  bytes += framing.chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  return bytes;
}

std::string chunk_bytes(std::string_view piece) {
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

std::string_view last_chunk() { return "0\r\n\r\n"; }

}  // namespace hitide
