#include "master_numbers.h"

#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <httplib.h>

namespace hitide::cli {
namespace {

constexpr int kTimeoutSeconds = 3;

// "NAME VALUE" of a metrics page. False: the line is not of that name.
bool take(const std::string& line, const char* name, std::uint64_t& value) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string::npos || line.compare(0, blank, name) != 0) return false;
  const double number = std::strtod(line.c_str() + blank, nullptr);
  if (number >= 0.0 && number < 1.8e19) value = static_cast<std::uint64_t>(number);
  return true;
}

}  // namespace

Result<MasterNumbers> ask_master(const MooncakeOptions& options) {
  const std::string& address = options.master_server_address;
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (options.master_metrics_port == 0) {
    return Status(
        StatusCode::unavailable,
        fmt::format("master {}: master_metrics_port is 0, so it cannot be asked", address));
  }
  httplib::Client client(host, options.master_metrics_port);
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  const auto answer = client.Get("/metrics");
  if (!answer || answer->status != 200) {
    return Status(
        StatusCode::unavailable,
        fmt::format("master {}: its metrics port {} (master_metrics_port) does not answer{}",
                    address, options.master_metrics_port,
                    answer ? fmt::format(" as it should: {}", answer->status)
                           : " (" + httplib::to_string(answer.error()) + ")"));
  }
  MasterNumbers numbers;
  bool known = false;
  std::istringstream lines(answer->body);
  for (std::string line; std::getline(lines, line);) {
    known = take(line, "master_key_count", numbers.objects) ||
            take(line, "master_allocated_bytes", numbers.bytes_used) ||
            take(line, "master_total_capacity_bytes", numbers.bytes_limit) ||
            take(line, "master_evicted_key_count", numbers.evicted_objects) || known;
  }
  if (!known) {
    return Status(StatusCode::unavailable,
                  fmt::format("{}:{} answers, but not as a Mooncake master (master_metrics_port)",
                              host, options.master_metrics_port));
  }
  return numbers;
}

}  // namespace hitide::cli
