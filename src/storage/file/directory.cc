#include "storage/file/directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/log.h"

namespace hitide {
namespace {

constexpr std::string_view kFormatName = "hitide-file-store";
constexpr std::size_t kLocksBytesMax = 1u << 20;

Status refused(std::string message) {
  return Status(StatusCode::failed_precondition, std::move(message));
}

Status write_small_file(const std::string& path, int fd, std::string_view text) {
  // Never cut to nothing first: some file systems then flush the file when it is closed.
  const auto size = static_cast<ssize_t>(text.size());
  if (::pwrite(fd, text.data(), text.size(), 0) != size || ::ftruncate(fd, size) != 0) {
    return errno_status(errno, "write", path);
  }
  return {};
}

// The beginning of the file; a small file is read whole.
Result<std::string> read_small_file(const std::string& path, int fd) {
  std::array<char, 256> text;
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  if (got < 0) return errno_status(errno, "read", path);
  return std::string(text.data(), static_cast<std::size_t>(got));
}

Result<UniqueFd> open_directory(int parent, const std::string& name, const std::string& path) {
  UniqueFd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "open", path);
  return fd;
}

// False: something else is at the path, or nothing. An error: that cannot be known now.
Result<bool> still_at(const std::string& path, int fd) {
  struct stat held {};
  struct stat found {};
  if (::fstat(fd, &held) != 0) return errno_status(errno, "stat", path);
  if (::stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
    return errno_status(errno, "stat", path);
  }
  return held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

std::string segment_name(std::uint64_t number) { return fmt::format("{:06}.seg", number); }

// `beyond` takes the paths with numbers above kSegmentNumberMax.
std::vector<SegmentPath> list_segments_in(int directory, const std::string& path,
                                          std::vector<std::string>& beyond) {
  std::vector<SegmentPath> found;
  // A descriptor of its own: reading moves a position.
  const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return found;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(fd), ::closedir);
  if (entries == nullptr) {
    ::close(fd);
    return found;
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name;
    SegmentPath segment;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), segment.number);
    const bool too_long = parsed.ec == std::errc::result_out_of_range;
    segment.path = fmt::format("{}/{}", path, name);
    if (too_long || segment.number > kSegmentNumberMax) {
      if (std::string_view(parsed.ptr) == ".seg") beyond.push_back(segment.path);
      continue;
    }
    // The exact name only: what we did not name is not ours to delete.
    if (parsed.ec != std::errc() || segment.number == 0) continue;
    if (segment_name(segment.number) != name) continue;
    struct stat info {};
    const bool known = ::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (known && S_ISREG(info.st_mode)) segment.bytes = static_cast<std::uint64_t>(info.st_size);
    found.push_back(std::move(segment));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

}  // namespace

std::string segments_directory(const std::string& path) { return path + "/segments"; }

std::string segment_path(const std::string& path, std::uint64_t number) {
  return segments_directory(path) + "/" + segment_name(number);
}

std::vector<SegmentPath> list_segments(const std::string& path) {
  const std::string segments = segments_directory(path);
  const auto fd = open_directory(AT_FDCWD, segments, segments);
  if (!fd.ok()) return {};
  std::vector<std::string> beyond;
  return list_segments_in(fd->get(), segments, beyond);
}

