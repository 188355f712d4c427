#include "server/request_reader.h"

#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace hitide {
namespace {

using State = RequestReader::State;

RequestReader::Limits small_limits() {
  RequestReader::Limits limits;
  limits.line_bytes_max = 100;
  limits.head_bytes_max = 300;
  limits.body_bytes_max = 50;
  return limits;
}

// The status that `bytes` are refused with, given at once and byte by byte; 0: they are not.
int refusal_of(std::string_view bytes, const RequestReader::Limits& limits = small_limits()) {
  RequestReader whole(limits);
  whole.feed(bytes);
  RequestReader pieces(limits);
  for (const char c : bytes) pieces.feed({&c, 1});
  EXPECT_EQ(whole.state(), pieces.state()) << bytes;
  const int status = whole.state() == State::refused ? whole.refusal().status : 0;
  EXPECT_EQ(pieces.state() == State::refused ? pieces.refusal().status : 0, status) << bytes;
  return status;
}

TEST(RequestReader, ReadsALineHeadersAndABody) {
  RequestReader reader{RequestReader::Limits{}};
  EXPECT_EQ(reader.state(), State::empty);
  const State state = reader.feed(
      "POST /v1/a%2fb%zz?query=1 HTTP/1.1\r\nHost: t\r\nX-Name: \t value \r\n"
      "Content-Length: 5\r\n\r\nhello");
  ASSERT_EQ(state, State::whole);
  const HttpRequest request = reader.take();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/a/b%zz");
  EXPECT_EQ(request.header("x-name"), "value");
  EXPECT_EQ(request.header("none"), "");
  EXPECT_EQ(request.body, "hello");
  EXPECT_TRUE(request.keep_alive);
  EXPECT_TRUE(request.takes_chunks);
  EXPECT_EQ(reader.state(), State::empty);
  EXPECT_EQ(reader.buffered(), 0u);
}

TEST(RequestReader, SaysWhetherTheConnectionGoesOn) {
  const auto keeps = [](std::string_view line_and_headers) {
    RequestReader reader(small_limits());
    EXPECT_EQ(reader.feed(line_and_headers), State::whole) << line_and_headers;
    return reader.take().keep_alive;
  };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nConnection: te, close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET http://host/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(RequestReader, DecodesChunks) {
  RequestReader reader(small_limits());
  const std::string bytes =
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
  EXPECT_EQ(reader.feed(bytes), State::reading);
  EXPECT_TRUE(reader.take_continue());
  EXPECT_FALSE(reader.take_continue()) << "once";
  EXPECT_EQ(reader.feed("3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"),
            State::whole);
  EXPECT_EQ(reader.take().body, "abc0123456789");
}

// Requests behind one another are the same ones however the bytes are cut.
TEST(RequestReader, FindsEveryRequestOfAPipeline) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  std::string bytes;
  std::vector<std::string> bodies;
  for (int i = 0; i < 60; ++i) {
    const std::string body(random() % 50, static_cast<char>('a' + i % 26));
    bodies.push_back(body);
    if (i % 3 == 0) {
      bytes +=
          fmt::format("POST /{} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", i, body.size(), body);
    } else if (i % 3 == 1) {
      bytes += fmt::format("POST /{} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", i);
      if (!body.empty()) bytes += fmt::format("{:x}\r\n{}\r\n", body.size(), body);
      bytes += "0\r\n\r\n\r\n";
    } else {
      bytes += fmt::format("GET /{} HTTP/1.1\r\n\r\n", i);
      bodies.back().clear();
    }
  }
  for (int round = 0; round < 20; ++round) {
    RequestReader reader(small_limits());
    std::size_t at = 0;
    std::size_t found = 0;
    while (at < bytes.size()) {
      const std::size_t length = std::min<std::size_t>(1 + random() % 97, bytes.size() - at);
      State state = reader.feed(std::string_view(bytes).substr(at, length));
      at += length;
      for (; state == State::whole; state = reader.state()) {
        const HttpRequest request = reader.take();
        ASSERT_LT(found, bodies.size());
        EXPECT_EQ(request.path, fmt::format("/{}", found));
        EXPECT_EQ(request.body, bodies[found++]);
      }
      ASSERT_NE(state, State::refused) << reader.refusal().message;
    }
    EXPECT_EQ(found, bodies.size());
    EXPECT_EQ(reader.state(), State::empty);
  }
}

