#include "server/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include "base/log.h"
#include "server/admin.h"
#include "server/connection.h"
#include "server/metrics_page.h"
#include "server/openai_api.h"
#include "server/worker_pool.h"

namespace hitide {
namespace {

constexpr std::size_t kDrainedBodies = 4;  // so many times the largest body is read and dropped
constexpr std::size_t kSpareThreads = 32;  // beside those that wait for the engine
constexpr std::size_t kWaitingConnectionsMax = 128;
constexpr int kListenBacklog = 256;
constexpr int kKeepAliveSeconds = 5;
constexpr std::size_t kKeepAliveRequestsMax = 10'000;

struct Route {
  std::string_view path;
  std::string_view methods;  // what Allow says
};
constexpr std::array<Route, 6> kRoutes = {{{"/health", "GET, HEAD"},
                                           {"/metrics", "GET, HEAD"},
                                           {"/v1/models", "GET, HEAD"},
                                           {"/flush_cache", "GET, POST"},
                                           {"/v1/chat/completions", "POST"},
                                           {"/v1/completions", "POST"}}};
constexpr std::string_view kExplainPrefix = "/hitide/explain/";
constexpr std::string_view kExplainRoute = "/hitide/explain";
constexpr std::string_view kModelPrefix = "/v1/models/";

// The library's pool interface over ours. Its enqueue() answers bool in newer releases.
class PoolAdapter final : public httplib::TaskQueue {
 public:
  using EnqueueResult =
      decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));
  explicit PoolAdapter(std::size_t threads_max) : pool_(threads_max, kWaitingConnectionsMax) {}
  EnqueueResult enqueue(std::function<void()> job) override {
    pool_.submit(std::move(job));
    return EnqueueResult(true);
  }
  void shutdown() override { pool_.stop(); }

 private:
  WorkerPool pool_;
};

// The socket of the request that this thread answers; the library calls the handlers of one request
// on one thread.
thread_local int request_fd = -1;

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

// For statuses that the library answers by itself.
std::string_view library_message(int status) {
  switch (status) {
    case 400:
      return "the request is no valid HTTP, or its body did not come whole";
    case 413:
      return "the body is too large";
    case 414:
      return "the address is too long";
    case 415:
      return "the body's encoding is not supported";
    default:
      return "the request cannot be answered";
  }
}

// Takes the same time whatever the difference is.
bool equal_secrets(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  }
  return difference == 0;
}

void apply(const Reply& reply, httplib::Response& response) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) response.set_header(name, value);
  if (!reply.stream) {
    response.set_content(reply.body, reply.content_type);
    return;
  }
  // All is sent in one call of the provider: between calls the library ends streams when it stops.
  response.set_chunked_content_provider(
      reply.content_type, [stream = reply.stream](std::size_t, httplib::DataSink& sink) {
        bool sent = true;
        stream([&](std::string_view piece) {
          sent = sent && sink.write(piece.data(), piece.size());
          return sent;
        });
        if (sent) sink.done();
        return sent;
      });
}

bool has_body(const httplib::Request& request) {
  if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH") return true;
  return request.method == "DELETE" &&
         (request.has_header("Content-Length") || request.has_header("Transfer-Encoding"));
}

}  // namespace

struct HttpServer::Impl {
  ServerOptions options;
  HttpLimits limits;
  std::size_t requests_max = 0;
  int port = 0;
  int listen_fd = -1;
  httplib::Server server;
  HttpCounts counts;
  std::thread accept_thread;
  std::function<void()> on_failure;
  std::atomic<bool> stopping{false};
  std::atomic<Engine*> engine{nullptr};
  std::unique_ptr<OpenAiApi> api;  // set before `engine` is, read after it was seen
  std::mutex busy_mutex;
  std::set<int> busy;  // guarded by busy_mutex; sockets with a request that is being answered

  void set_up();
  void install_handlers();
  void note_busy(const httplib::Request& request);
  void note_idle();
  Status take_port();
  void run();
  bool authorized(const httplib::Request& request) const;
  // `body`: nullptr for requests without one.
  Reply dispatch(const httplib::Request& request, const std::string* body, std::string& route_name);
  Reply generate(ApiKind kind, const std::string& body);
  Reply engine_reply(const std::string& path, Engine& ready);
  void answer(const httplib::Request& request, httplib::Response& response,
              const std::string* body);
  void answer_with_body(const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& reader);
};

void HttpServer::Impl::set_up() {
  server.set_socket_options([this](socket_t fd) {
    // Not SO_REUSEPORT, which the library would set: a second server must fail.
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    listen_fd = fd;
  });
  server.set_tcp_nodelay(true);
  server.set_read_timeout(limits.read_timeout_s);
  server.set_write_timeout(limits.write_timeout_s);
  server.set_keep_alive_timeout(kKeepAliveSeconds);
  server.set_keep_alive_max_count(kKeepAliveRequestsMax);
  server.set_payload_max_length(limits.body_bytes_max * kDrainedBodies);
  install_handlers();
}

