#include "storage/file/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

namespace hitide {
namespace {

constexpr std::size_t kBuffersMax = 1024;  // IOV_MAX of Linux

template <typename Call>
auto repeat(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result < 0 ? static_cast<decltype(result)>(-errno) : result;
}

}  // namespace

int FileSystem::open(const FileAt& file, int flags) {
  return repeat(
      [&] { return ::openat(file.directory, file.name.c_str(), flags | O_CLOEXEC, 0644); });
}

std::int64_t FileSystem::preadv(int fd, std::span<const iovec> buffers, std::uint64_t offset) {
  return repeat([&] {
    return ::preadv(fd, buffers.data(), static_cast<int>(buffers.size()),
                    static_cast<off_t>(offset));
  });
}

std::int64_t FileSystem::pwritev(int fd, std::span<const iovec> buffers, std::uint64_t offset) {
  return repeat([&] {
    return ::pwritev(fd, buffers.data(), static_cast<int>(buffers.size()),
                     static_cast<off_t>(offset));
  });
}

int FileSystem::allocate(int fd, std::uint64_t offset, std::uint64_t bytes) {
  return repeat([&] {
    return ::fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(bytes));
  });
}

int FileSystem::fdatasync(int fd) {
  return repeat([&] { return ::fdatasync(fd); });
}

int FileSystem::unlink(const FileAt& file) {
  return repeat([&] { return ::unlinkat(file.directory, file.name.c_str(), 0); });
}

int FileSystem::rename(const FileAt& from, const FileAt& to) {
  return repeat(
      [&] { return ::renameat(from.directory, from.name.c_str(), to.directory, to.name.c_str()); });
}

std::int64_t FileSystem::free_bytes(int directory) {
  struct statvfs disk {};
  const int result = repeat([&] { return ::fstatvfs(directory, &disk); });
  if (result < 0) return result;
  return static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize);
}

FileSystem& FileSystem::real() {
  static FileSystem files;
  return files;
}

Result<UniqueFd> open_plain(FileSystem& files, const FileAt& file, int flags) {
  const int result = files.open(file, flags | O_NOFOLLOW | O_NONBLOCK);
  bool plain = true;
  if (result < 0) {
    // What links, sockets, directories and missing devices answer.
    plain = result != -ELOOP && result != -ENXIO && result != -EISDIR && result != -ENODEV;
    if (plain) return errno_status(-result, "open", file.path);
  }
  UniqueFd fd(result);
  if (plain) {
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) return errno_status(errno, "stat", file.path);
    plain = S_ISREG(info.st_mode);
  }
  if (plain) return fd;
  return Status(StatusCode::failed_precondition,
                fmt::format("{} is not a plain file: move it away, or give the store another "
                            "directory",
                            file.path));
}

std::int64_t transfer_fully(FileSystem& files, Transfer direction, int fd, std::span<iovec> buffers,
                            std::uint64_t offset) {
  std::int64_t total = 0;
  while (!buffers.empty()) {
    if (buffers.front().iov_len == 0) {
      buffers = buffers.subspan(1);
      continue;
    }
    const auto some = buffers.first(std::min(buffers.size(), kBuffersMax));
    const std::uint64_t at = offset + static_cast<std::uint64_t>(total);
    std::int64_t moved =
        direction == Transfer::read ? files.preadv(fd, some, at) : files.pwritev(fd, some, at);
    if (moved < 0) return moved;
    if (moved == 0) break;
    total += moved;
    while (moved > 0) {
      iovec& first = buffers.front();
      const auto step = std::min<std::size_t>(first.iov_len, static_cast<std::size_t>(moved));
      first.iov_base = static_cast<std::byte*>(first.iov_base) + step;
      first.iov_len -= step;
      moved -= static_cast<std::int64_t>(step);
      if (first.iov_len == 0) buffers = buffers.subspan(1);
    }
  }
  return total;
}

}  // namespace hitide
