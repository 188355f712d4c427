// Small helpers over POSIX files: every call answers a Status that names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <hitide/result.h>

namespace hitide {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// A Status for `errno` after a failed call on `path`: ENOENT not_found, ENOSPC/EDQUOT/EMFILE
// resource_exhausted, EACCES/EPERM/EROFS failed_precondition, else unavailable.
Status errno_status(int error, std::string_view action, std::string_view path);

// Hex SHA-256 over a whole file, read in pieces.
Result<std::string> file_sha256(const std::string& path);
Result<std::string> read_file(const std::string& path, std::size_t bytes_max);

}  // namespace hitide
