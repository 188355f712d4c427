#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"

namespace hitide {

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Status errno_status(int error, std::string_view action, std::string_view path) {
  StatusCode code = StatusCode::unavailable;
  switch (error) {
    case ENOENT:
      code = StatusCode::not_found;
      break;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      code = StatusCode::resource_exhausted;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
      code = StatusCode::failed_precondition;
      break;
    default:
      break;
  }
  return Status(code, fmt::format("{} {}: {}", action, path, std::strerror(error)));
}

namespace {
template <typename Piece>
Status for_each_piece(const std::string& path, const Piece& piece) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "open", path);
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(errno, "read", path);
    if (got == 0) return {};
    HITIDE_RETURN_IF_ERROR(piece(std::string_view(buffer.data(), static_cast<std::size_t>(got))));
  }
}
}  // namespace

Result<std::string> file_sha256(const std::string& path) {
  Sha256 sha;
  HITIDE_RETURN_IF_ERROR(for_each_piece(path, [&](std::string_view piece) {
    sha.update(piece);
    return ok_status();
  }));
  std::array<std::uint8_t, 32> digest;
  sha.finish(digest);
  return to_hex(digest);
}

Result<std::string> read_file(const std::string& path, std::size_t bytes_max) {
  std::string text;
  HITIDE_RETURN_IF_ERROR(for_each_piece(path, [&](std::string_view piece) {
    if (text.size() + piece.size() > bytes_max) {
      return Status(StatusCode::resource_exhausted,
                    fmt::format("read {}: larger than {} bytes", path, bytes_max));
    }
    text.append(piece);
    return ok_status();
  }));
  return text;
}

}  // namespace hitide
