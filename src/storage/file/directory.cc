#include "storage/file/directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

namespace hitide {
namespace {

constexpr std::string_view kFormatName = "hitide-file-store";

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

Result<UniqueFd> take_lock(const std::string& path) {
  const std::string name = path + "/LOCK";
  UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return errno_status(errno, "open", name);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status(errno, "lock", name);
    std::string owner = "another process";
    if (Result<std::string> text = read_file(name, 64); text.ok() && !text->empty()) {
      owner = fmt::format("process {}", text->substr(0, text->find('\n')));
    }
    return refused(
        fmt::format("store directory {} is in use by {}: stop it, or give this one "
                    "another directory",
                    path, owner));
  }
  HITIDE_RETURN_IF_ERROR(write_small_file(name, fd.get(), fmt::format("{}\n", ::getpid())));
  return fd;
}

Status write_format(const std::string& path) {
  const std::string name = path + "/FORMAT";
  const std::string fresh = name + ".new";
  const UniqueFd fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return errno_status(errno, "open", fresh);
  HITIDE_RETURN_IF_ERROR(
      write_small_file(fresh, fd.get(), fmt::format("{} {}\n", kFormatName, kStoreFormatVersion)));
  if (::fdatasync(fd.get()) != 0) return errno_status(errno, "sync", fresh);
  if (::rename(fresh.c_str(), name.c_str()) != 0) return errno_status(errno, "rename", fresh);
  return {};
}

Status check_format(const std::string& path) {
  const std::string name = path + "/FORMAT";
  Result<std::string> text = read_file(name, 4096);
  if (text.status().code() == StatusCode::not_found) return write_format(path);
  if (!text.ok()) return text.status();
  std::string_view rest = *text;
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
                    name));
  }
  if (version > kStoreFormatVersion) {
    return refused(
        fmt::format("store directory {} was written by a newer version (format {}, this "
                    "one knows {}): use that version, or give another directory",
                    path, version, kStoreFormatVersion));
  }
  return {};
}

}  // namespace

Result<UniqueFd> lock_store_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return errno_status(error.value(), "create", path);
  HITIDE_ASSIGN_OR_RETURN(UniqueFd lock, take_lock(path));
  HITIDE_RETURN_IF_ERROR(check_format(path));
  std::filesystem::create_directories(segments_directory(path), error);
  if (error) return errno_status(error.value(), "create", segments_directory(path));
  return lock;
}

std::string segments_directory(const std::string& path) { return path + "/segments"; }

std::string segment_path(const std::string& path, std::uint64_t number) {
  return fmt::format("{}/{:06}.seg", segments_directory(path), number);
}

std::vector<SegmentPath> list_segments(const std::string& path) {
  std::vector<SegmentPath> found;
  std::error_code error;
  std::filesystem::directory_iterator at(segments_directory(path), error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    SegmentPath segment;
    segment.path = at->path().string();
    const char* const begin = name.data();
    const auto parsed = std::from_chars(begin, begin + name.size(), segment.number);
    if (parsed.ec != std::errc() || segment.number == 0) continue;
    // The exact name only: what we did not name is not ours to delete.
    if (segment_path(path, segment.number) != segments_directory(path) + "/" + name) continue;
    std::error_code no_size;
    if (at->is_regular_file(no_size)) segment.bytes = at->file_size(no_size);
    if (no_size) segment.bytes = 0;
    found.push_back(std::move(segment));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

}  // namespace hitide
