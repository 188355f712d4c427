#include "spec/config_document.h"

#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/file.h"
#include "spec/config_parsers.h"

namespace hitide {
namespace {

Status refuse(std::string message) {
  return Status(StatusCode::invalid_argument, std::move(message));
}

// Length of the UTF-8 character that `text` begins with; 0: there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) < 0xc2   ? 0
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4
                                              : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, surrogates, beyond the last code point.
  if (byte(0) == 0xe0 && byte(1) < 0xa0) return 0;
  if (byte(0) == 0xed && byte(1) > 0x9f) return 0;
  if (byte(0) == 0xf0 && byte(1) < 0x90) return 0;
  if (byte(0) == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

bool is_control(char c) {
  return (c >= 0 && c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
}

Status check_bytes(std::string_view text) {
  if (text.size() > kConfigBytesMax) {
    return refuse(fmt::format("it has {} bytes, more than {}", text.size(), kConfigBytesMax));
  }
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\0') return refuse(fmt::format("byte {} is zero", at));
    // No format allows them, and the YAML parser takes one of them for the end.
    if (is_control(text[at])) return refuse(fmt::format("byte {} is a control character", at));
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) return refuse(fmt::format("byte {} is no UTF-8", at));
    at += length;
  }
  return {};
}

}  // namespace

std::string_view to_string(ConfigFormat format) {
  switch (format) {
    case ConfigFormat::json:
      return "JSON";
    case ConfigFormat::toml:
      return "TOML";
    case ConfigFormat::yaml:
      return "YAML";
  }
  return "unknown";
}

Result<ConfigFormat> config_format_of(std::string_view path) {
  constexpr std::array<std::pair<std::string_view, ConfigFormat>, 4> kEndings = {
      {{".json", ConfigFormat::json},
       {".toml", ConfigFormat::toml},
       {".yaml", ConfigFormat::yaml},
       {".yml", ConfigFormat::yaml}}};
  const std::size_t slash = path.rfind('/');
  const std::string_view name = slash == path.npos ? path : path.substr(slash + 1);
  const std::size_t dot = name.rfind('.');
  std::string ending(dot == name.npos ? "" : name.substr(dot));
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const auto& [known, format] : kEndings) {
    if (known == ending) return format;
  }
  return refuse(
      fmt::format("{}: a file that ends with '{}' cannot be read; use .json, .toml, "
                  ".yaml or .yml",
                  path, ending));
}

Result<ConfigValue> parse_config(std::string_view text, ConfigFormat format) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
  HITIDE_RETURN_IF_ERROR(check_bytes(text));
  Result<ConfigValue> value = format == ConfigFormat::json   ? parse_json_config(text)
                              : format == ConfigFormat::toml ? parse_toml_config(text)
                                                             : parse_yaml_config(text);
  return value;
}

Result<std::string> read_config_file(const std::string& path) {
  const auto why = [&](std::string_view reason) {
    return refuse(fmt::format("{}: {}", path, reason));
  };
  const auto system = [&](int error) { return why(std::generic_category().message(error)); };
  if (path.empty()) return refuse("there is no path behind the @");
  if (path.find('\0') != path.npos) return refuse("the path has a zero byte");
  // Without O_NONBLOCK a FIFO would wait for its writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return system(errno);
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) return system(errno);
  if (S_ISDIR(file.st_mode)) return why("this is a directory");
  if (!S_ISREG(file.st_mode)) return why("this is no regular file");
  std::string text;
  std::string piece(64u << 10, '\0');
  while (true) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system(errno);
    if (got == 0) return text;
    text.append(piece, 0, static_cast<std::size_t>(got));
    if (text.size() > kConfigBytesMax) {
      return why(fmt::format("it has more than {} bytes", kConfigBytesMax));
    }
  }
}

}  // namespace hitide
