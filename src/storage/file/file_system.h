// FileSystem: the system calls of the file store, as a seam for tests that want a full disk, a bad
// sector or a file that cannot be deleted without having one.
//
// Threading: all methods from any thread at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <sys/uio.h>

#include <hitide/result.h>

#include "base/file.h"

namespace hitide {

// A file by its name in an open directory: what happens to the directory's own name does not lead
// to another file. `path` is for messages.
struct FileAt {
  int directory = -1;
  std::string name;
  std::string path;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Each answers what the system call answers, or -errno. Interrupted calls are repeated.
  virtual int open(const FileAt& file, int flags);
  virtual std::int64_t preadv(int fd, std::span<const iovec> buffers, std::uint64_t offset);
  virtual std::int64_t pwritev(int fd, std::span<const iovec> buffers, std::uint64_t offset);
  // Reserves space; the file's size stays as it is.
  virtual int allocate(int fd, std::uint64_t offset, std::uint64_t bytes);
  virtual int fdatasync(int fd);
  virtual int unlink(const FileAt& file);
  virtual int rename(const FileAt& from, const FileAt& to);
  // Bytes that this process may still write on the disk that holds `directory`.
  virtual std::int64_t free_bytes(int directory);

  static FileSystem& real();
};

// Never waits, whatever lies there. failed_precondition: not a plain file (a link, a pipe, a
// directory); else as errno_status().
Result<UniqueFd> open_plain(FileSystem& files, const FileAt& file, int flags);

enum class Transfer : std::uint8_t { read, write };

// Moves all bytes of `buffers`, however many calls that takes; changes `buffers`. Answers the bytes
// moved, which is less at the end of a file, or -errno.
std::int64_t transfer_fully(FileSystem& files, Transfer direction, int fd, std::span<iovec> buffers,
                            std::uint64_t offset);

}  // namespace hitide
