#include "spec/mooncake_options.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace hitide {
namespace {

constexpr std::uint32_t kLanesMax = 16;
constexpr std::uint64_t kMebibyte = 1ull << 20;
constexpr std::size_t kTextBytesMax = 4096;
// With an underscore and a key of 255 bytes behind it, what a frame to the agent takes as a key.
constexpr std::size_t kTagBytesMax = 1024 - 1 - 255;

Status bad(std::string_view name, std::string_view value, std::string_view rule) {
  return Status(StatusCode::invalid_argument,
                fmt::format("mooncake: {} '{}': {}", name, value, rule));
}

Status validate_texts(const MooncakeOptions& options) {
  const std::pair<std::string_view, const std::string*> texts[] = {
      {"local_hostname", &options.local_hostname},
      {"metadata_server", &options.metadata_server},
      {"device_name", &options.device_name},
      {"tenant_id", &options.tenant_id},
      {"extra_backend_tag", &options.extra_backend_tag},
  };
  for (const auto& [name, text] : texts) {
    if (text->size() > kTextBytesMax) {
      return bad(name, text->substr(0, 32), fmt::format("at most {} bytes", kTextBytesMax));
    }
    if (std::any_of(text->begin(), text->end(), [](char c) { return c >= 0 && c < ' '; })) {
      return bad(name, *text, "no control characters");
    }
  }
  if (options.local_hostname.empty()) return bad("local_hostname", "", "must be given");
  if (options.metadata_server.empty()) return bad("metadata_server", "", "must be given");
  if (options.tenant_id.empty()) return bad("tenant_id", "", "must be given");
  return {};
}

Status validate_addresses(const MooncakeOptions& options) {
  if (options.standalone_storage) {
    if (options.client_server_address.empty()) {
      return bad("client_server_address", "",
                 "standalone_storage needs the daemon's host:port (MOONCAKE_CLIENT)");
    }
    const Result<HostPort> daemon = parse_host_port(options.client_server_address);
    if (!daemon.ok()) return daemon.status().with_context("mooncake: client_server_address");
    if (options.master_server_address.empty()) return {};
  }
  if (options.master_server_address.empty()) {
    return bad("master_server_address", "", "the master's host:port is needed (MOONCAKE_MASTER)");
  }
  const Result<HostPort> master = parse_host_port(options.master_server_address);
  return master.ok() ? Status() : master.status().with_context("mooncake: master_server_address");
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("'{}': {}; write host:port, or [address]:port", text, why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("there is no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']') || host.size() < 3) return wrong("the bracket is not closed");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("an address with colons needs brackets");
  }
  if (host.empty()) return wrong("there is no host");
  if (std::any_of(host.begin(), host.end(), [](char c) { return c <= ' ' || c == '/'; })) {
    return wrong("the host has a blank or a slash in it");
  }
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return wrong(fmt::format("the port '{}' is no number", digits));
  }
  if (port == 0 || port > 65535) return wrong(fmt::format("the port {} is not in 1-65535", port));
  return HostPort{.host = std::string(host), .port = static_cast<std::uint16_t>(port)};
}

Status validate(const MooncakeOptions& options) {
  HITIDE_RETURN_IF_ERROR(validate_texts(options));
  if (options.protocol != "tcp" && options.protocol != "rdma") {
    return bad("protocol", options.protocol, "tcp or rdma");
  }
  HITIDE_RETURN_IF_ERROR(validate_addresses(options));
  const std::pair<std::string_view, std::uint32_t> lanes[] = {
      {"query_lanes", options.query_lanes},
      {"read_lanes", options.read_lanes},
      {"write_lanes", options.write_lanes},
  };
  for (const auto& [name, count] : lanes) {
    if (count < 1 || count > kLanesMax) {
      return bad(name, std::to_string(count), fmt::format("1 to {}", kLanesMax));
    }
  }
  if (options.call_limit < std::chrono::milliseconds(10) ||
      options.call_limit_per_64mib < Duration::zero()) {
    return bad("call_limit",
               fmt::format("{} s", static_cast<double>(options.call_limit.count()) / 1e9),
               "at least 0.01 s, and more bytes cannot take less");
  }
  if (options.bounce_bytes < kMebibyte || options.bounce_bytes % 4096 != 0) {
    return bad("bounce_bytes", std::to_string(options.bounce_bytes),
               "at least 1 MiB, and a multiple of 4096");
  }
  if (options.object_bytes_max < kMebibyte || options.object_bytes_max > options.bounce_bytes) {
    return bad(
        "object_bytes_max", std::to_string(options.object_bytes_max),
        fmt::format("at least 1 MiB and at most bounce_bytes, which is {}: any object may have "
                    "to go through it",
                    options.bounce_bytes));
  }
  if (options.extra_backend_tag.size() > kTagBytesMax) {
    return bad("extra_backend_tag", options.extra_backend_tag, "too long to go before a key");
  }
  return {};
}

}  // namespace hitide
