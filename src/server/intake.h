// Intake: accepts connections, reads requests and sends answers on one thread that never waits for
// a client. A thread that answers gets a request when it is whole, and gives its connection back
// with the answer; so slow and idle clients cost a descriptor and no thread.
//
// What is bounded: the connections that send, wait or are sent to (beyond that the one that has
// waited longest goes), the time from a request's first byte to its last, the bytes of a head and
// of a body, and the bytes of all requests that are held.
//
// Threading: the methods may be called from any thread; the hooks are called on the intake's own.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/mutex.h"
#include "server/request_reader.h"
#include "spec/serve_options.h"

namespace hitide {

struct IntakeLimits {
  RequestReader::Limits request;
  std::size_t connections_max = 256;         // without those whose requests are being answered
  std::uint64_t held_bytes_max = 64u << 20;  // requests that come in or are being read
  Duration request_time = std::chrono::seconds(10);  // from the first byte to the last
  Duration idle_time = std::chrono::seconds(5);      // until the first byte
  Duration send_time = std::chrono::seconds(30);     // until a client takes more of its answer
};

// As the options say.
IntakeLimits intake_limits(const ServerOptions& options);

// One client. It is the intake's, or that of the thread which answers its request.
class Connection {
 public:
  int fd() const { return fd_.get(); }

 private:
  friend class Intake;
  enum class Phase { reading, sending, draining };

  Connection(UniqueFd fd, const RequestReader::Limits& limits)
      : fd_(std::move(fd)), reader_(limits) {}

  UniqueFd fd_;
  RequestReader reader_;
  Phase phase_ = Phase::reading;
  std::string unsent_;
  std::size_t sent_ = 0;       // of unsent_
  bool last_answer_ = false;   // it ends with what is in unsent_
  std::uint64_t drained_ = 0;  // bytes
  TimePoint since_{};          // of the phase, or of a request's first byte
  TimePoint deadline_{};
};

class Intake {
 public:
  struct Hooks {
    // A request is whole: to be given back, or forgotten, which closes it. Must not block.
    // `held` goes when the body's bytes are needed no more.
    std::function<void(std::shared_ptr<Connection>, HttpRequest, std::shared_ptr<void> held)>
        on_request;
    // The whole answer to a request that is refused before it is whole; it is the last one.
    std::function<std::string(const ApiError&)> refuse;
    // No more connections can be accepted although nobody has stopped it.
    std::function<void(const std::string& why)> on_failure;
  };

  Intake(UniqueFd listening, const IntakeLimits& limits, Hooks hooks);
  ~Intake();  // stop()
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;

  // Once. False: no thread or no descriptor for it.
  bool start();
  // With the rest of an answer; empty: it is out. `last`: then the connection is closed.
  void give_back(std::shared_ptr<Connection> connection, std::string answer, bool last);
  // Bodies of requests that begin from now on.
  void set_body_bytes_max(std::size_t bytes) { body_bytes_max_.store(bytes); }

  // Takes no more connections and requests; those that are not whole are refused.
  void begin_stop();
  // begin_stop(), then sends what was given back, and ends. Idempotent.
  void stop();

 private:
  using Connections = std::map<int, std::shared_ptr<Connection>>;  // by descriptor

  void run();
  void loop();
  // Waits for a descriptor, a call or a deadline.
  void wait_and_handle();
  void handle(const std::shared_ptr<Connection>& connection);
  void take_returned();
  void accept_all();
  void adopt(UniqueFd fd);
  void receive(const std::shared_ptr<Connection>& connection);
  // What the reader's state asks for.
  void go_on(const std::shared_ptr<Connection>& connection, bool began);
  void hand_out(const std::shared_ptr<Connection>& connection);
  void refuse(const std::shared_ptr<Connection>& connection, const ApiError& error);
  void send(const std::shared_ptr<Connection>& connection);
  void drain(const std::shared_ptr<Connection>& connection);
  void forget(const std::shared_ptr<Connection>& connection);
  void expire(TimePoint now);
  void make_room();
  // Refuses the largest of the requests that come in, while too many bytes are held.
  void bound_bytes();
  void close_for_stop();
  void wake();

  const IntakeLimits limits_;
  const Hooks hooks_;
  std::atomic<std::size_t> body_bytes_max_;
  std::shared_ptr<std::atomic<std::uint64_t>> handed_bytes_;  // of requests that were handed out
  UniqueFd listening_;                                        // the thread's, as all below
  UniqueFd wake_fd_;
  Connections connections_;
  TimePoint accept_after_{};  // no descriptor was left
  bool stop_begun_ = false;

  Mutex mutex_;
  std::vector<std::shared_ptr<Connection>> returned_ HITIDE_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ending_{false};  // nothing is given back any more
  std::thread thread_;
};

}  // namespace hitide
