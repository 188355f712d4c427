// The directory of a file store: its lock, its format, its segment files.
//
//   LOCK                 locked by the process that has the store open; holds its process id
//   FORMAT               one line: what this is, and its version
//   segments/000001.seg  see record.h
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hitide/result.h>

#include "base/file.h"

namespace hitide {

inline constexpr int kStoreFormatVersion = 1;

// Creates the directory where it is missing, takes the lock, and checks or writes FORMAT. The lock
// is held as long as the descriptor is open. failed_precondition: in use by another process, of a
// newer version, damaged FORMAT, or not ours to write; else as errno_status().
Result<UniqueFd> lock_store_directory(const std::string& path);

struct SegmentPath {
  std::uint64_t number = 0;
  std::string path;
  std::uint64_t bytes = 0;  // 0 unless a plain file
};

std::string segments_directory(const std::string& path);
std::string segment_path(const std::string& path, std::uint64_t number);
// By number. Entries that are not named like segments are left out. Empty where the directory is
// missing.
std::vector<SegmentPath> list_segments(const std::string& path);

}  // namespace hitide
