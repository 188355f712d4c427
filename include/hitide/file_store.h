// What lies in the directory of a file store, for tools: `hitide inspect` and `hitide verify`.
//
// Everything here opens the files anew and by itself. Nobody needs to own the store, and a process
// that has it open goes on undisturbed: what it writes or deletes meanwhile may be in the answer or
// not. Only dropping damage takes the store's lock.
//
// Threading: free functions, safe from any thread. Cost: inspecting reads one block of 4096 bytes
// for each object, verifying reads every byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <hitide/result.h>
#include <hitide/types.h>

namespace hitide {

// Objects whose keys share what stands in front of the first slash: all pages of one model.
struct FileStoreNamespace {
  std::string name = {};      // pages: the model's identity digest, 64 hex digits
  std::uint64_t objects = 0;  // keys that can be read
  std::uint64_t pages = 0;    // one page's pools and parts have an object each
  std::uint64_t bytes = 0;    // of payload
  // Unix time in seconds of the oldest and the newest object; 0: not known (format 1).
  std::uint64_t oldest_s = 0;
  std::uint64_t newest_s = 0;
};

struct FileStoreSegment {
  std::uint64_t number = 0;  // grows with age: the lowest is the oldest
  std::string path = {};
  std::uint64_t objects = 0;  // alive
  std::uint64_t file_bytes = 0;
  std::uint64_t live_bytes = 0;  // records of objects that are alive, with headers and padding
  std::uint64_t dead_bytes = 0;  // removed or superseded records
  // In no readable record: damaged, or left by a writer that was killed or is at work just now.
  std::uint64_t damaged_bytes = 0;
  std::string error = {};  // why it cannot be read; empty: it can
};

struct FileStoreContents {
  std::string path = {};
  int format = 0;             // version of the stored format
  std::int64_t owner = 0;     // process that has it open for writing; 0: none, or not known
  std::uint64_t objects = 0;  // the sums over all segments
  std::uint64_t pages = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t dead_bytes = 0;
  std::uint64_t damaged_bytes = 0;
  std::vector<FileStoreNamespace> namespaces = {};  // the one with the most bytes first
  std::vector<FileStoreSegment> segments = {};      // by number
};

// The stores at `path`: itself, or the folders rank0, rank1, ... of several ranks. Empty: none.
std::vector<std::string> file_store_directories(const std::string& path);

// not_found: no store there; failed_precondition: of a newer version, or no store of ours;
// deadline_exceeded; else as the system says. A segment that cannot be read is no failure: see its
// `error`.
Result<FileStoreContents> inspect_file_store(const std::string& path,
                                             TimePoint deadline = kNoDeadline);

// One object that cannot be served, or one file.
struct FileStoreDamage {
  std::string path = {};  // of the segment
  std::uint64_t offset = 0;
  std::string key = {};  // empty: the whole segment, or what lies between records
  std::uint64_t bytes = 0;
  std::string reason = {};
  bool dropped = false;
};

struct FileStoreVerifyOptions {
  std::string path = {};
  // Marks damaged objects as removed, so that they are stored anew when they are wanted. Takes the
  // store's lock: failed_precondition where a process has it open.
  bool drop_damaged = false;
  std::size_t damage_max = 1000;  // more is counted, and not listed
  TimePoint deadline = kNoDeadline;
  // Called now and then with bytes of segment files. False: stop.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress = {};
};

struct FileStoreVerification {
  std::uint64_t objects = 0;  // read and compared with their checksums
  std::uint64_t bytes = 0;
  std::uint64_t objects_damaged = 0;
  std::uint64_t objects_dropped = 0;
  std::uint64_t damaged_bytes = 0;  // in no readable record, and of damaged objects
  std::uint64_t segments_unreadable = 0;
  std::vector<FileStoreDamage> damage = {};
  bool complete = false;  // false: stopped by `progress` or the deadline; the rest holds so far
};

// Reads every object of the store and compares it with its checksum. Errors: as of inspecting.
// What a process that is at work evicts or removes meanwhile is no damage.
Result<FileStoreVerification> verify_file_store(const FileStoreVerifyOptions& options);

}  // namespace hitide
