// SegmentFile: one open segment file and the records in it. It knows where bytes lie, not which
// keys are alive; that is the store's business.
//
// Threading: all methods from any thread at once, as long as no two write the same range. The
// descriptor is closed with the last reader's reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <hitide/result.h>

#include "base/file.h"
#include "storage/file/file_system.h"
#include "storage/file/page_index.h"
#include "storage/file/record.h"

namespace hitide {

struct SegmentScan {
  std::uint64_t end = 0;           // where the next record may be written
  std::uint64_t first_gap = 0;     // in front of this all is records, or no record can come
  std::uint64_t sequence_min = 0;  // of all records, those that are cut off too; 0: none
  std::uint64_t sequence_max = 0;
  std::uint64_t damaged_bytes = 0;  // in no readable record: torn or flipped
  std::uint64_t cut_objects = 0;    // the file ends within their payload
};

class SegmentFile {
 public:
  // Creates the file with its header. It must not exist. Null: `error` is the errno.
  static std::shared_ptr<SegmentFile> create(FileSystem& files, const FileAt& at,
                                             const SegmentHeader& header, int& error);
  // data_loss: it has no valid header, or another number's; else as open_plain().
  enum class Access : std::uint8_t { read, read_and_write };
  static Result<std::shared_ptr<SegmentFile>> open(FileSystem& files, const FileAt& at,
                                                   std::uint64_t number, Access access);

  // Tells every record that lies wholly in the file, erased ones too, by offset; the header's key
  // is valid during the call only. Behind a damaged one it goes on block by block. Reads one block
  // a record, and all blocks of what is damaged.
  // `from`: where a record begins; what lies in front of it is left out.
  using Visitor = std::function<void(const RecordHeader& header)>;
  Result<SegmentScan> scan(const Visitor& visit, std::uint64_t from = kBlockBytes) const;

  // Asks for space for [begin, end), and for some MiB behind it, but not behind `limit`, where that
  // has not been done yet: writes cost a quarter less then. The file's size stays, and where the
  // file system cannot do it the writes take their space themselves.
  void allocate_ahead(std::uint64_t begin, std::uint64_t end, std::uint64_t limit);

  // Payload first, then the header, so that a process that is killed in between leaves no record.
  // Answers 0 or the errno.
  struct NewRecord {
    std::uint64_t offset = 0;
    std::uint64_t sequence = 0;
    std::uint32_t written_s = 0;
    std::string_view key;
  };
  int write(const NewRecord& record, std::span<const std::span<const std::byte>> buffers);

  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t payload_bytes = 0;  // the total of the buffers, checked by the caller
  };
  enum class Verify : std::uint8_t { header, header_and_payload };
  // Fills the buffers. data_loss: the file ends early, or the record there is not the one asked
  // for, or does not verify; not_found: it has been erased; else as errno_status().
  Status read(const Place& place, std::string_view key,
              std::span<const std::span<std::byte>> buffers, Verify verify) const;

  // Reads the record whose header a scan has told, in pieces. As read() with both verified.
  Status check(const RecordHeader& header) const;

  // A whole record, verified. data_loss, not_found: as of read().
  struct Record {
    std::string key;
    std::uint32_t written_s = 0;
    std::vector<std::byte> payload;
  };
  Result<Record> read_record(const Place& place, const KeyHash& key) const;

  // Marks the record as erased, where it still is the one of `key`.
  Status erase(const Place& place, const KeyHash& key);

  // The key of the record at `offset`; empty where there is none, or it has been erased.
  std::string key_at(std::uint64_t offset) const;

  Status sync() const;
  // Gives back what a failed write has left behind `end`. Nobody may be writing there.
  void trim(std::uint64_t end);
  // True when the file has no name any more: what is written to it will be lost.
  bool unlinked() const;
  std::uint64_t id() const { return header_.id; }
  const std::string& path() const { return path_; }

 private:
  SegmentFile(FileSystem& files, std::string path, const SegmentHeader& header, UniqueFd fd);
  int write_block(const Block& block, std::uint64_t offset);
  // The header in `block` where it is the one of this place, else nothing.
  std::optional<RecordHeader> match(const Block& block, const Place& place) const;

  FileSystem& files_;
  const std::string path_;
  const SegmentHeader header_;
  const UniqueFd fd_;
  std::atomic<std::uint64_t> allocated_ = 0;  // up to here; 0: nothing yet
};

}  // namespace hitide
