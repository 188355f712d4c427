// hitide serve: options, port, model, then serving until a signal.
//
// The first SIGTERM or SIGINT ends the requests, drains the cache and exits with 0; a second one
// exits at once. Before the model is loaded there is nothing to lose, and the first one does.

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include "cli.h"
#include "engine/llama/llama_engine.h"
#include "serve_arguments.h"
#include "serve_options_of.h"
#include "server/http_server.h"
#include "server/setup.h"
#include "spec/engine_flags.h"
#include "spec/option_table.h"
#include "surroundings.h"

namespace hitide::cli {
namespace {

constexpr Duration kDrainTime = std::chrono::seconds(5);
constexpr const char* kCommand = "serve";

std::atomic<bool> graceful{false};  // a signal asks; otherwise it ends the program
int wake_pipe[2] = {-1, -1};        // written by the handler, read by the main thread

void wake(char why) {
  const int saved = errno;
  while (write(wake_pipe[1], &why, 1) < 0 && errno == EINTR) {
  }
  errno = saved;
}

void on_signal(int signal) {
  if (!graceful.exchange(false)) _exit(128 + signal);
  wake('s');
}

bool install_signals() {
  if (pipe2(wake_pipe, O_CLOEXEC) != 0) return false;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  std::signal(SIGPIPE, SIG_IGN);
  // A store that reaches `ulimit -f` fails to write, which it can handle.
  std::signal(SIGXFSZ, SIG_IGN);
  return sigaction(SIGTERM, &action, nullptr) == 0 && sigaction(SIGINT, &action, nullptr) == 0;
}

// Signals go to threads that are not in the HTTP library, which does not expect them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGTERM);
    sigaddset(&both, SIGINT);
    pthread_sigmask(SIG_BLOCK, &both, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Waits for a signal ('s') or a failure of the server ('f').
char wait_for_end() {
  char why = 'f';
  while (read(wake_pipe[0], &why, 1) < 0 && errno == EINTR) {
  }
  return why;
}

int serve(const GivenOptions& given, std::vector<std::string> engine_flags) {
  const auto fail = [](const Status& status, int code) {
    return complain(kCommand, std::string(status.message()), code);
  };
  Result<ReadOptions> read = read_serve_options(given);
  if (!read.ok()) return fail(read.status(), kUsage);
  ServeOptions* const options = &read->options;
  for (std::string& flag : engine_flags) options->engine_flags.push_back(std::move(flag));
  set_log_level_by_name(options->server.log_level);
  if (const Status model = check_model_file(options->engine.model_path); !model.ok()) {
    return fail(model, kFailed);
  }
  if (options->cache.enabled) {
    log_storage_config(read->storage);
    if (read->no_store_path) warn_of_no_store_path();
  }
  log_accepted_options(*options);
  if (!install_signals()) return complain(kCommand, "no signal handlers", kFailed);

  // The port comes first, so that one in use fails before minutes of loading.
  auto server = HttpServer::bind(options->server, options->engine.running_requests_max,
                                 intake_limits(options->server));
  if (!server.ok()) return fail(server.status(), kUnavailable);
  {
    const SignalsBlocked blocked;
    const Status started = (*server)->start([] { wake('f'); });
    if (!started.ok()) return fail(started, kFailed);
  }
  auto engine = open_llama_engine(options->engine, options->cache);
  if (!engine.ok()) {
    (*server)->stop();
    return fail(engine.status(), kFailed);
  }
  (*server)->set_engine(**engine, {.launched = *options,
                                   .environment = storage_environment(),
                                   .default_file_path = default_file_store()});
  graceful.store(true);
  const std::string lines =
      start_lines((*engine)->info(), (*engine)->cache_stats(), *options, HITIDE_VERSION);
  std::printf("%sready: %s/v1\n", lines.c_str(), (*server)->url().c_str());
  std::fflush(stdout);

  const char why = wait_for_end();
  std::printf("stopping: ending requests, then up to %lld s for what is not stored yet\n",
              static_cast<long long>(kDrainTime / std::chrono::seconds(1)));
  std::fflush(stdout);
  (*server)->begin_stop();
  const Status closed = (*engine)->close(std::chrono::steady_clock::now() + kDrainTime);
  (*server)->stop();
  if (!closed.ok()) complain(kCommand, "while stopping: " + closed.to_string(), kFailed);
  return why == 's' ? kDone : complain(kCommand, "the server could listen no more", kFailed);
}

int run_serve(const CLI::App& command, const GivenOptions& given, bool print_defaults) {
  Result<std::vector<std::string>> flags = take_engine_flags(command.remaining());
  if (!flags.ok()) return complain(kCommand, std::string(flags.status().message()), kUsage);
  if (print_defaults) {
    std::fputs(defaults_text().c_str(), stdout);
    return printed(kCommand);
  }
  return serve(given, std::move(*flags));
}

}  // namespace

void add_serve(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand(kCommand, "Serve a GGUF model over an OpenAI-compatible API, cached.");
  command->allow_extras();
  auto given = add_table_options(*command);
  auto print_defaults = std::make_shared<bool>(false);
  command->add_flag("--print-defaults", *print_defaults,
                    "Print every option with its default, and do nothing.");
  command->footer("docs/options.md says the same, with the keys of the storage configuration.");
  command->callback([&run, command, given, print_defaults] {
    run = [command, given, print_defaults] { return run_serve(*command, *given, *print_defaults); };
  });
}

}  // namespace hitide::cli