void HttpServer::Impl::install_handlers() {
  // Everything without a body is answered here, before the library looks for a pattern.
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& reply) {
    note_busy(request);
    if (has_body(request)) return httplib::Server::HandlerResponse::Unhandled;
    answer(request, reply, nullptr);
    return httplib::Server::HandlerResponse::Handled;
  });
  // Called when the answer is out.
  server.set_logger([this](const httplib::Request&, const httplib::Response&) { note_idle(); });
  // Bodies are read by us, so that their size is bounded whatever their encoding, and to their end,
  // so that the next request on the connection is found.
  const auto with_body = [this](const httplib::Request& request, httplib::Response& reply,
                                const httplib::ContentReader& reader) {
    answer_with_body(request, reply, reader);
  };
  server.Post(".*", httplib::Server::HandlerWithContentReader(with_body));
  server.Put(".*", httplib::Server::HandlerWithContentReader(with_body));
  server.Patch(".*", httplib::Server::HandlerWithContentReader(with_body));
  server.Delete(".*", httplib::Server::HandlerWithContentReader(with_body));
  const auto complete_error = [this](const httplib::Request&, httplib::Response& reply) {
    if (!reply.body.empty()) return httplib::Server::HandlerResponse::Unhandled;
    counts.count("other", reply.status);
    const ApiError error =
        client_error(reply.status, "bad_request", std::string(library_message(reply.status)));
    reply.set_content(error_json(error), "application/json");
    return httplib::Server::HandlerResponse::Handled;
  };
  server.set_error_handler(httplib::Server::HandlerWithResponse(complete_error));
  server.set_exception_handler(
      [this](const httplib::Request&, httplib::Response& reply, std::exception_ptr) {
        log_limited(LogLevel::error, "request_failed", std::chrono::seconds(1), {});
        counts.count("other", 500);
        reply.status = 500;
        reply.set_content(error_json(server_error(500, "internal", "the request failed here")),
                          "application/json");
      });
}

void HttpServer::Impl::note_busy(const httplib::Request& request) {
  request_fd = find_connection(request.remote_addr, request.remote_port, port);
  const std::lock_guard lock(busy_mutex);
  busy.insert(request_fd);
}

void HttpServer::Impl::note_idle() {
  const std::lock_guard lock(busy_mutex);
  busy.erase(request_fd);
}

Status HttpServer::Impl::take_port() {
  const std::string where = fmt::format("{}:{}", options.host, options.port);
  const auto failed = [&] {
    const int error = errno;
    return Status(StatusCode::unavailable,
                  error == EADDRINUSE
                      ? fmt::format("--port: {} is in use; stop the other server or take another "
                                    "port",
                                    where)
                      : fmt::format("--host, --port: cannot listen on {}: {}", where,
                                    std::generic_category().message(error)));
  };
  errno = 0;
  if (options.port == 0) {
    port = server.bind_to_any_port(options.host);
    if (port <= 0) return failed();
  } else {
    if (!server.bind_to_port(options.host, static_cast<int>(options.port))) return failed();
    port = static_cast<int>(options.port);
  }
  // The library's own backlog is 5; the call may be repeated.
  if (listen_fd >= 0) ::listen(listen_fd, kListenBacklog);
  return {};
}

void HttpServer::Impl::run() {
  std::string why = "the listening socket failed";
  try {
    server.listen_after_bind();
  } catch (const std::exception& error) {
    why = error.what();
  }
  if (stopping.load()) return;
  log_error("server_stopped_accepting", {{"port", port}, {"error", why}});
  on_failure();
}

