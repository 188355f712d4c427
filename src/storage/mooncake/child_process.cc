#include "storage/mooncake/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include "base/clock.h"

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
  for (const auto& [name, value] : command.environment) out.push_back(name + "=" + value);
  for (const auto& [name, value] : command.environment_defaults) {
    if (!has_variable(name) && !is_set(name + "=")) out.push_back(name + "=" + value);
  }
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// What posix_spawn shall do in the child; freed with the object.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  void connect(int socket, int errors) {
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, errors, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, errors, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, socket, kSocketFd);
    posix_spawn_file_actions_addclosefrom_np(&actions_, kSocketFd + 1);
    // Its own process group: Ctrl-C at a terminal is this process's business first.
    sigset_t none;
    sigset_t defaults;
    sigemptyset(&none);
    sigfillset(&defaults);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }

  int run(const std::string& program, std::vector<std::string> arguments,
          std::vector<std::string> environment, pid_t& pid) {
    return posix_spawnp(&pid, program.c_str(), &actions_, &attributes_, pointers(arguments).data(),
                        pointers(environment).data());
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

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
  SpawnPlan plan;
  plan.connect(far.get(), errors_far.get());
  pid_t pid = -1;
  const int error =
      plan.run(command.program, std::move(arguments), child_environment(command), pid);
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
  const std::lock_guard lock(mutex_);
  if (!waited_for_) ::kill(pid_, number);
}

bool ChildProcess::wait(TimePoint deadline) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
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
