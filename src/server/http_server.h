// HttpServer: the sockets, the threads and the routes. docs/server.md is its manual.
//
//   bind ----> start ----> set_engine ----> begin_stop ----> (close the engine) ----> stop
//              503: loading   serves        503: stopping
//
// Threading: the methods are for one thread (the program's main thread); requests are answered on
// threads of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/admin_storage.h"
#include "server/intake.h"
#include "spec/serve_options.h"

namespace hitide {

class HttpServer {
 public:
  // Takes the port. unavailable: it is in use or the address is not ours. The body's limit grows
  // with the engine's context.
  static Result<std::unique_ptr<HttpServer>> bind(const ServerOptions& options,
                                                  std::uint32_t running_requests_max,
                                                  const IntakeLimits& limits = {});
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  // "http://127.0.0.1:30000"
  std::string url() const;

  // Answers requests from now on. `on_failure` is called on another thread when the server can
  // accept no more connections although nobody has stopped it.
  Status start(std::function<void()> on_failure);
  // Once. `engine` must live until stop() has returned. storage: what later changes of storage
  // start from.
  void set_engine(Engine& engine, StorageSettings storage = {});

  // Takes no more connections; requests that are not answered yet are answered with 503.
  void begin_stop();
  // begin_stop(), then waits for the requests that are being answered: close the engine first, or
  // they take as long as their generations do. Idempotent.
  void stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hitide
