// RequestReader: HTTP/1.1 requests out of the bytes of one connection, as they come. It is strict:
// what two readers could take for two different requests is refused.
//
// Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai_types.h"

namespace hitide {

struct HttpRequest {
  std::string method;
  std::string path;                                          // decoded, without the query
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  bool keep_alive = true;    // the client takes more answers on this connection
  bool takes_chunks = true;  // false: HTTP/1.0

  // The first of that name, which is in lower case; empty: there is none.
  std::string_view header(std::string_view name) const;
};

class RequestReader {
 public:
  struct Limits {
    std::size_t line_bytes_max = 8u << 10;   // the request's first line: 414
    std::size_t head_bytes_max = 64u << 10;  // with all headers: 431
    std::size_t body_bytes_max = 4u << 20;   // decoded: 413
  };
  enum class State { empty, reading, whole, refused };

  explicit RequestReader(const Limits& limits) : limits_(limits) {}

  // Takes bytes up to the end of one request; those beyond it wait for take(). Cost: linear.
  State feed(std::string_view bytes);
  State state() const { return state_; }
  // Requires whole. What came behind the request is the begin of the next one: state() says how far
  // it has come.
  HttpRequest take();
  // Requires refused; bytes that follow mean nothing.
  const ApiError& refusal() const { return refusal_; }
  // True once for a request whose sender waits for "100 Continue" with its body.
  bool take_continue();
  // For the next head on.
  void set_body_bytes_max(std::size_t bytes) { limits_.body_bytes_max = bytes; }
  // Bytes held.
  std::size_t buffered() const { return buffer_.size() + request_.body.size(); }

 private:
  enum class Phase { head, body, chunk_size, chunk, chunk_end, trailer };
  enum class Step { more, next, done };

  void go_on();
  Step read_head();
  Step read_body();
  Step read_chunk_size();
  Step read_chunk();
  Step read_chunk_end();
  Step read_trailer();
  // The next line of buffer_ from at_, without its end; advances at_. False: not whole yet, or
  // refused.
  bool next_line(std::size_t bytes_max, std::string_view& line);
  bool parse_head(std::string_view head);
  bool parse_first_line(std::string_view line);
  bool parse_header(std::string_view line);
  bool parse_framing();
  bool refuse(int status, std::string code, std::string message);

  Limits limits_;
  State state_ = State::empty;
  Phase phase_ = Phase::head;
  std::string buffer_;
  std::size_t at_ = 0;       // in buffer_: what is before it has been read
  std::size_t scanned_ = 0;  // in buffer_: no line ends before it, from at_ on
  std::size_t left_ = 0;     // of the body or of the chunk
  std::size_t trailer_bytes_ = 0;
  bool wants_continue_ = false;
  HttpRequest request_;
  ApiError refusal_;
};

}  // namespace hitide
