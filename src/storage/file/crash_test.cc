// Kills a writing process at a random moment, over and over, and looks at what it has left behind.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/file/file_store.h"
#include "tests/support/store_bytes.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

FileStoreOptions options_for(const std::string& path) {
  FileStoreOptions options;
  options.path = path;
  options.bytes_max = 256u << 20;
  options.segment_bytes = 1u << 20;
  options.disk_free_bytes_min = 0;
  options.sync_interval_ms = 1;
  return options;
}

std::size_t size_of(std::uint32_t n) { return 1 + n * 7919 % 60'000; }
std::string name_of(std::uint32_t n) { return "crash/" + std::to_string(n); }
bool is_removed(std::uint32_t n) { return n % 11 == 3; }

// Two threads write; each acknowledged object's number goes down the pipe before the next is begun.
[[noreturn]] void write_until_killed(const std::string& path, std::uint32_t first, int pipe) {
  auto store = FileStore::open(options_for(path));
  if (!store.ok()) ::_exit(2);
  const auto write_some = [&](std::uint32_t begin) {
    for (std::uint32_t n = begin;; n += 2) {
      if (put_object(**store, name_of(n), bytes_of(name_of(n), size_of(n))) != StatusCode::ok) {
        ::_exit(3);
      }
      if (is_removed(n) && remove_object(**store, name_of(n)) != StatusCode::ok) ::_exit(4);
      if (::write(pipe, &n, sizeof n) != sizeof n) ::_exit(5);
    }
  };
  std::thread other(write_some, first + 1);
  write_some(first);
  ::_exit(6);
}

// Everything acknowledged is there, what was removed is not, and there is no wrong byte.
void verify(const std::string& path, const std::vector<std::uint32_t>& acknowledged,
            std::uint32_t end) {
  auto store = FileStore::open(options_for(path));
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  for (const std::uint32_t n : acknowledged) {
    ASSERT_EQ(check_object(**store, name_of(n), size_of(n)),
              is_removed(n) ? StatusCode::not_found : StatusCode::ok)
        << n;
  }
  // What was under way when the process was killed may be there or not.
  for (std::uint32_t n = 0; n < end; ++n) {
    const StatusCode code = check_object(**store, name_of(n), size_of(n));
    ASSERT_TRUE(code == StatusCode::ok || code == StatusCode::not_found) << n << to_string(code);
  }
  ASSERT_TRUE((*store)->close(kNoDeadline).ok());
}

TEST(FileStoreCrash, NothingAcknowledgedIsLostAndNoByteIsWrong) {
  set_log_sink([](LogLevel, std::string_view) {});
  const TempDirectory directory;
  const std::string path = directory / "store";
  std::vector<std::uint32_t> acknowledged;
  std::uint32_t next = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const std::uint64_t kill_after = 1 + random.below(60);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      write_until_killed(path, next, ends[1]);
    }
    ::close(ends[1]);
    std::uint32_t number = 0;
    std::uint64_t heard = 0;
    while (::read(ends[0], &number, sizeof number) == sizeof number) {
      acknowledged.push_back(number);
      if (++heard == kill_after) ::kill(child, SIGKILL);
    }
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself, with " << WEXITSTATUS(status);
    ASSERT_GE(heard, kill_after);
    std::uint32_t newest = 0;
    for (const std::uint32_t n : acknowledged) newest = std::max(newest, n);
    verify(path, acknowledged, newest + 4);
    if (HasFatalFailure()) return;
    next = newest + 5;
  }
  set_log_sink({});
}

}  // namespace
}  // namespace hitide
