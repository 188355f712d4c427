#include "server/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "server/admin.h"
#include "server/api_keys.h"
#include "server/http_answer.h"
#include "server/metrics_page.h"
#include "server/openai_api.h"
#include "server/socket.h"
#include "server/tenant.h"
#include "server/worker_pool.h"

namespace hitide {
namespace {

// Requests that may wait for the engine have threads of their own, so that probes never wait behind
// them.
constexpr std::size_t kSpareThreads = 32;  // beside those that wait for the engine
constexpr std::size_t kSlowWaitingMax = 32;
constexpr std::size_t kQuickThreads = 4;
constexpr std::size_t kQuickWaitingMax = 256;
// A long context makes long bodies: token ids with their commas, and text with escapes, fit.
constexpr std::uint64_t kBodyBytesPerToken = 32;
constexpr std::uint64_t kBodyBytesMost = 32u << 20;

constexpr std::string_view kStoragePath = "/hicache/storage-backend";
constexpr std::string_view kClearStoragePath = "/hicache/storage-backend/clear";

struct Route {
  std::string_view path;
  std::string_view methods;  // what Allow says
  Access access = Access::user;
};
constexpr std::array<Route, 9> kRoutes = {{{"/health", "GET, HEAD", Access::anyone},
                                           {"/metrics", "GET, HEAD", Access::anyone},
                                           {"/v1/models", "GET, HEAD"},
                                           {"/flush_cache", "GET, POST", Access::admin},
                                           {"/hitide/storage", "GET, HEAD"},
                                           {kStoragePath, "GET, HEAD, PUT, DELETE", Access::admin},
                                           {kClearStoragePath, "POST", Access::admin},
                                           {"/v1/chat/completions", "POST"},
                                           {"/v1/completions", "POST"}}};
constexpr std::string_view kExplainPrefix = "/hitide/explain/";
constexpr std::string_view kExplainRoute = "/hitide/explain";
constexpr std::string_view kModelPrefix = "/v1/models/";

ApiError server_error(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.type = "server_error";
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError client_error(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

bool lists(std::string_view methods, std::string_view method) {
  while (!methods.empty()) {
    const std::size_t end = methods.find(", ");
    if (methods.substr(0, end) == method) return true;
    methods.remove_prefix(end == std::string_view::npos ? methods.size() : end + 2);
  }
  return false;
}

bool is_read(std::string_view method) { return method == "GET" || method == "HEAD"; }

bool may_wait(const HttpRequest& request) {
  return request.path == "/flush_cache" || !is_read(request.method);
}

// To look at the storage backend changes nothing.
Access access_of(const Route& route, std::string_view method) {
  return route.path == kStoragePath && is_read(method) ? Access::user : route.access;
}

}  // namespace

struct HttpServer::Impl {
  Impl(const ServerOptions& server_options, const IntakeLimits& intake_limits,
       std::uint32_t running_requests_max)
      : options(server_options),
        limits(intake_limits),
        requests_max(std::size_t(options.queue_max) + running_requests_max),
        quick(kQuickThreads, kQuickWaitingMax),
        slow(requests_max + kSpareThreads, kSlowWaitingMax) {}

  const ServerOptions options;
  const IntakeLimits limits;
  const std::size_t requests_max;
  std::uint16_t port = 0;
  std::optional<ApiKeys> keys;  // set before the first request
  HttpCounts counts;
  std::function<void()> on_failure;
  std::atomic<bool> stopping{false};
  std::atomic<Engine*> engine{nullptr};
  std::unique_ptr<OpenAiApi> api;         // set before `engine` is, read after it was seen
  std::unique_ptr<StorageAdmin> storage;  // the same
  WorkerPool quick;                       // probes and what else answers at once
  WorkerPool slow;                        // what may wait for the engine
  std::unique_ptr<Intake> intake;

  void open_intake(UniqueFd listening);
  // What a thread does for one request.
  struct Exchange {
    std::shared_ptr<Connection> connection;
    HttpRequest request;
    std::shared_ptr<void> held;
  };
  void take(Exchange exchange);
  void serve(Exchange& exchange);
  void send_reply(const Exchange& exchange, const Reply& reply);
  void send_stream(const Exchange& exchange, const Reply& reply, AnswerFraming framing);
  Reply dispatch(Exchange& exchange, std::string& route_name);
  Reply generate(ApiKind kind, Exchange& exchange);
  Reply engine_reply(const std::string& path, Engine& ready);
};

void HttpServer::Impl::open_intake(UniqueFd listening) {
  Intake::Hooks hooks;
  hooks.on_request = [this](std::shared_ptr<Connection> connection, HttpRequest request,
                            std::shared_ptr<void> held) {
    take({std::move(connection), std::move(request), std::move(held)});
  };
  hooks.refuse = [this](const ApiError& error) {
    counts.count("other", error.status);
    AnswerFraming framing;
    framing.last = true;
    return whole_answer_bytes(error_reply(error), framing);
  };
  hooks.on_failure = [this](const std::string& why) {
    log_error("server_stopped_accepting", {{"port", port}, {"error", why}});
    on_failure();
  };
  intake = std::make_unique<Intake>(std::move(listening), limits, std::move(hooks));
}

void HttpServer::Impl::take(Exchange exchange) {
  WorkerPool& pool = may_wait(exchange.request) ? slow : quick;
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  if (pool.submit([this, shared] { serve(*shared); })) return;
  ApiError busy = client_error(429, "server_busy", "too many requests wait; try again later");
  busy.type = "rate_limit_error";
  counts.count("other", busy.status);
  send_reply(*shared, error_reply(busy));
}

void HttpServer::Impl::serve(Exchange& exchange) {
  std::string route_name = "other";
  Reply reply;
  try {
    reply = dispatch(exchange, route_name);
  } catch (const std::exception& error) {
    // Out of memory, most likely.
    log_limited(LogLevel::error, "request_failed", std::chrono::seconds(1),
                {{"error", error.what()}});
    reply = error_reply(server_error(500, "internal", "the request failed here"));
  }
  exchange.held.reset();
  counts.count(route_name, reply.status);
  send_reply(exchange, reply);
}

void HttpServer::Impl::send_reply(const Exchange& exchange, const Reply& reply) {
  AnswerFraming framing;
  framing.head_only = exchange.request.method == "HEAD";
  framing.last = !exchange.request.keep_alive || stopping.load();
  if (reply.stream) return send_stream(exchange, reply, framing);
  intake->give_back(exchange.connection, whole_answer_bytes(reply, framing), framing.last);
}

// On this thread: a stream that is not read in time ends, and its generation with it.
void HttpServer::Impl::send_stream(const Exchange& exchange, const Reply& reply,
                                   AnswerFraming framing) {
  framing.chunked = exchange.request.takes_chunks;
  framing.last = framing.last || !framing.chunked;
  const int fd = exchange.connection->fd();
  bool sent = send_all(fd, stream_head_bytes(reply, framing), limits.send_time);
  if (sent) {
    reply.stream([&](std::string_view piece) {
      sent = sent && (framing.chunked ? send_all(fd, chunk_bytes(piece), limits.send_time)
                                      : send_all(fd, piece, limits.send_time));
      return sent;
    });
  }
  if (!sent) return;  // closed with its last owner
  intake->give_back(exchange.connection, std::string(framing.chunked ? last_chunk() : ""),
                    framing.last);
}

Reply HttpServer::Impl::generate(ApiKind kind, Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  const std::string_view encoding = request.header("content-encoding");
  const bool form = request.header("content-type").substr(0, 10) == "multipart/";
  if (form || (!encoding.empty() && encoding != "identity")) {
    return error_reply(client_error(415, "unsupported_media_type",
                                    form ? "the body must be JSON, not a form"
                                         : "the body must come without a Content-Encoding"));
  }
  RequestBody body{std::move(exchange.request.body), std::move(exchange.held)};
  body.cache_salt = request.header(kCacheSaltHeader);
  body.extra_key = request.header(kAdapterHeader);
  return api->answer(kind, std::move(body),
                     [fd = exchange.connection->fd()] { return peer_gone(fd); });
}

// For the paths that ask an engine and have no body.
Reply HttpServer::Impl::engine_reply(const std::string& path, Engine& ready) {
  if (path == "/health") return health_reply(ready);
  if (path == "/v1/models") return models_reply(ready.info(), api->model_name());
  if (path == "/flush_cache") return flush_reply(ready);
  if (path == "/hitide/storage") return storage_reply(ready);
  if (path == "/metrics") {
    Reply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics_page(ready, counts,
                              {api->requests_in_flight(), static_cast<std::uint32_t>(requests_max)},
                              api->metrics(), api->model_name());
    return reply;
  }
  return explain_reply(ready, path.substr(kExplainPrefix.size()));
}

Reply HttpServer::Impl::dispatch(Exchange& exchange, std::string& route_name) {
  const HttpRequest& request = exchange.request;
  const std::string& path = request.path;
  const bool explain = path.compare(0, kExplainPrefix.size(), kExplainPrefix) == 0 &&
                       path.size() > kExplainPrefix.size();
  const auto known = std::find_if(kRoutes.begin(), kRoutes.end(),
                                  [&](const Route& route) { return route.path == path; });
  std::string_view allowed = "GET, HEAD";
  if (known != kRoutes.end()) {
    allowed = known->methods;
    route_name = known->path;
  } else if (explain) {
    route_name = kExplainRoute;
  } else {
    const bool model = path.compare(0, kModelPrefix.size(), kModelPrefix) == 0;
    return error_reply(client_error(404, model ? "model_not_found" : "not_found",
                                    model ? "/v1/models lists the one model; requests may name any"
                                          : "there is no such address here"));
  }
  if (!lists(allowed, request.method)) {
    Reply reply = error_reply(
        client_error(405, "method_not_allowed", fmt::format("{} takes {}", route_name, allowed)));
    reply.headers.emplace_back("Allow", allowed);
    return reply;
  }
  const Access access = known != kRoutes.end() ? access_of(*known, request.method) : Access::user;
  if (const auto refusal = keys->refusal(access, request.header("authorization"))) {
    Reply reply = error_reply(*refusal);
    if (refusal->status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  if (stopping.load()) {
    return error_reply(server_error(503, "shutting_down", "the server is shutting down"));
  }
  Engine* const ready = engine.load(std::memory_order_acquire);
  if (ready == nullptr) {
    return error_reply(server_error(503, "loading", "the model is being loaded"));
  }
  if (path == "/v1/chat/completions") return generate(ApiKind::chat, exchange);
  if (path == "/v1/completions") return generate(ApiKind::completion, exchange);
  if (path == kClearStoragePath) return storage->clear();
  if (path == kStoragePath) {
    if (request.method == "PUT") return storage->attach(request.body);
    return request.method == "DELETE" ? storage->detach() : storage->show();
  }
  return engine_reply(path, *ready);
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const ServerOptions& options,
                                                     std::uint32_t running_requests_max,
                                                     const IntakeLimits& limits) {
  HITIDE_ASSIGN_OR_RETURN(ListeningSocket listening,
                          listen_on(options.host, static_cast<std::uint16_t>(options.port)));
  auto impl = std::make_unique<Impl>(options, limits, running_requests_max);
  impl->port = listening.port;
  impl->keys.emplace(options.api_key, options.admin_api_key, listening.loopback);
  impl->open_intake(std::move(listening.fd));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() { stop(); }

std::uint16_t HttpServer::port() const { return impl_->port; }

std::string HttpServer::url() const {
  const std::string& host = impl_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", impl_->port);
}

Status HttpServer::start(std::function<void()> on_failure) {
  impl_->on_failure = std::move(on_failure);
  if (impl_->intake->start()) return {};
  return Status(StatusCode::resource_exhausted, "no thread or descriptor for the server");
}

void HttpServer::set_engine(Engine& engine, StorageSettings storage) {
  impl_->storage = std::make_unique<StorageAdmin>(engine, std::move(storage));
  impl_->api = std::make_unique<OpenAiApi>(engine, impl_->options,
                                           static_cast<std::uint32_t>(impl_->requests_max));
  if (impl_->options.body_bytes_max == 0) {
    const std::uint64_t for_context =
        std::min(engine.info().context_length * kBodyBytesPerToken, kBodyBytesMost);
    impl_->intake->set_body_bytes_max(
        std::max<std::size_t>(impl_->limits.request.body_bytes_max, for_context));
  }
  impl_->engine.store(&engine, std::memory_order_release);
}

void HttpServer::begin_stop() {
  impl_->stopping.store(true);
  impl_->intake->begin_stop();
}

void HttpServer::stop() {
  begin_stop();
  impl_->slow.stop();
  impl_->quick.stop();
  impl_->intake->stop();
}

}  // namespace hitide