TEST(RequestReader, BoundsEverything) {
  EXPECT_EQ(refusal_of("GET /" + std::string(200, 'a')), 414) << "before the line has ended";
  EXPECT_EQ(refusal_of("GET /" + std::string(200, 'a') + " HTTP/1.1\r\n\r\n"), 414);
  EXPECT_EQ(refusal_of("GET / HTTP/1.1\r\nA: " + std::string(400, 'a')), 431);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 100; ++i) many += "A: b\r\n";
  EXPECT_EQ(refusal_of(many), 431);
  EXPECT_EQ(refusal_of("POST / HTTP/1.1\r\nContent-Length: 51\r\n\r\n"), 413);
  EXPECT_EQ(refusal_of("POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\n"), 0);
  const std::string chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(refusal_of(chunked + "33\r\n"), 413);
  EXPECT_EQ(refusal_of(chunked + "ffffffffffffffff\r\n"), 413);
  EXPECT_EQ(refusal_of(chunked + "1f\r\n" + std::string(31, 'a') + "\r\n14\r\n"), 413);
  EXPECT_EQ(refusal_of(chunked + std::string(300, '0')), 400);
  std::string trailers = chunked + "0\r\n";
  for (int i = 0; i < 100; ++i) trailers += "A: b\r\n";
  EXPECT_EQ(refusal_of(trailers), 431);
}

TEST(RequestReader, RefusesWhatCouldBeTwoDifferentRequests) {
  for (const char* headers :
       {"Content-Length: 2\r\nContent-Length: 3\r\n", "Content-Length: -1\r\n",
        "Content-Length: +1\r\n", "Content-Length: 1, 1\r\n", "Content-Length: 0x1\r\n",
        "Content-Length:\r\n", "Content-Length: 99999999999999999999\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "Name : value\r\n", ": value\r\n",
        "Name\r\n", " folded: line\r\n", "A: b\r\n continued\r\n", "A: b\rc\r\n"}) {
    EXPECT_EQ(refusal_of(fmt::format("POST / HTTP/1.1\r\n{}\r\n", headers)), 400) << headers;
  }
  for (const char* headers :
       {"Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"}) {
    EXPECT_EQ(refusal_of(fmt::format("POST / HTTP/1.1\r\n{}\r\n", headers)), 501) << headers;
  }
  EXPECT_EQ(refusal_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 501);
  EXPECT_EQ(refusal_of("POST / HTTP/1.1\nContent-Length: 1\n\na"), 400);
  EXPECT_EQ(refusal_of(std::string("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", 26)), 400);
  for (const char* method : {"GET", "HEAD", "DELETE", "OPTIONS"}) {
    EXPECT_EQ(refusal_of(fmt::format("{} / HTTP/1.1\r\nContent-Length: 1\r\n\r\n", method)), 400);
    EXPECT_EQ(refusal_of(fmt::format("{} / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", method)), 0);
    EXPECT_EQ(
        refusal_of(fmt::format("{} / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", method)),
        400);
  }
}

TEST(RequestReader, RefusesWhatIsNoHttp) {
  for (const char* line : {"GET /", "GET", "GET / HTTP/1.1 x", " / HTTP/1.1", "G\x01T / HTTP/1.1",
                           "GET  / HTTP/1.1", "GET / FTP/1.1", "GET /\x7f HTTP/1.1"}) {
    EXPECT_EQ(refusal_of(fmt::format("{}\r\n\r\n", line)), 400) << line;
  }
  EXPECT_EQ(refusal_of("\x16\x03\x01"), 400) << "TLS, without any line end";
  EXPECT_EQ(refusal_of("GET / HTTP/2.0\r\n\r\n"), 505);
  const std::string chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* chunk : {"\r\n", "x\r\n", "-1\r\n", "2\r\nabc\r\n", "2\nab\r\n"}) {
    EXPECT_EQ(refusal_of(chunked + chunk), 400) << chunk;
  }
}

}  // namespace
}  // namespace hitide
