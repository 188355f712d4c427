// PowerLossFiles: the real file system, with a model of the disk behind it, so that a test can ask
// at any step what a power loss would leave.
//
// What counts as on the disk: bytes of a file that was synced since they were written, and names of
// a directory that was synced since they changed. Of everything else any sector may be there or
// not, in any order, and so may any name; a file may have its length before its bytes.
//
// Only what goes through this seam is modelled. Threading: all methods from any thread at once; a
// step's observer is called under the lock, so steps are seen one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "storage/file/file_system.h"

namespace hitide {

class PowerLossFiles final : public FileSystem {
 public:
  static constexpr std::uint64_t kSectorBytes = 512;

  struct Write {
    std::uint64_t offset = 0;
    std::vector<char> bytes;
    std::size_t sectors() const { return (bytes.size() + kSectorBytes - 1) / kSectorBytes; }
  };
  struct File {
    std::vector<char> durable;
    std::vector<Write> pending;
    std::uint64_t size = 0;  // as programs see it
    UniqueFd held;           // so that the inode's number is not used again
  };
  // What of the pending things reaches the disk.
  struct Loss {
    std::function<bool(std::uint64_t file, std::size_t write, std::size_t sector)> keeps_sector;
    std::function<bool(const std::string& name)> keeps_name;  // false: as it was at the last sync
    bool keeps_sizes = false;
  };

  // Called after each step, with the lock held.
  std::function<void(const std::string& what)> observer;

  // Writes what a power loss leaves into the directory, which is made anew. The caller is the
  // observer, or nobody else uses the files.
  void write_image(const std::string& directory, const Loss& loss) const {
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    std::map<std::string, std::uint64_t> names;
    for (const auto* from : {&durable_names_, &names_}) {
      for (const auto& [name, file] : *from) names.emplace(name, 0);
    }
    for (const auto& [name, none] : names) {
      const auto& from = loss.keeps_name(name) ? names_ : durable_names_;
      const auto file = from.find(name);
      if (file == from.end()) continue;
      const std::vector<char> bytes = content(file->second, loss);
      std::ofstream(directory + "/" + name, std::ios::binary)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
  }
  // The last `most` unsynced writes of each file.
  template <typename Visit>
  void for_each_pending(std::size_t most, const Visit& visit) const {
    for (const auto& [id, file] : files_) {
      const std::size_t count = file.pending.size();
      for (std::size_t i = count - std::min(count, most); i < count; ++i) {
        visit(id, i, file.pending[i].sectors());
      }
    }
  }

  int open(const FileAt& file, int flags) override {
    const std::lock_guard lock(mutex_);
    const int fd = FileSystem::open(file, flags);
    if (fd >= 0 && (flags & O_CREAT) != 0) {
      const std::uint64_t id = id_of(fd);
      names_[file.name] = id;
      if (!files_.contains(id)) files_[id].held = UniqueFd(::dup(fd));
      step("create " + file.name);
    }
    return fd;
  }
  std::int64_t pwritev(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    const std::lock_guard lock(mutex_);
    const std::int64_t done = FileSystem::pwritev(fd, buffers, offset);
    if (done <= 0) return done;
    Write write{.offset = offset, .bytes = {}};
    for (const iovec& buffer : buffers) {
      const auto* bytes = static_cast<const char*>(buffer.iov_base);
      write.bytes.insert(write.bytes.end(), bytes, bytes + buffer.iov_len);
    }
    write.bytes.resize(static_cast<std::size_t>(done));
    File& file = files_[id_of(fd)];
    file.size = std::max(file.size, offset + write.bytes.size());
    file.pending.push_back(std::move(write));
    step("write");
    return done;
  }
  int fdatasync(int fd) override {
    const std::lock_guard lock(mutex_);
    struct stat info {};
    ::fstat(fd, &info);
    if (S_ISDIR(info.st_mode)) {
      durable_names_ = names_;
    } else {
      File& file = files_[info.st_ino];
      for (const Write& write : file.pending)
        apply(write, file.durable, [](std::size_t) { return true; });
      file.pending.clear();
    }
    step("sync");
    return 0;
  }
  int unlink(const FileAt& file) override {
    const std::lock_guard lock(mutex_);
    const int result = FileSystem::unlink(file);
    if (result == 0) {
      names_.erase(file.name);
      step("delete " + file.name);
    }
    return result;
  }
  int rename(const FileAt& from, const FileAt& to) override {
    const std::lock_guard lock(mutex_);
    const int result = FileSystem::rename(from, to);
    if (result == 0) {
      names_[to.name] = names_[from.name];
      names_.erase(from.name);
      step("rename to " + to.name);
    }
    return result;
  }

 private:
  static std::uint64_t id_of(int fd) {
    struct stat info {};
    ::fstat(fd, &info);
    return info.st_ino;
  }
  void step(const std::string& what) {
    if (observer) observer(what);
  }
  template <typename Keeps>
  static void apply(const Write& write, std::vector<char>& bytes, const Keeps& keeps) {
    for (std::size_t sector = 0; sector < write.sectors(); ++sector) {
      if (!keeps(sector)) continue;
      const std::size_t begin = sector * kSectorBytes;
      const std::size_t end = std::min<std::size_t>(begin + kSectorBytes, write.bytes.size());
      if (bytes.size() < write.offset + end) bytes.resize(write.offset + end);
      std::copy(write.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                write.bytes.begin() + static_cast<std::ptrdiff_t>(end),
                bytes.begin() + static_cast<std::ptrdiff_t>(write.offset + begin));
    }
  }
  std::vector<char> content(std::uint64_t id, const Loss& loss) const {
    const File& file = files_.at(id);
    std::vector<char> bytes = file.durable;
    for (std::size_t i = 0; i < file.pending.size(); ++i) {
      apply(file.pending[i], bytes,
            [&](std::size_t sector) { return loss.keeps_sector(id, i, sector); });
    }
    if (loss.keeps_sizes && bytes.size() < file.size) bytes.resize(file.size);
    return bytes;
  }

  std::mutex mutex_;
  std::map<std::uint64_t, File> files_;  // by inode
  std::map<std::string, std::uint64_t> names_;
  std::map<std::string, std::uint64_t> durable_names_;
};

}  // namespace hitide