bool HttpServer::Impl::authorized(const httplib::Request& request) const {
  if (options.api_key.empty()) return true;
  const std::string header = request.get_header_value("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (header.compare(0, kBearer.size(), kBearer) != 0) return false;
  return equal_secrets(std::string_view(header).substr(kBearer.size()), options.api_key);
}

Reply HttpServer::Impl::generate(ApiKind kind, const std::string& body) {
  return api->answer(kind, body, [fd = request_fd] { return peer_gone(fd); });
}

// For the paths that ask an engine and have no body.
Reply HttpServer::Impl::engine_reply(const std::string& path, Engine& ready) {
  if (path == "/health") return health_reply(ready);
  if (path == "/v1/models") return models_reply(ready.info(), api->model_name());
  if (path == "/flush_cache") return flush_reply(ready);
  if (path == "/metrics") {
    Reply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics_page(
        ready, counts, {api->requests_in_flight(), static_cast<std::uint32_t>(requests_max)});
    return reply;
  }
  return explain_reply(ready, path.substr(kExplainPrefix.size()));
}

Reply HttpServer::Impl::dispatch(const httplib::Request& request, const std::string* body,
                                 std::string& route_name) {
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
  if (allowed.find(request.method) == std::string_view::npos) {
    Reply reply = error_reply(
        client_error(405, "method_not_allowed", fmt::format("{} takes {}", route_name, allowed)));
    reply.headers.emplace_back("Allow", allowed);
    return reply;
  }
  if (path != "/health" && path != "/metrics" && !authorized(request)) {
    Reply reply = error_reply(client_error(
        401, "invalid_api_key", "the header `Authorization: Bearer KEY` has no valid key"));
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  if (stopping.load()) {
    return error_reply(server_error(503, "shutting_down", "the server is shutting down"));
  }
  Engine* const ready = engine.load(std::memory_order_acquire);
  if (ready == nullptr) {
    return error_reply(server_error(503, "loading", "the model is being loaded"));
  }
  if (path == "/v1/chat/completions") return generate(ApiKind::chat, *body);
  if (path == "/v1/completions") return generate(ApiKind::completion, *body);
  return engine_reply(path, *ready);
}

void HttpServer::Impl::answer(const httplib::Request& request, httplib::Response& response,
                              const std::string* body) {
  std::string route_name = "other";
  const Reply reply = dispatch(request, body, route_name);
  counts.count(route_name, reply.status);
  apply(reply, response);
}

void HttpServer::Impl::answer_with_body(const httplib::Request& request,
                                        httplib::Response& response,
                                        const httplib::ContentReader& reader) {
  if (request.is_multipart_form_data()) {
    const Reply reply = error_reply(
        client_error(415, "unsupported_media_type", "the body must be JSON, not a form"));
    counts.count("other", reply.status);
    response.set_header("Connection", "close");
    return apply(reply, response);
  }
  std::string body;
  std::size_t bytes = 0;
  const bool whole = reader([&](const char* data, std::size_t length) {
    bytes += length;
    if (bytes <= limits.body_bytes_max) body.append(data, length);
    return bytes <= limits.body_bytes_max * kDrainedBodies;
  });
  if (bytes > limits.body_bytes_max || response.status == 413) {
    const Reply reply = error_reply(
        client_error(413, "body_too_large",
                     fmt::format("the body is larger than {} bytes", limits.body_bytes_max)));
    counts.count("other", reply.status);
    return apply(reply, response);
  }
  if (!whole) {
    const int status = response.status >= 400 ? response.status : 400;
    const Reply reply = error_reply(
        client_error(status, "bad_request", "the body did not come whole, or is not readable"));
    counts.count("other", reply.status);
    return apply(reply, response);
  }
  answer(request, response, &body);
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const ServerOptions& options,
                                                     std::uint32_t running_requests_max,
                                                     const HttpLimits& limits) {
  auto impl = std::make_unique<Impl>();
  impl->limits = limits;
  impl->options = options;
  impl->requests_max = std::size_t(options.queue_max) + running_requests_max;
  impl->set_up();
  HITIDE_RETURN_IF_ERROR(impl->take_port());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() { stop(); }

std::uint16_t HttpServer::port() const { return static_cast<std::uint16_t>(impl_->port); }

std::string HttpServer::url() const {
  const std::string& host = impl_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", impl_->port);
}

void HttpServer::start(std::function<void()> on_failure) {
  impl_->on_failure = std::move(on_failure);
  // The library makes its pool when it has begun to listen; stop() is a no-op for it before that.
  auto listening = std::make_shared<std::promise<void>>();
  std::future<void> began = listening->get_future();
  impl_->server.new_task_queue = [listening, threads = impl_->requests_max + kSpareThreads] {
    auto* pool = new PoolAdapter(threads);
    listening->set_value();
    return pool;
  };
  impl_->accept_thread = std::thread([impl = impl_.get()] { impl->run(); });
  began.wait();
}

void HttpServer::set_engine(Engine& engine) {
  impl_->api = std::make_unique<OpenAiApi>(engine, impl_->options,
                                           static_cast<std::uint32_t>(impl_->requests_max));
  impl_->engine.store(&engine, std::memory_order_release);
}

void HttpServer::begin_stop() {
  if (impl_->stopping.exchange(true)) return;
  impl_->server.stop();
  // Those that are answering finish first: the library sends nothing to a socket it cannot read.
  const std::lock_guard lock(impl_->busy_mutex);
  stop_reading_connections(impl_->port, impl_->busy);
}

void HttpServer::stop() {
  begin_stop();
  if (impl_->accept_thread.joinable()) impl_->accept_thread.join();
}

}  // namespace hitide