std::uint64_t disk_bytes(const std::string& path) {
  std::uint64_t bytes = 0;
  for (const SegmentPath& segment : list_segments(path)) {
    struct stat info {};
    if (::lstat(segment.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    bytes += std::min(segment.bytes, static_cast<std::uint64_t>(info.st_blocks) * 512);
  }
  return bytes;
}

std::filesystem::path nearest_existing(const std::string& directory) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(directory, error);
  while (!at.empty() && !std::filesystem::exists(at, error) && at != at.parent_path()) {
    at = at.parent_path();
  }
  return at;
}

Result<StoreDirectory> StoreDirectory::open(const std::string& path) {
  StoreDirectory store;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return errno_status(error.value(), "create", path);
  store.path_ = path;
  store.absolute_path_ = std::filesystem::absolute(path, error).string();
  if (error) return errno_status(error.value(), "find", path);
  HITIDE_ASSIGN_OR_RETURN(store.directory_, open_directory(AT_FDCWD, path, path));
  HITIDE_RETURN_IF_ERROR(store.take_lock());
  HITIDE_RETURN_IF_ERROR(store.settle_format());
  const std::string segments = segments_directory(path);
  if (::mkdirat(store.fd(), "segments", 0755) != 0 && errno != EEXIST) {
    return errno_status(errno, "create", segments);
  }
  HITIDE_ASSIGN_OR_RETURN(store.segments_, open_directory(store.fd(), "segments", segments));
  // Whoever deletes a directory may do so between its opening and its locking.
  HITIDE_RETURN_IF_ERROR(store.verify());
  return store;
}

Result<StoreDirectory> StoreDirectory::open_to_read(const std::string& path) {
  StoreDirectory store;
  store.path_ = path;
  HITIDE_ASSIGN_OR_RETURN(store.directory_, open_directory(AT_FDCWD, path, path));
  HITIDE_ASSIGN_OR_RETURN(store.format_, store.read_format());
  const std::string segments = segments_directory(path);
  HITIDE_ASSIGN_OR_RETURN(store.segments_, open_directory(store.fd(), "segments", segments));
  return store;
}

// From the kernel's own list: to try the lock would keep a writer out that comes at this moment.
std::int64_t StoreDirectory::owner() const {
  struct stat info {};
  if (::fstatat(fd(), "LOCK", &info, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  const auto locks = read_file("/proc/locks", kLocksBytesMax);
  if (!locks.ok()) return 0;
  const std::string file =
      fmt::format(" {:02x}:{:02x}:{} ", major(info.st_dev), minor(info.st_dev), info.st_ino);
  for (std::size_t begin = 0; begin < locks->size();) {
    const std::size_t end = std::min(locks->find('\n', begin), locks->size());
    const std::string_view line = std::string_view(*locks).substr(begin, end - begin);
    begin = end + 1;
    const std::size_t at = line.find(file);
    if (line.find("FLOCK") == std::string_view::npos || at == std::string_view::npos) continue;
    const std::string_view before = line.substr(0, at);
    std::int64_t process = 0;
    const std::string_view digits = before.substr(before.rfind(' ') + 1);
    std::from_chars(digits.data(), digits.data() + digits.size(), process);
    return process;
  }
  return 0;
}

void StoreDirectory::close() {
  segments_.reset();
  directory_.reset();
  lock_.reset();
}

FileAt StoreDirectory::at(const std::string& name) const {
  return {.directory = fd(), .name = name, .path = path_ + "/" + name};
}

FileAt StoreDirectory::segment(std::uint64_t number) const {
  return {.directory = segments_fd(),
          .name = segment_name(number),
          .path = segment_path(path_, number)};
}

FileAt StoreDirectory::checkpoint(std::uint64_t number) const {
  FileAt file = segment(number);
  for (std::string* text : {&file.name, &file.path}) text->replace(text->size() - 4, 4, ".idx");
  return file;
}

FileAt StoreDirectory::fresh_checkpoint(std::uint64_t number) const {
  FileAt file = checkpoint(number);
  for (std::string* text : {&file.name, &file.path}) *text += ".new";
  return file;
}

std::vector<SegmentPath> StoreDirectory::list() const {
  std::vector<std::string> beyond;
  std::vector<SegmentPath> found =
      list_segments_in(segments_fd(), segments_directory(path_), beyond);
  if (!beyond.empty()) {
    log_warning("file_store_segments_ignored",
                {{"path", beyond.front()},
                 {"files", beyond.size()},
                 {"number_max", kSegmentNumberMax},
                 {"help", "no store has written them: move them away"}});
  }
  return found;
}

Status StoreDirectory::verify() const {
  for (const auto& [name, fd] : {std::pair{"LOCK", lock_.get()}, {"segments", segments_.get()}}) {
    HITIDE_ASSIGN_OR_RETURN(const bool same, still_at(absolute_path_ + "/" + name, fd));
    if (!same) {
      return refused(
          fmt::format("{} in {} was deleted or replaced by another one", name, absolute_path_));
    }
  }
  return {};
}

Status StoreDirectory::in_use(int lock_fd) const {
  std::string owner = "another process";
  if (auto text = read_small_file(path_ + "/LOCK", lock_fd); text.ok() && !text->empty()) {
    owner = fmt::format("process {}", text->substr(0, text->find('\n')));
  }
  return refused(
      fmt::format("store directory {} is in use by {}: stop it, or give this one "
                  "another directory",
                  path_, owner));
}

Status StoreDirectory::take_lock() {
  const FileAt file = at("LOCK");
  HITIDE_ASSIGN_OR_RETURN(UniqueFd fd, open_plain(FileSystem::real(), file, O_RDWR | O_CREAT));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? in_use(fd.get()) : errno_status(errno, "lock", file.path);
  }
  // Network file systems may not lock directories: then the file's lock is all there is.
  if (::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return in_use(fd.get());
  }
  HITIDE_RETURN_IF_ERROR(write_small_file(file.path, fd.get(), fmt::format("{}\n", ::getpid())));
  lock_ = std::move(fd);
  return {};
}

Status StoreDirectory::write_format() const {
  const FileAt fresh = at("FORMAT.new");
  FileSystem& files = FileSystem::real();
  files.unlink(fresh);  // of a process that was killed here
  HITIDE_ASSIGN_OR_RETURN(const UniqueFd fd, open_plain(files, fresh, O_RDWR | O_CREAT | O_EXCL));
  HITIDE_RETURN_IF_ERROR(write_small_file(
      fresh.path, fd.get(), fmt::format("{} {}\n", kFormatName, kStoreFormatVersion)));
  if (::fdatasync(fd.get()) != 0) return errno_status(errno, "sync", fresh.path);
  if (::renameat(this->fd(), "FORMAT.new", this->fd(), "FORMAT") != 0) {
    return errno_status(errno, "rename", fresh.path);
  }
  return {};
}

// An older version is raised before anything is written, so that an older program, which would
// not know the newer records, keeps away from then on.
Status StoreDirectory::settle_format() {
  const Result<int> found = read_format();
  if (found.status().code() == StatusCode::not_found) return write_format();
  if (!found.ok()) return found.status();
  format_ = *found;
  return format_ == kStoreFormatVersion ? ok_status() : write_format();
}

Result<int> StoreDirectory::read_format() const {
  const FileAt file = at("FORMAT");
  HITIDE_ASSIGN_OR_RETURN(const UniqueFd fd, open_plain(FileSystem::real(), file, O_RDONLY));
  HITIDE_ASSIGN_OR_RETURN(const std::string text, read_small_file(file.path, fd.get()));
  std::string_view rest = text;
  int version = 0;
  bool good = rest.starts_with(kFormatName) && rest.size() > kFormatName.size() + 1 &&
              rest[kFormatName.size()] == ' ' && rest.back() == '\n';
  if (good) {
    rest.remove_prefix(kFormatName.size() + 1);
    rest.remove_suffix(1);
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), version);
    good = parsed.ec == std::errc() && parsed.ptr == rest.data() + rest.size() && version >= 1;
  }
  if (!good) {
    return refused(
        fmt::format("{} is damaged or belongs to something else: move the directory "
                    "away, or give another one",
                    file.path));
  }
  if (version > kStoreFormatVersion) {
    return refused(
        fmt::format("store directory {} was written by a newer version (format {}, this "
                    "one knows {}): use that version, or give another directory",
                    path_, version, kStoreFormatVersion));
  }
  return version;
}

}  // namespace hitide
