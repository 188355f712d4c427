#include "ask_server.h"

#include <chrono>
#include <utility>

#include <httplib.h>

#include "cli.h"

namespace hitide::cli {
namespace {

constexpr int kTimeoutSeconds = 10;
constexpr std::size_t kAnswerBytesMax = 64u << 20;
constexpr auto kAnswerTime = std::chrono::seconds(60);  // however steadily it comes

}  // namespace

int ask_server(const std::string& command, const ServerAddress& server, const std::string& path,
               const std::string& absent, std::string& body) {
  std::string url = server.url;
  while (!url.empty() && url.back() == '/') url.pop_back();
  if (url.rfind("http://", 0) != 0 && url.rfind("https://", 0) != 0) {
    return complain(command, "--url: '" + url + "' must begin with http:// or https://", kUsage);
  }
  httplib::Client client(url);
  if (!client.is_valid()) {
    return complain(command, "--url: '" + url + "' is no address of a server", kUsage);
  }
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  httplib::Headers headers;
  if (!server.api_key.empty()) headers.emplace("Authorization", "Bearer " + server.api_key);
  const auto begin = std::chrono::steady_clock::now();
  std::string received;
  const auto answer = client.Get(path.c_str(), headers, [&](const char* data, std::size_t bytes) {
    received.append(data, bytes);
    return received.size() <= kAnswerBytesMax &&
           std::chrono::steady_clock::now() - begin < kAnswerTime;
  });
  if (!answer && answer.error() == httplib::Error::Canceled) {
    return complain(command, url + ": its answer is longer than 64 MiB, or than a minute",
                    kUnavailable);
  }
  if (!answer) {
    return complain(command,
                    url + ": cannot reach a server (" + httplib::to_string(answer.error()) + ")",
                    kUnavailable);
  }
  if (answer->status == 404) return complain(command, absent, kNotFound);
  if (answer->status == 503) {
    return complain(command, url + ": the server is not ready or is stopping", kUnavailable);
  }
  if (answer->status != 200) {
    return complain(command,
                    url + ": the server answered " + std::to_string(answer->status) +
                        (answer->status == 401 ? "; give --api-key" : ""),
                    kFailed);
  }
  body = std::move(received);
  return kDone;
}

}  // namespace hitide::cli
