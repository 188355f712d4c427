#include "server/setup.h"

#include <algorithm>
#include <array>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

namespace hitide {
namespace {

constexpr std::string_view kGgufMagic = "GGUF";

std::string gigabytes(std::uint64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

std::string tier_line(const EngineInfo& info, const CacheStats& stats) {
  const auto tokens = [&](const PoolStats& pool) { return pool.pages_total * info.page_size; };
  std::string line = fmt::format("cache: pages of {} tokens; device {} tokens, host {} tokens, ",
                                 info.page_size, tokens(stats.device), tokens(stats.host));
  if (stats.storage_status == StorageStatus::none || stats.storage_status == StorageStatus::off) {
    return line + fmt::format("no storage{}{}\n", stats.storage_detail.empty() ? "" : ": ",
                              stats.storage_detail);
  }
  line += fmt::format("storage {}", stats.storage_backend);
  if (stats.storage_status == StorageStatus::waiting) line += ", not there yet";
  if (!stats.storage_detail.empty()) line += fmt::format(" ({})", stats.storage_detail);
  if (stats.storage.bytes_limit != 0) {
    line += fmt::format(", {} of at most {}", gigabytes(stats.storage.bytes_used),
                        gigabytes(stats.storage.bytes_limit));
  }
  return line + "\n";
}

// The pools, one line each, where there is more to say of them than that any memory will do.
std::string pool_lines(const CacheStats& stats) {
  const auto plain = [](const PoolRegistration& pool) {
    return pool.client == ClientKind::local && pool.path == RegistrationPath::zero_copy;
  };
  const bool all_plain = std::all_of(stats.registration.begin(), stats.registration.end(), plain);
  return all_plain ? "" : registration_text(stats.registration);
}

}  // namespace

void set_log_level_by_name(std::string_view level) {
  constexpr std::array<std::pair<std::string_view, LogLevel>, 4> kLevels = {
      {{"debug", LogLevel::debug},
       {"info", LogLevel::info},
       {"warning", LogLevel::warning},
       {"error", LogLevel::error}}};
  for (const auto& [name, value] : kLevels) {
    if (name == level) set_log_level(value);
  }
}

void warn_of_no_store_path() {
  log_warning("no_store_path",
              {{"missing",
                "the key path of --hicache-storage-backend-extra-config, or one of HOME, "
                "XDG_CACHE_HOME (absolute) and SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"}});
}

Status check_model_file(const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument, fmt::format("--model-path: {}: {}", path, why));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return refuse(std::generic_category().message(errno));
  }
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) return refuse(std::generic_category().message(errno));
  if (S_ISDIR(file.st_mode)) return refuse("this is a directory, not a GGUF file");
  if (!S_ISREG(file.st_mode)) return refuse("this is no regular file");
  std::array<char, kGgufMagic.size()> magic{};
  const ssize_t got = ::pread(fd.get(), magic.data(), magic.size(), 0);
  if (got != static_cast<ssize_t>(magic.size()) ||
      std::string_view(magic.data(), magic.size()) != kGgufMagic) {
    return refuse("this is no GGUF file");
  }
  return {};
}

std::string start_lines(const EngineInfo& info, const CacheStats& stats,
                        const ServeOptions& options, std::string_view version) {
  std::string out = fmt::format(
      "hitide {}: model {}{}, context {} tokens, {} requests at a time\n", version, info.model_name,
      info.model_description.empty() ? "" : fmt::format(" ({})", info.model_description),
      info.context_length, options.engine.running_requests_max);
  out +=
      fmt::format("kv cache: {}, {}{}{}\n", info.kv_cache_dtype, info.exact ? "exact" : "not exact",
                  info.exact_detail.empty() ? "" : ": ", info.exact_detail);
  if (info.cache_on) {
    out += tier_line(info, stats) + pool_lines(stats);
  } else {
    out +=
        fmt::format("cache: off{}{}\n", info.cache_detail.empty() ? "" : ": ", info.cache_detail);
  }
  return out;
}

}  // namespace hitide
