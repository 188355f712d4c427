// The server over real loopback sockets, with an engine that says what the test wants.

#include "server/http_server.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "tests/support/fake_engine.h"

namespace hitide {
namespace {

using Json = nlohmann::json;
using testing::FakeEngine;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletion = "/v1/completions";

Json chat_body(bool stream) {
  Json body = {{"model", "whatever"},
               {"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}};
  if (stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  return body;
}

// A connection that sends what a test wants and not more.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const timeval patience{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  bool connected() const { return connected_; }
  void send(const std::string& text) {
    ASSERT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  void send_post(const std::string& path, const std::string& body) {
    send(fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{}", path,
                     body.size(), body));
  }
  void shut_writing() { ::shutdown(fd_, SHUT_WR); }
  // Reads until `text` has come or the peer has closed; all that was read since the start.
  std::string read_until(const std::string& text) {
    char buffer[4096];
    while (read_.find(text) == std::string::npos) {
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      read_.append(buffer, static_cast<std::size_t>(got));
    }
    return read_;
  }
  std::string read_to_end() { return read_until(std::string(1, '\0') + "never"); }
  // What comes within that time.
  std::string read_for(std::chrono::milliseconds time) {
    pollfd entry{fd_, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(time.count())) <= 0) return {};
    return read_until("\"error\"");
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  bool connected_ = false;
  std::string read_;
};

struct Event {
  std::string raw;
  Json json;
};

// The data lines of a stream; [DONE] has no json.
std::vector<Event> events_of(const std::string& stream) {
  std::vector<Event> events;
  std::size_t at = 0;
  for (std::size_t end; (end = stream.find("\n\n", at)) != std::string::npos; at = end + 2) {
    Event event;
    event.raw = stream.substr(at, end - at);
    EXPECT_EQ(event.raw.rfind("data: ", 0), 0u) << event.raw;
    event.raw.erase(0, 6);
    if (event.raw != "[DONE]") event.json = Json::parse(event.raw);
    events.push_back(std::move(event));
  }
  EXPECT_EQ(at, stream.size()) << "the stream ends with a whole event";
  return events;
}

class HttpServerTest : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}, std::uint32_t running_max = 4,
             const IntakeLimits& limits = {}) {
    options.port = 0;
    auto bound = HttpServer::bind(options, running_max, limits);
    ASSERT_TRUE(bound.ok()) << bound.status().to_string();
    server_ = std::move(*bound);
    ASSERT_TRUE(server_->start([this] { failures_.fetch_add(1); }).ok());
    server_->set_engine(engine_);
  }
  void TearDown() override {
    if (server_) server_->begin_stop();
    engine_.close(kNoDeadline).ignore();
    if (server_) server_->stop();
    EXPECT_EQ(failures_.load(), 0);
  }
  httplib::Client client() {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(20);
    client.set_keep_alive(true);
    return client;
  }
  // Sends a chat and checks the answer's shape as far as all have it.
  httplib::Result post(const std::string& path, const std::string& body) {
    httplib::Client one = client();
    return one.Post(path.c_str(), body, "application/json");
  }
  void expect_error(const httplib::Result& result, int status, const std::string& code) {
    ASSERT_TRUE(result) << httplib::to_string(result.error());
    EXPECT_EQ(result->status, status) << result->body;
    const Json json = Json::parse(result->body);
    ASSERT_TRUE(json.contains("error")) << result->body;
    for (const char* field : {"message", "type", "param", "code"}) {
      EXPECT_TRUE(json["error"].contains(field)) << field;
    }
    EXPECT_FALSE(json["error"]["message"].get<std::string>().empty());
    if (!code.empty()) {
      EXPECT_EQ(json["error"]["code"], code) << result->body;
    }
    EXPECT_FALSE(result->has_header("X-HiTide-Explanation-Id"));
  }

  FakeEngine engine_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> failures_{0};
};

TEST_F(HttpServerTest, AnswersAChat) {
  ServerOptions options;
  options.cache_report = true;
  start(options);
  const auto result = post(kChat, chat_body(false).dump());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("X-HiTide-Explanation-Id"), "ex-1");
  const Json answer = Json::parse(result->body);
  EXPECT_EQ(answer["model"], "whatever");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello, world");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 8) << "user:hi and a line break";
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
  const Json details = answer["usage"]["prompt_tokens_details"]["cached_tokens_details"];
  EXPECT_EQ(details,
            Json({{"device", 32}, {"host", 0}, {"storage", 32}, {"storage_backend", "memory"}}));
  EXPECT_EQ(answer["usage"]["hitide"]["explanation_id"], "ex-1");
  EXPECT_EQ(answer["usage"]["hitide"]["saved_ms"], 400.0);
}

