#include "storage/mooncake/private_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/clock.h"

namespace hitide {
namespace {

constexpr Duration kStopWait = std::chrono::seconds(25);  // owner and master have limits of theirs
constexpr std::uint64_t kSegmentStep = 64ull << 20;

TimePoint now() { return SystemClock::instance().now(); }

void take_variable(std::string_view name, std::string_view value, MooncakeOptions& options) {
  if (name == "MOONCAKE_MASTER") options.master_server_address = value;
  if (name == "MOONCAKE_LOCAL_HOSTNAME") options.local_hostname = value;
  if (name == "MOONCAKE_PROTOCOL") options.protocol = value;
  if (name == "MOONCAKE_CLIENT") options.client_server_address = value;
  if (name == "MOONCAKE_MASTER_METRICS_PORT") {
    std::from_chars(value.data(), value.data() + value.size(), options.master_metrics_port);
  }
}

// Lines `export NAME=VALUE`; what is not one says nothing.
void take_variables(std::string_view text, MooncakeOptions& options) {
  constexpr std::string_view kExport = "export ";
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (!line.starts_with(kExport) || equals == std::string_view::npos) continue;
    take_variable(line.substr(kExport.size(), equals - kExport.size()), line.substr(equals + 1),
                  options);
  }
}

}  // namespace

Result<std::unique_ptr<PrivateStore>> PrivateStore::start(const MooncakeOptions& options,
                                                          std::uint64_t segment_bytes,
                                                          TimePoint deadline) {
  const std::uint64_t steps = std::max<std::uint64_t>(1, (segment_bytes - 1) / kSegmentStep + 1);
  ChildCommand command{.program = options.python, .arguments = {"-m", "hitide.store.up"}};
  command.arguments.insert(command.arguments.end(),
                           {"--segment-gb", fmt::format("{}", static_cast<double>(steps) / 16)});
  if (!options.standalone_storage) command.arguments.emplace_back("--embedded");
  command.arguments.emplace_back("--parent");  // its value is what ChildProcess puts last
  command.environment = options.agent_environment;
  command.environment.emplace_back(
      "PYTHONPATH", options.package_path.empty() ? HITIDE_PYTHON_DIR : options.package_path);
  command.environment.emplace_back("PYTHONSAFEPATH", "1");
  command.environment.emplace_back("PYTHONDONTWRITEBYTECODE", "1");
  HITIDE_ASSIGN_OR_RETURN(auto process, ChildProcess::start(command));
  std::unique_ptr<PrivateStore> store(new PrivateStore(std::move(process), options));
  HITIDE_RETURN_IF_ERROR(store->read_variables(deadline));
  return store;
}

PrivateStore::PrivateStore(std::unique_ptr<ChildProcess> process, const MooncakeOptions& options)
    : process_(std::move(process)), socket_(process_->take_socket()), options_(options) {
  options_.global_segment_size = 0;
  options_.metadata_server = "P2PHANDSHAKE";
  options_.device_name.clear();
  options_.check_server = false;
}

PrivateStore::~PrivateStore() {
  socket_ = UniqueFd();
  if (ready_) static_cast<void>(process_->wait(now() + kStopWait));  // killed after that
}

Status PrivateStore::ended() {
  // It says why before it ends.
  static_cast<void>(process_->wait(now() + kStopWait));
  process_->drain_errors();
  const std::string said = process_->error_tail();
  return Status(StatusCode::unavailable,
                "the private store did not start: " + (said.empty() ? "no reason given" : said));
}

Status PrivateStore::read_variables(TimePoint deadline) {
  std::string text;
  while (text.find("# ready\n") == std::string::npos) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
    if (left <= 0)
      return Status(
          StatusCode::deadline_exceeded,
          "the private store: not in time; does the interpreter work, and is there memory for it?");
    pollfd at{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&at, 1, static_cast<int>(std::min<std::int64_t>(left, 1000))) <= 0) continue;
    std::array<char, 1024> buffer{};
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return ended();
    text.append(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  take_variables(text, options_);
  ready_ = true;
  return {};
}

}  // namespace hitide
