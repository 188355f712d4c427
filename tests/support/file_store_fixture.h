// What the tests of the file store share: a file system that fails on demand, and a store over it.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/log.h"
#include "storage/file/file_store.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {

inline constexpr auto kOk = StatusCode::ok;
inline constexpr auto kMiss = StatusCode::not_found;

// The real file system, with failures on demand.
class FaultyFiles final : public FileSystem {
 public:
  int open(const FileAt& file, int flags) override {
    const int code = open_error;
    return code != 0 ? -code : FileSystem::open(file, flags);
  }
  std::int64_t preadv(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    const int code = read_error;
    if (code != 0) return -code;
    if (short_transfers) return FileSystem::preadv(fd, first_byte(buffers), offset);
    return FileSystem::preadv(fd, buffers, offset);
  }
  std::int64_t pwritev(int fd, std::span<const iovec> buffers, std::uint64_t offset) override {
    if (write_skip > 0) {
      --write_skip;
    } else if (write_errors > 0) {
      --write_errors;
      // As a disk does that fills up in the middle: a part of it is written.
      if (partial_writes) FileSystem::pwritev(fd, first_byte(buffers), offset);
      return -write_error;
    }
    if (short_transfers) return FileSystem::pwritev(fd, first_byte(buffers), offset);
    return FileSystem::pwritev(fd, buffers, offset);
  }
  int allocate(int fd, std::uint64_t offset, std::uint64_t bytes) override {
    ++allocations;
    const int code = allocate_error;
    return code != 0 ? -code : FileSystem::allocate(fd, offset, bytes);
  }
  int fdatasync(int fd) override {
    ++syncs;
    const int code = sync_error;
    if (code == 0 && skip_syncs) return 0;
    return code != 0 ? -code : FileSystem::fdatasync(fd);
  }
  int unlink(const FileAt& file) override {
    ++unlinks;
    if (!unremovable.empty() && file.path.find(unremovable) != std::string::npos) return -EPERM;
    const int result = FileSystem::unlink(file);
    if (result == 0) free_answer += freed_by_unlink;
    return result;
  }
  std::int64_t free_bytes(int directory) override {
    const std::int64_t free = free_answer;
    return free >= 0 ? free : FileSystem::free_bytes(directory);
  }

  std::atomic<int> open_error = 0;
  std::atomic<int> read_error = 0;
  std::atomic<int> write_skip = 0;    // so many writes pass
  std::atomic<int> write_errors = 0;  // then so many fail with write_error
  std::atomic<int> write_error = ENOSPC;
  std::atomic<bool> partial_writes = false;
  std::atomic<bool> short_transfers = false;  // one byte a call
  std::atomic<int> allocate_error = 0;
  std::atomic<int> allocations = 0;
  std::atomic<int> sync_error = 0;
  std::atomic<int> syncs = 0;
  std::atomic<bool> skip_syncs = false;
  std::atomic<int> unlinks = 0;
  std::atomic<std::int64_t> free_answer = -1;
  std::atomic<std::int64_t> freed_by_unlink = 0;  // added to free_answer
  std::string unremovable;                        // set before the store is used

 private:
  static std::span<const iovec> first_byte(std::span<const iovec> buffers) {
    static thread_local iovec one;
    one = {.iov_base = buffers.front().iov_base, .iov_len = 1};
    return {&one, 1};
  }
};

inline std::vector<char> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A new file each time: writing over an old one makes some file systems flush it.
inline void write_bytes(const std::string& path, const std::vector<char>& bytes) {
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class FileStoreTest : public testing::Test {
 protected:
  FileStoreTest() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(log_mutex_);
      log_ += line;
      log_ += '\n';
    });
    options_.path = directory_ / "store";
    options_.bytes_max = 64u << 20;
    options_.segment_bytes = 1u << 20;
    options_.disk_free_bytes_min = 0;
    options_.sync_interval_ms = 0;
    options_.background = false;  // nothing happens but what a test does
    options_.seed = 1;
    options_.files = &files_;
    options_.clock = &clock_;
  }
  ~FileStoreTest() override {
    store_.reset();
    set_log_sink({});
  }

  Status open() {
    store_.reset();
    auto store = FileStore::open(options_);
    if (!store.ok()) return store.status();
    store_ = std::move(*store);
    return {};
  }
  // Opens the store and runs the body in a process of its own, so that its limit is its own too.
  template <typename Body>
  void in_a_process_with(decltype(RLIMIT_FSIZE) resource, rlim_t limit, const Body& body) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit both{.rlim_cur = limit, .rlim_max = limit};
      const bool set = ::setrlimit(resource, &both) == 0 && open().ok();
      if (set) body();
      store_.reset();
      ::_exit(set && !testing::Test::HasFailure() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "killed by " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "what failed stands above";
  }
  StatusCode put(const std::string& key, std::size_t size) {
    return put_object(*store_, key, bytes_of(key, size));
  }
  StatusCode check(const std::string& key, std::size_t size) {
    return check_object(*store_, key, size);
  }
  // Puts objects of 100 KiB, by number from `count`, until there are so many segments; returns the
  // number behind the last one.
  int fill_segments(int segments, int count = 0) {
    while (static_cast<int>(list_segments(options_.path).size()) < segments) {
      EXPECT_EQ(put(name(count), kSize), kOk);
      ++count;
    }
    return count;
  }
  // How often something was said in the log.
  int said(const std::string& text) {
    const std::lock_guard lock(log_mutex_);
    int count = 0;
    for (auto at = log_.find(text); at != std::string::npos; at = log_.find(text, at + 1)) ++count;
    return count;
  }
  static std::string name(int n) { return "object/" + std::to_string(n); }
  int held(int count) {
    int found = 0;
    for (int n = 0; n < count; ++n) {
      const StatusCode code = check(name(n), kSize);
      EXPECT_TRUE(code == kOk || code == kMiss) << to_string(code);
      if (code == kOk) ++found;
    }
    return found;
  }
  static constexpr std::size_t kSize = 100 << 10;

  TempDirectory directory_;
  FaultyFiles files_;
  ManualClock clock_;  // of the store's pauses
  FileStoreOptions options_;
  std::unique_ptr<FileStore> store_;
  std::mutex log_mutex_;
  std::string log_;  // guarded by log_mutex_
};

}  // namespace hitide