TEST_F(HttpServerTest, PassesEveryFieldToTheEngine) {
  start();
  Json body = {{"prompt", Json::array({5, 6, 7})},
               {"max_tokens", 9},
               {"temperature", 0},
               {"seed", 3},
               {"stop", "END"},
               {"ignore_eos", true},
               {"cache_salt", "tenant"},
               {"extra_key", "lora"}};
  const auto result = post(kCompletion, body.dump());
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  EXPECT_EQ(Json::parse(result->body)["model"], "fake") << "none was named";
  const GenerationRequest request = engine_.requests().at(0);
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(request.tokens_max, 9u);
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.stop, std::vector<std::string>{"END"});
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.cache_salt, "tenant");
  EXPECT_EQ(request.extra_key, "lora");
  EXPECT_FALSE(request.label.empty());
}

TEST_F(HttpServerTest, AdapterAndSaltMayComeInHeaders) {
  start();
  const httplib::Headers headers = {{"X-HiTide-Cache-Salt", "tenant"},
                                    {"X-HiTide-Adapter", "lora"}};
  httplib::Client one = client();
  const Json body = {{"prompt", Json::array({5, 6, 7})}, {"max_tokens", 1}};
  const auto result = one.Post(kCompletion, headers, body.dump(), "application/json");
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  const GenerationRequest request = engine_.requests().at(0);
  EXPECT_EQ(request.cache_salt, "tenant");
  EXPECT_EQ(request.extra_key, "lora");
  const Json other = {{"prompt", Json::array({5})}, {"max_tokens", 1}, {"cache_salt", "another"}};
  expect_error(one.Post(kCompletion, headers, other.dump(), "application/json"), 400,
               "invalid_value");
}

TEST_F(HttpServerTest, StreamsAChatInOpenAisOrder) {
  start();
  const auto result = post(kChat, chat_body(true).dump());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
  const auto events = events_of(result->body);
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events.front().json["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.back().raw, "[DONE]");
  const Json usage = events[events.size() - 2].json;
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
  EXPECT_EQ(events[events.size() - 3].json["choices"][0]["finish_reason"], "stop");
  std::string text;
  std::set<std::string> ids;
  for (std::size_t i = 0; i + 3 < events.size(); ++i) {
    EXPECT_TRUE(events[i].json["choices"][0]["finish_reason"].is_null());
    text += events[i].json["choices"][0]["delta"].value("content", "");
    ids.insert(events[i].json["id"].get<std::string>());
  }
  EXPECT_EQ(text, "Hello, world");
  EXPECT_EQ(ids.size(), 1u) << "one id for all parts";
}

TEST_F(HttpServerTest, SeveralChoicesOfSeveralPrompts) {
  start();
  const Json body = {{"prompt", {"one", "two"}}, {"n", 2}, {"seed", 5}, {"echo", true}};
  const auto result = post(kCompletion, body.dump());
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  const Json answer = Json::parse(result->body);
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], (i < 2 ? "one" : "two") + std::string("Hello, world"));
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6);
  const auto requests = engine_.requests();
  ASSERT_EQ(requests.size(), 4u);
  const std::vector<TokenId> two = {'t', 'w', 'o'};
  EXPECT_EQ(requests[3].prompt, two);
  EXPECT_EQ(requests[2].prompt, two);
  EXPECT_EQ(requests[0].sampling.seed, 5u);
  EXPECT_EQ(requests[1].sampling.seed, 6u) << "or both would say the same";
}

TEST_F(HttpServerTest, StreamsEachChoiceUnderItsIndex) {
  start();
  Json body = chat_body(true);
  body["n"] = 3;
  body["logprobs"] = true;
  body["top_logprobs"] = 1;
  const auto result = post(kChat, body.dump());
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  std::map<int, std::string> texts;
  std::map<int, std::string> tokens;
  std::map<int, int> ends;
  for (const Event& event : events_of(result->body)) {
    if (event.json.is_null()) continue;
    for (const Json& choice : event.json["choices"]) {
      const int index = choice["index"];
      EXPECT_EQ(ends[index], 0) << "nothing behind the end";
      texts[index] += choice["delta"].value("content", "");
      if (!choice["logprobs"].is_null()) {
        for (const Json& token : choice["logprobs"]["content"]) {
          tokens[index] += token["token"].get<std::string>();
          EXPECT_EQ(token["top_logprobs"].size(), 1u);
        }
      }
      if (!choice["finish_reason"].is_null()) ++ends[index];
    }
  }
  ASSERT_EQ(texts.size(), 3u);
  for (const auto& [index, text] : texts) {
    EXPECT_EQ(text, "Hello, world") << index;
    EXPECT_EQ(tokens[index], text);
    EXPECT_EQ(ends[index], 1);
  }
}

