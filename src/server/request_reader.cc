#include "server/request_reader.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace hitide {
namespace {

constexpr std::size_t kChunkLineBytesMax = 256;

bool is_token_char(char c) {
  const bool alphanumeric =
      (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return alphanumeric || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_control(char c) { return (c >= 0 && c < 0x20 && c != '\t') || c == 0x7f; }

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), is_control);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// Calls `visit` with each part of a comma-separated list.
template <typename Visit>
void for_each_part(std::string_view list, Visit visit) {
  for (;;) {
    const std::size_t comma = list.find(',');
    visit(trimmed(list.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

std::optional<std::size_t> number(std::string_view text, int base) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Wrong escapes stay as they are.
std::string decoded(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto byte = path[i] == '%' && path.size() - i > 2 && is_token_char(path[i + 1])
                          ? number(path.substr(i + 1, 2), 16)
                          : std::nullopt;
    out += byte ? static_cast<char>(*byte) : path[i];
    if (byte) i += 2;
  }
  return out;
}

bool takes_body(std::string_view method) {
  return method == "POST" || method == "PUT" || method == "PATCH";
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [known, value] : headers) {
    if (known == name) return value;
  }
  return {};
}

RequestReader::State RequestReader::feed(std::string_view bytes) {
  buffer_.append(bytes);
  if (state_ == State::empty || state_ == State::reading) go_on();
  return state_;
}

HttpRequest RequestReader::take() {
  HttpRequest taken = std::move(request_);
  request_ = {};
  state_ = State::empty;
  phase_ = Phase::head;
  wants_continue_ = false;
  go_on();
  return taken;
}

bool RequestReader::take_continue() { return std::exchange(wants_continue_, false); }

void RequestReader::go_on() {
  Step step = Step::next;
  while (step == Step::next) {
    switch (phase_) {
      case Phase::head:
        step = read_head();
        break;
      case Phase::body:
        step = read_body();
        break;
      case Phase::chunk_size:
        step = read_chunk_size();
        break;
      case Phase::chunk:
        step = read_chunk();
        break;
      case Phase::chunk_end:
        step = read_chunk_end();
        break;
      case Phase::trailer:
        step = read_trailer();
        break;
    }
  }
  if (state_ == State::refused) {
    buffer_ = {};
    at_ = scanned_ = 0;
    return;
  }
  buffer_.erase(0, at_);
  scanned_ -= std::min(scanned_, at_);
  at_ = 0;
  if (buffer_.empty()) buffer_ = {};  // connections that are idle hold no memory
  if (step == Step::done) {
    state_ = State::whole;
    wants_continue_ = false;
  } else if (!buffer_.empty() || phase_ != Phase::head) {
    state_ = State::reading;
  }
}

bool RequestReader::next_line(std::size_t bytes_max, std::string_view& line) {
  const std::size_t end = buffer_.find('\n', std::max(scanned_, at_));
  if (end == std::string::npos) {
    scanned_ = buffer_.size();
    if (buffer_.size() - at_ <= bytes_max) return false;
    return refuse(400, "bad_request", fmt::format("a line has more than {} bytes", bytes_max));
  }
  if (end == at_ || buffer_[end - 1] != '\r') {
    return refuse(400, "bad_request", "a line does not end with CR LF");
  }
  line = std::string_view(buffer_).substr(at_, end - 1 - at_);
  at_ = scanned_ = end + 1;
  if (line.size() <= bytes_max) return true;
  return refuse(400, "bad_request", fmt::format("a line has more than {} bytes", bytes_max));
}

RequestReader::Step RequestReader::read_head() {
  // Empty lines before a request are from clients that end their bodies with one.
  while (buffer_.compare(at_, 2, "\r\n") == 0) at_ += 2;
  // A client that speaks something else, such as TLS, may send no line end ever.
  if (at_ < buffer_.size() && buffer_[at_] != '\r' && !is_token_char(buffer_[at_])) {
    refuse(400, "bad_request", "this is no HTTP; the server speaks plain HTTP/1.1");
    return Step::more;
  }
  std::size_t begin = std::max(scanned_, at_);
  for (;;) {
    const std::size_t end = buffer_.find('\n', begin);
    const std::size_t seen = (end == std::string::npos ? buffer_.size() : end) - at_;
    const bool first = buffer_.find('\n', at_) == end;
    if (first && seen > limits_.line_bytes_max) {
      refuse(414, "uri_too_long",
             fmt::format("the first line has more than {} bytes", limits_.line_bytes_max));
      return Step::more;
    }
    if (seen > limits_.head_bytes_max) {
      refuse(431, "headers_too_large",
             fmt::format("the headers have more than {} bytes", limits_.head_bytes_max));
      return Step::more;
    }
    if (end == std::string::npos) {
      scanned_ = buffer_.size();
      return Step::more;
    }
    if (end == at_ || buffer_[end - 1] != '\r') {
      refuse(400, "bad_request", "a line does not end with CR LF");
      return Step::more;
    }
    begin = end + 1;
    if (end >= at_ + 3 && buffer_.compare(end - 3, 4, "\r\n\r\n") == 0) break;
  }
  // With the last header's line end, without the empty line.
  const std::string_view head = std::string_view(buffer_).substr(at_, begin - 2 - at_);
  if (!parse_head(head)) return Step::more;
  at_ = scanned_ = begin;
  if (phase_ == Phase::head) return Step::done;
  wants_continue_ = lower(request_.header("expect")) == "100-continue" && request_.takes_chunks;
  return Step::next;
}

RequestReader::Step RequestReader::read_body() {
  if (buffer_.size() - at_ < left_) return Step::more;
  if (at_ == 0 && buffer_.size() == left_) {
    request_.body = std::exchange(buffer_, {});
  } else {
    request_.body = buffer_.substr(at_, left_);
    at_ += left_;
  }
  scanned_ = at_;
  return Step::done;
}

RequestReader::Step RequestReader::read_chunk_size() {
  std::string_view line;
  if (!next_line(kChunkLineBytesMax, line)) return Step::more;
  const auto size = number(trimmed(line.substr(0, line.find(';'))), 16);
  if (!size || has_control(line)) {
    refuse(400, "bad_request", "a chunk's size is no hexadecimal number");
    return Step::more;
  }
  if (*size > limits_.body_bytes_max - request_.body.size()) {
    refuse(413, "body_too_large",
           fmt::format("the body has more than {} bytes", limits_.body_bytes_max));
    return Step::more;
  }
  left_ = *size;
  phase_ = *size == 0 ? Phase::trailer : Phase::chunk;
  return Step::next;
}

RequestReader::Step RequestReader::read_chunk() {
  const std::size_t here = std::min(left_, buffer_.size() - at_);
  request_.body.append(buffer_, at_, here);
  at_ += here;
  scanned_ = at_;
  left_ -= here;
  if (left_ != 0) return Step::more;
  phase_ = Phase::chunk_end;
  return Step::next;
}

RequestReader::Step RequestReader::read_chunk_end() {
  if (buffer_.size() - at_ < 2) return Step::more;
  if (buffer_.compare(at_, 2, "\r\n") != 0) {
    refuse(400, "bad_request", "a chunk is longer than its size says");
    return Step::more;
  }
  at_ += 2;
  scanned_ = at_;
  phase_ = Phase::chunk_size;
  return Step::next;
}

RequestReader::Step RequestReader::read_trailer() {
  std::string_view line;
  if (!next_line(limits_.line_bytes_max, line)) return Step::more;
  if (line.empty()) return Step::done;
  trailer_bytes_ += line.size();
  if (trailer_bytes_ > limits_.head_bytes_max) {
    refuse(431, "headers_too_large",
           fmt::format("the trailer has more than {} bytes", limits_.head_bytes_max));
    return Step::more;
  }
  return Step::next;
}

bool RequestReader::parse_head(std::string_view head) {
  const std::size_t first = head.find("\r\n");
  if (!parse_first_line(head.substr(0, first))) return false;
  for (head.remove_prefix(first + 2); !head.empty();) {
    const std::size_t end = head.find("\r\n");
    if (!parse_header(head.substr(0, end))) return false;
    head.remove_prefix(end + 2);
  }
  return parse_framing();
}

bool RequestReader::parse_first_line(std::string_view line) {
  const std::size_t method_end = line.find(' ');
  const std::size_t target_end = line.rfind(' ');
  const auto bad = [&] {
    return refuse(400, "bad_request", "the first line is no `METHOD PATH HTTP/1.1`");
  };
  if (method_end == std::string_view::npos || target_end == method_end) return bad();
  const std::string_view method = line.substr(0, method_end);
  std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const std::string_view version = line.substr(target_end + 1);
  if (!is_token(method) || target.empty() || has_control(target) ||
      target.find(' ') != std::string_view::npos) {
    return bad();
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.substr(0, 5) != "HTTP/") return bad();
    return refuse(505, "http_version", "only HTTP/1.1 and HTTP/1.0 are spoken here");
  }
  constexpr std::string_view kScheme = "http://";
  if (lower(target.substr(0, kScheme.size())) == kScheme) {
    const std::size_t path = target.find_first_of("/?", kScheme.size());
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  request_.method = method;
  request_.path = decoded(target.substr(0, target.find('?')));
  request_.takes_chunks = request_.keep_alive = version == "HTTP/1.1";
  return true;
}

bool RequestReader::parse_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)) ||
      has_control(line.substr(colon))) {
    return refuse(400, "bad_request", "a header is no `Name: value`");
  }
  request_.headers.emplace_back(lower(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  return true;
}

bool RequestReader::parse_framing() {
  bool chunked = false;
  std::optional<std::size_t> length;
  for (const auto& [name, value] : request_.headers) {
    if (name == "connection") {
      for_each_part(value, [&](std::string_view part) {
        const std::string word = lower(part);
        if (word == "close") request_.keep_alive = false;
        if (word == "keep-alive" && !request_.takes_chunks) request_.keep_alive = true;
      });
    } else if (name == "transfer-encoding") {
      if (chunked || lower(value) != "chunked" || !request_.takes_chunks) {
        return refuse(501, "transfer_encoding", "the only Transfer-Encoding here is chunked");
      }
      chunked = true;
    } else if (name == "content-length") {
      const bool digits = value.find_first_not_of("0123456789") == std::string::npos;
      const auto here = digits && value.size() <= 18 ? number(value, 10) : std::nullopt;
      if (!here || (length && *length != *here)) {
        return refuse(400, "bad_request", "Content-Length is no number, or not the only one");
      }
      length = here;
    }
  }
  if (chunked && length) {
    return refuse(400, "bad_request", "Content-Length and Transfer-Encoding exclude each other");
  }
  if ((chunked || length.value_or(0) != 0) && !takes_body(request_.method)) {
    return refuse(400, "bad_request", fmt::format("{} takes no body here", request_.method));
  }
  if (length.value_or(0) > limits_.body_bytes_max) {
    return refuse(413, "body_too_large",
                  fmt::format("the body has {} bytes, more than the {} that are taken", *length,
                              limits_.body_bytes_max));
  }
  left_ = length.value_or(0);
  trailer_bytes_ = 0;
  if (chunked) {
    phase_ = Phase::chunk_size;
  } else if (left_ != 0) {
    phase_ = Phase::body;
  }
  return true;
}

bool RequestReader::refuse(int status, std::string code, std::string message) {
  state_ = State::refused;
  refusal_ = {};
  refusal_.status = status;
  refusal_.code = std::move(code);
  refusal_.message = std::move(message);
  return false;
}

}  // namespace hitide
