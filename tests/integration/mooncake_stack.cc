#include "tests/integration/mooncake_stack.h"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <vector>

namespace hitide {
namespace {

constexpr int kAnswerMs = 60'000;

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return done;
}

bool bring_up_loopback() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", sizeof request.ifr_name - 1);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool done = ::ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  ::close(fd);
  return done;
}

// As the user is: root needs no user namespace, anybody else gets one in which he is root.
bool unshare_network() {
  if (::unshare(CLONE_NEWNET) == 0) return true;
  const std::string uid = "0 " + std::to_string(::getuid()) + " 1";
  const std::string gid = "0 " + std::to_string(::getgid()) + " 1";
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 &&
         write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", uid) &&
         write_text("/proc/self/gid_map", gid);
}

int run(const std::vector<std::string>& command, int in, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (in >= 0) posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  if (out >= 0) posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& text : command) arguments.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

}  // namespace

void enter_private_network() {
  const bool own = unshare_network() && bring_up_loopback();
  std::cout << (own ? "in a private network namespace\n"
                    : "no private network namespace here: free ports of this machine\n");
}

bool can_import_mooncake(const std::string& python) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int pid = run({python, "-c", "import mooncake.store"}, null, null);
  ::close(null);
  int status = -1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

std::string find_mooncake_python(std::string& why_not) {
  const char* named = std::getenv("HITIDE_MOONCAKE_PYTHON");
  const std::string python =
      named != nullptr ? named : std::string(HITIDE_SOURCE_DIR) + "/build/venv/bin/python";
  if (can_import_mooncake(python)) return python;
  why_not = python +
            " cannot import mooncake.store: run scripts/setup, or set "
            "HITIDE_MOONCAKE_PYTHON";
  return {};
}

MooncakeStack::MooncakeStack(const std::string& python, int segment_mb, Mode mode)
    : python_(python) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipes";
    return;
  }
  std::vector<std::string> command = {
      python, std::string(HITIDE_SOURCE_DIR) + "/tests/integration/mooncake_stack.py",
      "--segment-mb", std::to_string(segment_mb)};
  if (mode == Mode::standalone) command.push_back("--daemon");
  if (mode == Mode::disks) command.push_back("--offload");
  pid_ = run(command, in[0], out[1]);
  ::close(in[0]);
  ::close(out[1]);
  to_ = in[1];
  from_ = out[0];
  std::istringstream line(read_line());
  std::string word;
  line >> word >> master_ >> metrics_port_ >> daemon_port_;
  EXPECT_EQ(word, "ready") << "the store did not start";
}

MooncakeStack::~MooncakeStack() {
  if (to_ >= 0) ::close(to_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  if (from_ >= 0) ::close(from_);
}

std::string MooncakeStack::read_line() {
  for (;;) {
    const std::size_t end = read_ahead_.find('\n');
    if (end != std::string::npos) {
      const std::string line = read_ahead_.substr(0, end);
      read_ahead_.erase(0, end + 1);
      return line;
    }
    pollfd at{.fd = from_, .events = POLLIN, .revents = 0};
    std::array<char, 512> buffer{};
    if (::poll(&at, 1, kAnswerMs) <= 0) return "no answer in time";
    const ssize_t got = ::read(from_, buffer.data(), buffer.size());
    if (got <= 0) return "it ended";
    read_ahead_.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

void MooncakeStack::tell(const std::string& command) {
  const std::string line = command + "\n";
  ASSERT_EQ(::write(to_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(read_line(), "ok") << command;
}

MooncakeOptions MooncakeStack::options() const {
  MooncakeOptions options;
  options.local_hostname = "127.0.0.1";
  options.global_segment_size = 0;
  options.protocol = "tcp";
  options.master_server_address = master_;
  options.master_metrics_port = static_cast<std::uint16_t>(metrics_port_);
  options.standalone_storage = daemon_port_ != 0;
  if (daemon_port_ != 0)
    options.client_server_address = "127.0.0.1:" + std::to_string(daemon_port_);
  options.python = python_;
  options.object_bytes_max = 4u << 20;
  options.bounce_bytes = 16u << 20;
  return options;
}

}  // namespace hitide