TEST_F(HttpServerTest, MoreChoicesThanMayWaitAreRefusedAndTakeNoPlace) {
  ServerOptions options;
  options.queue_max = 1;
  start(options, 2);
  Json body = chat_body(false);
  body["n"] = 4;
  const auto refused = post(kChat, body.dump());
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(Json::parse(refused->body)["error"]["param"], "n");
  body["n"] = 3;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(post(kChat, body.dump())->status, 200);
}

TEST_F(HttpServerTest, OneFailingChoiceFailsTheAnswerAndEndsTheOthers) {
  start();
  FakeEngine::Script script;
  script.finish = FinishReason::failed;
  script.failure = Status(StatusCode::invalid_argument, "no token fits");
  engine_.set_script(script);
  Json body = chat_body(false);
  body["n"] = 2;
  expect_error(post(kChat, body.dump()), 400, "");
}

TEST_F(HttpServerTest, StreamsWithoutUsageUnlessAsked) {
  start();
  const auto result = post(kCompletion, R"({"prompt":"p","stream":true})");
  ASSERT_TRUE(result);
  std::string text;
  for (const Event& event : events_of(result->body)) {
    if (event.json.is_null()) continue;
    EXPECT_FALSE(event.json.contains("usage"));
    EXPECT_EQ(event.json["choices"].size(), 1u);
    text += event.json["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "Hello, world");
}

TEST_F(HttpServerTest, TheExplanationIdComesBeforeTheText) {
  engine_.hold(FakeEngine::Hold::text);
  start();
  RawClient raw(server_->port());
  ASSERT_TRUE(raw.connected());
  raw.send_post(kChat, chat_body(true).dump());
  const std::string head = raw.read_until("\r\n\r\n");
  EXPECT_NE(head.find("X-HiTide-Explanation-Id: ex-1\r\n"), std::string::npos) << head;
  EXPECT_EQ(head.find("Hello"), std::string::npos);
  engine_.hold(FakeEngine::Hold::nothing);
  EXPECT_NE(raw.read_until("[DONE]").find("Hello"), std::string::npos);
}

TEST_F(HttpServerTest, SaysLoadingUntilTheEngineIsThere) {
  ServerOptions options;
  options.port = 0;
  server_ = HttpServer::bind(options, 1).value();
  ASSERT_TRUE(server_->start([] {}).ok());
  expect_error(client().Get("/health"), 503, "loading");
  expect_error(post(kChat, chat_body(false).dump()), 503, "loading");
  server_->set_engine(engine_);
  const auto healthy = client().Get("/health");
  ASSERT_TRUE(healthy);
  EXPECT_EQ(healthy->status, 200);
  engine_.set_health(Status(StatusCode::unavailable, "the step loop has stopped"));
  const auto sick = client().Get("/health");
  expect_error(sick, 503, "");
  EXPECT_NE(sick->body.find("step loop"), std::string::npos);
}

TEST_F(HttpServerTest, AUsedPortFailsAtOnceAndNamesIt) {
  start();
  ServerOptions options;
  options.port = server_->port();
  const auto second = HttpServer::bind(options, 1);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::unavailable);
  const std::string message(second.status().message());
  EXPECT_NE(message.find(std::to_string(options.port)), std::string::npos) << message;
  EXPECT_NE(message.find("in use"), std::string::npos) << message;
}

TEST_F(HttpServerTest, BadBodiesGetClear400sAndTheConnectionGoesOn) {
  start();
  httplib::Client one = client();
  const std::string deep(50'000, '[');
  for (const std::string& body :
       {std::string("{"), std::string(""), deep, std::string("{\"messages\":\"\xff\"}"),
        std::string(R"({"messages":[]})")}) {
    expect_error(one.Post(kChat, body, "application/json"), 400, "");
  }
  const auto alien =
      one.Post(kChat, R"({"messages":[{"role":"alien","content":"x"}]})", "application/json");
  const Json error = Json::parse(alien->body)["error"];
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(error["message"], "messages: unknown role alien");
  const auto good = one.Post(kChat, chat_body(false).dump(), "application/json");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->status, 200);
}

TEST_F(HttpServerTest, UnknownAddressesAndMethods) {
  start();
  httplib::Client one = client();
  expect_error(one.Get("/nowhere"), 404, "not_found");
  expect_error(one.Post("/nowhere", std::string(10'000, 'x'), "text/plain"), 404, "not_found");
  expect_error(one.Get("/v1/models/other"), 404, "model_not_found");
  const auto wrong = one.Get(kChat);
  expect_error(wrong, 405, "method_not_allowed");
  EXPECT_EQ(wrong->get_header_value("Allow"), "POST");
  expect_error(one.Delete("/health"), 405, "method_not_allowed");
  expect_error(one.Put("/v1/models", "{}", "application/json"), 405, "method_not_allowed");
  expect_error(one.Get(("/" + std::string(7000, 'a')).c_str()), 404, "not_found");
  expect_error(one.Post(("/" + std::string(7000, 'a')).c_str(), "{}", "application/json"), 404,
               "not_found");
  EXPECT_EQ(one.Get("/health")->status, 200);
}

TEST_F(HttpServerTest, BodiesAreBoundedWhateverTheirEncoding) {
  start();
  const std::string large(5u << 20, ' ');
  const auto refused = post(kChat, large);
  expect_error(refused, 413, "body_too_large");
  EXPECT_NE(refused->body.find("4194304"), std::string::npos) << "the limit: " << refused->body;
  EXPECT_EQ(refused->get_header_value("Connection"), "close");
  // Chunked, without a length to look at.
  httplib::Client one = client();
  std::size_t sent = 0;
  const auto chunked = one.Post(
      kChat,
      [&](std::size_t, httplib::DataSink& sink) {
        const std::size_t piece = std::min<std::size_t>(large.size() - sent, 1u << 20);
        if (piece == 0) {
          sink.done();
          return true;
        }
        sent += piece;
        return sink.write(large.data(), piece);
      },
      "application/json");
  expect_error(chunked, 413, "body_too_large");
  RawClient huge(server_->port());
  huge.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n{}");
  EXPECT_NE(huge.read_until("error").find(" 413 "), std::string::npos);
  EXPECT_EQ(client().Get("/health")->status, 200);
}

TEST_F(HttpServerTest, FormsEncodingsAndNonsenseAreRefused) {
  start();
  httplib::MultipartFormDataItems items = {{"a", "b", "", ""}};
  expect_error(client().Post(kChat, items), 415, "unsupported_media_type");
  const httplib::Headers encoded = {{"Content-Encoding", "gzip"}};
  expect_error(client().Post(kChat, encoded, "{}", "application/json"), 415,
               "unsupported_media_type");
  RawClient gone(server_->port());
  gone.send("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 500\r\n\r\n{\"mess");
  gone.shut_writing();
  EXPECT_EQ(gone.read_until("\n"), "") << "a client that has closed is not answered";
  RawClient nonsense(server_->port());
  nonsense.send("\x16\x03\x01 what is this\r\n\r\n");
  EXPECT_NE(nonsense.read_until("\r\n\r\n").find(" 400 "), std::string::npos);
  EXPECT_TRUE(engine_.requests().empty());
  EXPECT_EQ(client().Get("/health")->status, 200);
}

// However it is stretched, a request is whole in time or refused, and its thread was never taken.
TEST_F(HttpServerTest, ARequestComesWholeInTimeOrNotAtAll) {
  IntakeLimits limits;
  limits.request_time = std::chrono::seconds(1);
  start({}, 4, limits);
  for (const std::string& begin :
       {std::string("GET /health HTTP/1.1\r\nA: "),
        std::string("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 500\r\n\r\n{")}) {
    RawClient slow(server_->port());
    const auto started = std::chrono::steady_clock::now();
    slow.send(begin);
    // A byte every 100 ms: each arrives in time, the whole does not.
    std::string answer;
    for (int i = 0; i < 100 && answer.empty(); ++i) {
      answer = slow.read_for(std::chrono::milliseconds(100));
      if (answer.empty()) slow.send("x");
    }
    EXPECT_NE(answer.find(" 408 "), std::string::npos) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(5));
  }
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(HttpServerTest, SlowAndIdleConnectionsDoNotKeepProbesOut) {
  engine_.hold(FakeEngine::Hold::text);
  ServerOptions options;
  options.queue_max = 1;
  start(options, 1);
  // The engine has all it takes, with more who ask.
  std::vector<std::unique_ptr<RawClient>> clients;
  const auto add = [&](const std::string& text) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(clients.back()->connected());
    if (!text.empty()) clients.back()->send(text);
  };
  for (int i = 0; i < 4; ++i) {
    add("");
    clients.back()->send_post(kChat, chat_body(false).dump());
  }
  ASSERT_TRUE(engine_.wait_submitted(2));
  // More than the server keeps, of each kind, and none of them ever ends its request.
  for (int i = 0; i < 150; ++i) {
    add("");
    add("GET /health HTTP/1.1\r\nA: b\r\n");
    add("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 500\r\n\r\n{");
    if (i % 30 != 0) continue;
    const auto begin = std::chrono::steady_clock::now();
    for (const char* path : {"/health", "/metrics"}) {
      const auto probe = client().Get(path);
      ASSERT_TRUE(probe) << path << " with " << clients.size() << " connections";
      EXPECT_EQ(probe->status, 200);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  }
}

TEST_F(HttpServerTest, HeadersAreBounded) {
  start();
  httplib::Client one = client();
  const httplib::Headers large = {{"A", std::string(60'000, 'a')}};
  EXPECT_EQ(one.Get("/health", large)->status, 200);
  RawClient endless(server_->port());
  endless.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 8; ++i) endless.send(fmt::format("A{}: {}\r\n", i, std::string(9000, 'a')));
  const std::string answer = endless.read_until("headers_too_large");
  EXPECT_NE(answer.find(" 431 "), std::string::npos) << answer;
  EXPECT_NE(answer.find("65536"), std::string::npos) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
}

TEST_F(HttpServerTest, ABodyIsNeverTakenForARequest) {
  start();
  const std::string inner = "POST /flush_cache HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n";
  for (const char* method : {"GET", "HEAD", "DELETE"}) {
    RawClient raw(server_->port());
    raw.send(fmt::format("{} /health HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{}", method,
                         inner.size(), inner));
    const std::string answer = raw.read_to_end();
    EXPECT_EQ(answer.rfind("HTTP/1.1 400 ", 0), 0u) << answer;
    EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos) << "one answer: " << answer;
    EXPECT_EQ(answer.find("flushed"), std::string::npos) << answer;
  }
}

TEST_F(HttpServerTest, EveryPipelinedRequestIsAnsweredInItsOrder) {
  start();
  RawClient raw(server_->port());
  const std::string body = chat_body(false).dump();
  raw.send(
      fmt::format("GET /health HTTP/1.1\r\n\r\nGET /nowhere HTTP/1.1\r\n\r\n"
                  "POST {} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}"
                  "HEAD /health HTTP/1.1\r\n\r\n"
                  "GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n",
                  kChat, body.size(), body));
  const std::string answers = raw.read_to_end();
  std::size_t at = 0;
  for (const char* expected : {"200 OK", "\"status\":\"ok\"", "404 Not Found", "200 OK",
                               "Hello, world", "200 OK", "200 OK", "max_model_len"}) {
    const std::size_t found = answers.find(expected, at);
    ASSERT_NE(found, std::string::npos) << expected << " after " << at << " in " << answers;
    at = found + 1;
  }
  EXPECT_EQ(answers.find("HTTP/1.1 ", at), std::string::npos) << answers;
}

TEST_F(HttpServerTest, RangesAreIgnored) {
  start();
  const httplib::Headers range = {{"Range", "bytes=0-20"}};
  httplib::Client one = client();
  const auto chat = one.Post(kChat, range, chat_body(false).dump(), "application/json");
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->status, 200);
  EXPECT_EQ(Json::parse(chat->body)["choices"][0]["message"]["content"], "Hello, world");
  const auto models = one.Get("/v1/models", range);
  EXPECT_EQ(models->status, 200);
  EXPECT_EQ(Json::parse(models->body)["data"][0]["id"], "fake");
  EXPECT_FALSE(models->has_header("Content-Range"));
}

TEST_F(HttpServerTest, WaitsForNoContinueAndSpeaksTheOlderHttp) {
  start();
  const std::string body = chat_body(true).dump();
  RawClient asks(server_->port());
  asks.send(fmt::format("POST {} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                        kChat, body.size()));
  EXPECT_EQ(asks.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  asks.send(body);
  EXPECT_NE(asks.read_until("[DONE]").find("world"), std::string::npos);
  RawClient old(server_->port());
  old.send(
      fmt::format("POST {} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", kChat, body.size(), body));
  const std::string answer = old.read_to_end();
  EXPECT_EQ(answer.find("chunked"), std::string::npos) << answer;
  EXPECT_EQ(answer.substr(answer.size() - 15), "\ndata: [DONE]\n\n") << answer;
}

TEST_F(HttpServerTest, TheAdminKeyIsAskedForWhereStateChanges) {
  ServerOptions options;
  options.api_key = "user";
  options.admin_api_key = "admin";
  start(options);
  httplib::Client one = client();
  const httplib::Headers user = {{"Authorization", "Bearer user"}};
  const httplib::Headers admin = {{"Authorization", "Bearer admin"}};
  const auto refused = one.Post("/flush_cache", user, "", "text/plain");
  expect_error(refused, 401, "invalid_api_key");
  EXPECT_EQ(refused->get_header_value("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(one.Post("/flush_cache", admin, "", "text/plain")->status, 200);
  EXPECT_EQ(one.Get("/v1/models", user)->status, 200);
  EXPECT_EQ(one.Get("/v1/models", admin)->status, 200);
}

TEST_F(HttpServerTest, WithoutAKeyStateChangesFromThisMachineOnly) {
  ServerOptions options;
  options.host = "0.0.0.0";
  start(options);
  httplib::Client one = client();
  expect_error(one.Post("/flush_cache", "", "text/plain"), 403, "admin_off");
  const std::string body = R"({"hicache_storage_backend": "memory"})";
  expect_error(one.Put("/hicache/storage-backend", body, "application/json"), 403, "admin_off");
  expect_error(one.Delete("/hicache/storage-backend"), 403, "admin_off");
  expect_error(one.Post("/hicache/storage-backend/clear", "", "text/plain"), 403, "admin_off");
  EXPECT_EQ(one.Get("/hicache/storage-backend")->status, 200);
  EXPECT_EQ(one.Get("/v1/models")->status, 200);
  EXPECT_EQ(one.Post(kChat, chat_body(false).dump(), "application/json")->status, 200);
}

TEST_F(HttpServerTest, AttachesDetachesAndClearsStorage) {
  start();
  httplib::Client one = client();
  const std::string path = "/hicache/storage-backend";
  EXPECT_EQ(Json::parse(one.Get(path)->body)["hicache_storage_backend"], "memory");
  EXPECT_EQ(one.Delete(path)->status, 200);
  EXPECT_EQ(one.Delete(path)->status, 400);
  EXPECT_EQ(Json::parse(one.Get(path)->body)["hicache_storage_backend"], nullptr);
  EXPECT_EQ(one.Post(path + "/clear", "", "text/plain")->status, 400);
  const auto put = one.Put(path, R"({"hicache_storage_backend": "memory"})", "application/json");
  ASSERT_TRUE(put);
  EXPECT_EQ(put->status, 200) << put->body;
  EXPECT_EQ(Json::parse(one.Post(path + "/clear", "", "text/plain")->body)["removed_objects"], 12);
  const auto post = one.Post(path, "", "text/plain");
  expect_error(post, 405, "method_not_allowed");
  EXPECT_EQ(post->get_header_value("Allow"), "GET, HEAD, PUT, DELETE");
}

TEST_F(HttpServerTest, AsksForTheApiKey) {
  ServerOptions options;
  options.api_key = "secret";
  start(options);
  httplib::Client one = client();
  expect_error(one.Post(kChat, chat_body(false).dump(), "application/json"), 401,
               "invalid_api_key");
  expect_error(one.Get("/v1/models"), 401, "invalid_api_key");
  for (const char* bad : {"Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret"}) {
    const httplib::Headers headers = {{"Authorization", bad}};
    expect_error(one.Get("/v1/models", headers), 401, "invalid_api_key");
  }
  const httplib::Headers good = {{"Authorization", "Bearer secret"}};
  EXPECT_EQ(one.Get("/v1/models", good)->status, 200);
  EXPECT_EQ(one.Post(kChat, good, chat_body(false).dump(), "application/json")->status, 200);
  EXPECT_EQ(one.Get("/health")->status, 200) << "open";
  EXPECT_EQ(one.Get("/metrics")->status, 200) << "open";
}

TEST_F(HttpServerTest, ThePromptMustLeaveRoomInTheContext) {
  start();
  const Json body = {{"prompt", std::string(2000, 'x')}};
  expect_error(post(kCompletion, body.dump()), 400, "context_length_exceeded");
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(HttpServerTest, PromptsThatCannotFitAreNotTokenized) {
  start();
  const std::string text(FakeEngine::kPromptBytesMax + 1, 'x');
  const Json completion = {{"prompt", text}};
  const auto refused = post(kCompletion, completion.dump());
  expect_error(refused, 400, "context_length_exceeded");
  EXPECT_NE(refused->body.find("4001 bytes"), std::string::npos) << refused->body;
  EXPECT_EQ(Json::parse(refused->body)["error"]["param"], "prompt");
  const Json half = {{"role", "user"}, {"content", text.substr(text.size() / 2)}};
  const Json chat = {{"messages", Json::array({half, half})}};
  const auto refused_chat = post(kChat, chat.dump());
  expect_error(refused_chat, 400, "context_length_exceeded");
  EXPECT_EQ(Json::parse(refused_chat->body)["error"]["param"], "messages");
  EXPECT_EQ(engine_.tokenized_bytes_max(), 0u);
}

TEST_F(HttpServerTest, EngineRefusalsBecomeTheRightStatus) {
  start();
  engine_.set_submit_failure(Status(StatusCode::invalid_argument, "token 9 is not in the model"));
  expect_error(post(kChat, chat_body(false).dump()), 400, "");
  engine_.set_submit_failure(Status(StatusCode::resource_exhausted, "the queue is full"));
  const auto busy = post(kChat, chat_body(true).dump());
  expect_error(busy, 503, "");
  EXPECT_TRUE(busy->has_header("Retry-After"));
}

TEST_F(HttpServerTest, FailuresInTheMiddleAreSaid) {
  FakeEngine::Script script;
  script.finish = FinishReason::failed;
  script.failure = Status(StatusCode::internal, "decode failed");
  engine_.set_script(script);
  start();
  expect_error(post(kChat, chat_body(false).dump()), 500, "internal");
  const auto stream = post(kChat, chat_body(true).dump());
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->status, 200) << "it had begun";
  const auto events = events_of(stream->body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[events.size() - 2].json["error"]["message"], "decode failed");
  EXPECT_EQ(events.back().raw, "[DONE]");
  script.fails_before_admission = true;
  engine_.set_script(script);
  expect_error(post(kChat, chat_body(true).dump()), 500, "internal");
}

TEST_F(HttpServerTest, AClientThatLeavesCancelsItsRequest) {
  engine_.hold(FakeEngine::Hold::text);
  start();
  std::size_t cancelled = 0;
  for (const bool stream : {true, false}) {
    RawClient raw(server_->port());
    raw.send_post(kChat, chat_body(stream).dump());
    ASSERT_TRUE(engine_.wait_submitted(cancelled + 1));
    if (stream) raw.read_until("\r\n\r\n");
    raw.close();
    EXPECT_TRUE(engine_.wait_cancelled(++cancelled)) << (stream ? "stream" : "whole");
  }
  // While it still waits for its admission.
  engine_.hold(FakeEngine::Hold::admission);
  RawClient raw(server_->port());
  raw.send_post(kChat, chat_body(true).dump());
  ASSERT_TRUE(engine_.wait_submitted(cancelled + 1));
  raw.close();
  EXPECT_TRUE(engine_.wait_cancelled(cancelled + 1));
}

TEST_F(HttpServerTest, MoreThanTheQueueHoldsIsAnsweredWith429) {
  engine_.hold(FakeEngine::Hold::admission);
  ServerOptions options;
  options.queue_max = 1;
  start(options, 1);
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (std::size_t i = 0; i < 2; ++i) {
    waiting.push_back(std::make_unique<RawClient>(server_->port()));
    waiting.back()->send_post(kChat, chat_body(false).dump());
    ASSERT_TRUE(engine_.wait_submitted(i + 1));
  }
  const auto refused = post(kChat, chat_body(false).dump());
  expect_error(refused, 429, "server_busy");
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  EXPECT_TRUE(refused->has_header("Retry-After"));
  engine_.hold(FakeEngine::Hold::nothing);
  for (auto& client : waiting) {
    EXPECT_NE(client->read_until("Hello").find(" 200 "), std::string::npos);
  }
  // A place is free again as soon as both have been answered; the engine counts until on_done.
  EXPECT_EQ(post(kChat, chat_body(false).dump())->status, 200);
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  start();
  constexpr int kClients = 24;
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      httplib::Client one = client();
      for (int i = 0; i < 4; ++i) {
        const auto result = one.Post(kChat, chat_body((c + i) % 2 == 0).dump(), "application/json");
        if (result && result->status == 200 && result->body.find("world") != std::string::npos) {
          right.fetch_add(1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), kClients * 4);
}

TEST_F(HttpServerTest, StopEndsStreamsClearlyAndDoesNotWaitForIdleClients) {
  start();
  httplib::Client idle = client();
  ASSERT_EQ(idle.Get("/health")->status, 200);  // stays connected
  engine_.hold(FakeEngine::Hold::text);
  RawClient streaming(server_->port());
  streaming.send_post(kChat, chat_body(true).dump());
  streaming.read_until("\r\n\r\n");
  RawClient whole(server_->port());
  whole.send_post(kChat, chat_body(false).dump());
  ASSERT_TRUE(engine_.wait_submitted(2));

  const auto begin = std::chrono::steady_clock::now();
  server_->begin_stop();
  ASSERT_TRUE(engine_.close(kNoDeadline).ok());
  server_->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4))
      << "keep-alive is 5 s";
  EXPECT_NE(streaming.read_until("[DONE]").find("shutting down"), std::string::npos);
  const std::string answer = whole.read_until("\"error\"");
  EXPECT_NE(answer.find(" 503 "), std::string::npos) << answer;
  EXPECT_FALSE(RawClient(server_->port()).connected());
  server_->stop();
}

TEST_F(HttpServerTest, OperatorsPages) {
  start();
  httplib::Client one = client();
  const Json models = Json::parse(one.Get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["max_model_len"], 2000);

  const auto explained = one.Get("/hitide/explain/ex-1");
  ASSERT_TRUE(explained);
  EXPECT_EQ(explained->status, 200);
  EXPECT_EQ(Json::parse(explained->body)["spans"].size(), 2u);
  expect_error(one.Get("/hitide/explain/ex-2"), 404, "not_found");
  expect_error(one.Get("/hitide/explain/"), 404, "not_found");

  const Json storage = Json::parse(one.Get("/hitide/storage")->body);
  EXPECT_EQ(storage["backend"], "memory");
  EXPECT_EQ(storage["status"], "on");
  EXPECT_EQ(storage["registration"][0]["pool"], "kv");
  EXPECT_EQ(storage["registration"][0]["verdict"], "ok");

  EXPECT_EQ(one.Get("/flush_cache")->status, 200);
  EXPECT_EQ(one.Post("/flush_cache", "", "text/plain")->status, 200);
  engine_.set_flush_result(Status(StatusCode::failed_precondition, "there is no cache"));
  expect_error(one.Post("/flush_cache", "", "text/plain"), 409, "");
  const auto head = one.Head("/health");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 200);
}

// The rules of Prometheus's text format that a page can break: one HELP and TYPE a name, samples
// only under their own name, no sample twice.
TEST_F(HttpServerTest, MetricsAreWellFormed) {
  start();
  httplib::Client one = client();
  ASSERT_EQ(one.Get("/health")->status, 200);
  ASSERT_EQ(one.Get("/nowhere")->status, 404);
  const auto page = one.Get("/metrics");
  ASSERT_TRUE(page);
  std::set<std::string> types;
  std::set<std::string> histograms;
  std::set<std::string> samples;
  std::string current;
  std::size_t at = 0;
  for (std::size_t end; (end = page->body.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = page->body.substr(at, end - at);
    if (line.rfind("# TYPE ", 0) == 0) {
      current = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(types.insert(current).second) << line;
      if (line.substr(line.rfind(' ')) == " histogram") histograms.insert(current);
    } else if (line[0] != '#') {
      std::string name = line.substr(0, line.find_first_of("{ "));
      for (const char* part : {"_bucket", "_sum", "_count"}) {
        if (name == current + part && histograms.count(current) == 1) name = current;
      }
      EXPECT_EQ(name, current) << line;
      EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
  }
  EXPECT_EQ(at, page->body.size());
  EXPECT_TRUE(samples.count(R"(hitide_http_requests_total{route="other",status="404"})"));
  EXPECT_NE(page->body.find("hitide_served_tokens_total{tier=\"device\"} 64"), std::string::npos);
  EXPECT_NE(page->body.find("hitide_prompt_tokens_total 96"), std::string::npos);
  EXPECT_EQ(histograms.count("sglang:e2e_request_latency_seconds"), 1u);
}

}  // namespace
}  // namespace hitide
