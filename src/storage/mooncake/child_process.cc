#include "storage/mooncake/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/mutex.h"

namespace hitide {
namespace {

constexpr int kSocketFd = 3;
constexpr std::size_t kErrorTailBytes = 2048;

bool has_variable(std::string_view name) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with(name) && text.size() > name.size() && text[name.size()] == '=') {
      return true;
    }
  }
  return false;
}

std::vector<std::string> child_environment(const ChildCommand& command) {
  const auto is_set = [&](std::string_view entry) {
    return std::any_of(
        command.environment.begin(), command.environment.end(), [&](const auto& pair) {
          return entry.starts_with(pair.first) && entry.substr(pair.first.size()).starts_with('=');
        });
  };
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_set(*entry)) out.emplace_back(*entry);
  }
  for (const auto& [name, value] : command.environment) {
    out.push_back(fmt::format("{}={}", name, value));
  }
  for (const auto& [name, value] : command.environment_defaults) {
    std::string entry = fmt::format("{}={}", name, value);
    if (!has_variable(name) && !is_set(entry)) out.push_back(std::move(entry));
  }
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// What the child does between fork and exec: only what may be done there.
struct ChildStart {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int socket;
  int errors;
  int report = -1;  // takes errno where the program cannot be run; closed by its start
  pid_t parent = -1;

  [[noreturn]] void run() const {
    // Its own process group: Ctrl-C at a terminal is the parent's business first. And no life
    // without the parent, whatever the program does.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const bool connected = null >= 0 && ::dup2(null, STDIN_FILENO) >= 0 &&
                           ::dup2(errors, STDERR_FILENO) >= 0 &&
                           ::dup2(errors, STDOUT_FILENO) >= 0 && ::dup2(socket, kSocketFd) >= 0;
    if (connected) {
      // What others have forgotten to mark.
      ::close_range(kSocketFd + 1, static_cast<unsigned>(report) - 1, 0);
      ::close_range(static_cast<unsigned>(report) + 1, ~0u, 0);
      sigset_t none;
      sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::execvpe(program, arguments, environment);
    }
    const int error = errno;
    if (::write(report, &error, sizeof error) < 0) ::_exit(126);
    ::_exit(127);
  }
};

// 0, and the process; or errno.
int spawn(ChildStart start, pid_t& pid) {
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0) return errno;
  const UniqueFd read_end(report[0]);
  UniqueFd low(report[1]);
  UniqueFd write_end(::fcntl(low.get(), F_DUPFD_CLOEXEC, kSocketFd + 2));
  low = UniqueFd();
  if (!write_end.valid()) return errno;
  start.report = write_end.get();
  start.parent = ::getpid();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid = ::fork();
  if (pid == 0) start.run();
  const int forked = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return forked;
  write_end = UniqueFd();
  int error = 0;
  ssize_t got = 0;
  while ((got = ::read(read_end.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got != static_cast<ssize_t>(sizeof error)) return 0;
  ::waitpid(pid, nullptr, 0);
  return error;
}

}  // namespace

ChildProcess::ChildProcess(pid_t pid, UniqueFd socket, UniqueFd errors)
    : pid_(pid), socket_(std::move(socket)), errors_(std::move(errors)) {}

ChildProcess::~ChildProcess() {
  signal(SIGKILL);
  wait(kNoDeadline);
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const ChildCommand& command) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return errno_status(errno, "make a socket pair for", command.program);
  }
  UniqueFd near(ends[0]);
  // Above the numbers that the child's own descriptors get, so that none is overwritten.
  const UniqueFd far_low(ends[1]);
  const UniqueFd far(::fcntl(far_low.get(), F_DUPFD_CLOEXEC, 16));
  if (!far.valid()) return errno_status(errno, "copy a descriptor for", command.program);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    return errno_status(errno, "make a pipe for", command.program);
  }
  UniqueFd errors(pipe[0]);
  const UniqueFd errors_low(pipe[1]);
  const UniqueFd errors_far(::fcntl(errors_low.get(), F_DUPFD_CLOEXEC, 16));
  if (!errors_far.valid()) return errno_status(errno, "copy a descriptor for", command.program);
  ::fcntl(errors.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(near.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> arguments = {command.program};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  arguments.push_back(std::to_string(::getpid()));
  std::vector<std::string> environment = child_environment(command);
  const std::vector<char*> argument_list = pointers(arguments);
  const std::vector<char*> environment_list = pointers(environment);
  pid_t pid = -1;
  const int error = spawn({.program = command.program.c_str(),
                           .arguments = argument_list.data(),
                           .environment = environment_list.data(),
                           .socket = far.get(),
                           .errors = errors_far.get()},
                          pid);
  if (error == ENOENT || error == EACCES) {
    return Status(StatusCode::failed_precondition,
                  fmt::format("{} cannot be run: {}", command.program,
                              error == ENOENT ? "no such program" : "not allowed"));
  }
  if (error != 0) return errno_status(error, "run", command.program);
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, std::move(near), std::move(errors)));
}

void ChildProcess::drain_errors() {
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(errors_.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    error_text_.append(buffer.data(), static_cast<std::size_t>(got));
    if (error_text_.size() > 2 * kErrorTailBytes) {
      error_text_.erase(0, error_text_.size() - kErrorTailBytes);
    }
  }
}

std::string ChildProcess::error_tail() const {
  std::string_view text = error_text_;
  while (text.ends_with('\n')) text.remove_suffix(1);
  // The last line says what happened; those before it are the way there.
  const std::size_t line = text.rfind('\n');
  if (line != std::string_view::npos) text.remove_prefix(line + 1);
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return out;
}

void ChildProcess::signal(int number) {
  const MutexLock lock(mutex_);
  if (!waited_for_) ::kill(pid_, number);
}

bool ChildProcess::wait(TimePoint deadline) {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (waited_for_) return true;
      int status = 0;
      const pid_t got = ::waitpid(pid_, &status, WNOHANG);
      // ECHILD: the host process ignores SIGCHLD, and the system has waited for it.
      if (got == pid_ || (got < 0 && errno == ECHILD)) {
        waited_for_ = true;
        return true;
      }
    }
    if (SystemClock::instance().now() >= deadline) return false;
    // Still alive: look again in a millisecond, or as soon as its standard error closes.
    pollfd closed{.fd = errors_.get(), .events = 0, .revents = 0};
    if (::poll(&closed, 1, 1) > 0) ::poll(nullptr, 0, 1);
  }
}

}  // namespace hitide
