#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hitide/file_store.h>

#include "base/clock.h"
#include "storage/file/directory.h"
#include "storage/file/segment.h"

namespace hitide {
namespace {

// A record as it must be kept between the scan and the reading.
struct Record {
  RecordHeader header;
  std::string key;
};

class Verifier {
 public:
  Verifier(const FileStoreVerifyOptions& options, const StoreDirectory& directory)
      : options_(options), directory_(directory) {}

  FileStoreVerification run() {
    const std::vector<SegmentPath> segments = directory_.list();
    for (const SegmentPath& segment : segments) total_bytes_ += segment.bytes;
    for (const SegmentPath& segment : segments) {
      if (!go_on() || !verify(segment)) return std::move(result_);
    }
    result_.complete = true;
    return std::move(result_);
  }

 private:
  // False: stopped.
  bool verify(const SegmentPath& segment) {
    const auto access =
        options_.drop_damaged ? SegmentFile::Access::read_and_write : SegmentFile::Access::read;
    const auto file = SegmentFile::open(FileSystem::real(), directory_.segment(segment.number),
                                        segment.number, access);
    if (file.status().code() == StatusCode::not_found) return true;  // evicted meanwhile
    std::vector<Record> records;
    Status status = file.status();
    std::uint64_t lost = 0;
    if (status.ok()) {
      const auto scan = (*file)->scan([&](const RecordHeader& header) {
        if (header.kind == RecordKind::object) {
          records.push_back({.header = header, .key = std::string(header.key)});
        }
      });
      status = scan.status();
      if (scan.ok()) lost = scan->damaged_bytes;
    }
    if (!status.ok()) {
      ++result_.segments_unreadable;
      note({.path = segment.path, .bytes = segment.bytes, .reason = std::string(status.message())});
      done_bytes_ += segment.bytes;
      return true;
    }
    if (lost > 0) {
      note({.path = segment.path,
            .bytes = lost,
            .reason = "in no readable record: damaged, or left by a writer that was killed"});
    }
    return verify_records(**file, records, segment);
  }

  // The segment's checkpoint would go on to tell of the record.
  bool drop(SegmentFile& file, const Record& record, const SegmentPath& segment) {
    const int result = FileSystem::real().unlink(directory_.checkpoint(segment.number));
    if (result != 0 && result != -ENOENT) return false;
    const SegmentFile::Place place{.offset = record.header.offset,
                                   .payload_bytes = record.header.payload_bytes};
    return file.erase(place, hash_key(record.key)).ok();
  }

  bool verify_records(SegmentFile& file, std::vector<Record>& records, const SegmentPath& segment) {
    const std::uint64_t begin = done_bytes_;
    bool changed = false;
    for (Record& record : records) {
      if (!go_on()) return false;
      record.header.key = record.key;
      ++result_.objects;
      result_.bytes += record.header.payload_bytes;
      done_bytes_ = begin + record.header.offset;
      const Status status = file.check(record.header);
      if (status.ok()) continue;
      // Removed since the scan, by the store's owner.
      if (status.code() == StatusCode::not_found) continue;
      ++result_.objects_damaged;
      FileStoreDamage damage{.path = segment.path,
                             .offset = record.header.offset,
                             .key = record.key,
                             .bytes = record_bytes(record.header.payload_bytes),
                             .reason = std::string(status.message())};
      if (options_.drop_damaged) {
        damage.dropped = drop(file, record, segment);
        changed = changed || damage.dropped;
        if (damage.dropped) ++result_.objects_dropped;
      }
      note(std::move(damage));
    }
    if (changed) file.sync().ignore();  // what is not on the disk is found damaged once more
    done_bytes_ = begin + segment.bytes;
    return true;
  }

  void note(FileStoreDamage damage) {
    result_.damaged_bytes += damage.bytes;
    if (result_.damage.size() < options_.damage_max) result_.damage.push_back(std::move(damage));
  }
  bool go_on() const {
    const bool late =
        options_.deadline != kNoDeadline && SystemClock::instance().now() >= options_.deadline;
    return !late && (!options_.progress || options_.progress(done_bytes_, total_bytes_));
  }

  const FileStoreVerifyOptions& options_;
  const StoreDirectory& directory_;
  FileStoreVerification result_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

Result<FileStoreVerification> verify_file_store(const FileStoreVerifyOptions& options) {
  std::optional<StoreDirectory> directory;
  {
    // Never makes a store where none is.
    HITIDE_ASSIGN_OR_RETURN(directory, StoreDirectory::open_to_read(options.path));
  }
  if (options.drop_damaged) {
    HITIDE_ASSIGN_OR_RETURN(directory, StoreDirectory::open(options.path));
  }
  return Verifier(options, *directory).run();
}

}  // namespace hitide
