// The directory of a file store: its lock, its format, its segment files.
//
//   LOCK                 locked by the process that has the store open; holds its process id
//   FORMAT               one line: what this is, and its version; an older one is raised when the
//                        store is opened for writing
//   segments/000001.seg  see record.h
//   segments/000001.idx  see checkpoint.h
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <hitide/result.h>

#include "base/file.h"
#include "storage/file/file_system.h"

namespace hitide {

inline constexpr int kStoreFormatVersion = 2;
// Far from where numbers wrap; at one segment a second it lasts for 30000 years.
inline constexpr std::uint64_t kSegmentNumberMax = 999'999'999'999;

struct SegmentPath {
  std::uint64_t number = 0;
  std::string path;
  std::uint64_t bytes = 0;  // 0 unless a plain file
};

std::string segments_directory(const std::string& path);
std::string segment_path(const std::string& path, std::uint64_t number);
// Of a store that need not be open. By number. Entries that are not named like segments, or with a
// number above kSegmentNumberMax, are left out. Empty where the directory is missing.
std::vector<SegmentPath> list_segments(const std::string& path);

// What these files take of their disk: less than their sizes where they have holes.
std::uint64_t disk_bytes(const std::string& path);
// The directory, or the nearest above it that is there: on its disk the directory will lie.
std::filesystem::path nearest_existing(const std::string& directory);

// An open store directory. Its files are reached through descriptors that it holds, never by path:
// when another directory stands at the path one day, it is left alone.
//
// The lock is on the file LOCK, and, where the file system can do that, on the directory itself:
// deleting LOCK does not let a second owner in.
//
// Threading: the const methods from any thread at once.
class StoreDirectory {
 public:
  // Creates the directory where it is missing, takes the lock, and checks or writes FORMAT.
  // failed_precondition: in use by another process, of a newer version, damaged FORMAT, not ours
  // to write, or something in it that is no plain file; else as errno_status().
  static Result<StoreDirectory> open(const std::string& path);

  // For reading alone: takes no lock and changes nothing. not_found: there is no store. Else as
  // open().
  static Result<StoreDirectory> open_to_read(const std::string& path);

  // ok: what stands at the path is still this directory, with our lock in it. failed_precondition:
  // it was deleted or replaced, for good. Else: it cannot be looked at just now. Cost: two system
  // calls.
  Status verify() const;

  int fd() const { return directory_.get(); }
  int segments_fd() const { return segments_.get(); }
  FileAt segment(std::uint64_t number) const;
  FileAt checkpoint(std::uint64_t number) const;
  FileAt fresh_checkpoint(std::uint64_t number) const;  // while it is being written
  std::vector<SegmentPath> list() const;                // warns of numbers that are left out
  // As it was when the directory was opened.
  int format() const { return format_; }
  // Which process has the store open for writing; 0: none, or it cannot be known.
  std::int64_t owner() const;
  // Gives the lock back.
  void close();

 private:
  Status take_lock();
  Status in_use(int lock_fd) const;
  Result<int> read_format() const;  // not_found: there is none
  Status settle_format();
  Status write_format() const;
  FileAt at(const std::string& name) const;

  std::string path_;
  std::string absolute_path_;  // the same after a change of the working directory
  UniqueFd directory_;
  UniqueFd segments_;
  UniqueFd lock_;
  int format_ = kStoreFormatVersion;
};

}  // namespace hitide
