// Reading and writing the format of docs/formats/export.md, piece by piece.
//
// Threading: one object is for one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <hitide/object_store.h>
#include <hitide/prefix_file.h>

#include "base/file.h"
#include "base/hash.h"

namespace hitide {

// Bytes of the object that a page has of a pool, an index into the model's; 0: it has none.
std::uint64_t stored_object_bytes(const ModelSpec& model, std::uint32_t pool);
// Whether a prefix of so many pages can be restored only if the page's object of that pool is
// there.
bool object_needed(const ModelSpec& model, std::uint32_t pool, std::uint64_t page,
                   std::uint64_t pages);

class PrefixFileWriter {
 public:
  // Nothing is at `path` before finish() unless a device or pipe is there. Errors: of the file;
  // invalid_argument: a directory, or a model that cannot be written down.
  static Result<PrefixFileWriter> create(const std::string& path, const ModelSpec& model,
                                         std::span<const PageKey> keys);
  PrefixFileWriter(PrefixFileWriter&& other) noexcept;
  PrefixFileWriter& operator=(PrefixFileWriter&&) = delete;
  ~PrefixFileWriter();  // unfinished: leaves nothing

  // In ascending order of page, then pool.
  Status add(std::uint32_t page, std::uint32_t pool, std::span<const std::byte> object);
  Status finish();
  std::uint64_t objects() const { return objects_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  PrefixFileWriter() = default;
  Status write(std::span<const std::byte> bytes);

  std::string path_;
  std::string written_to_;  // path_ or beside it
  bool finished_ = false;
  UniqueFd fd_;
  std::unique_ptr<Checksum64> checksum_;
  std::uint64_t objects_ = 0;
  std::uint64_t bytes_ = 0;
};

class PrefixFileReader {
 public:
  struct Record {
    std::uint32_t page = 0;
    std::uint32_t pool = 0;  // index into the model's pools
  };

  // Reads and checks the head.
  static Result<PrefixFileReader> open(const std::string& path);
  const PrefixFileHead& head() const { return head_; }

  // The next object, verified, in `object`; nothing: that was all, and the file is whole.
  Result<std::optional<Record>> next(std::vector<std::byte>& object);
  // Goes back to the first object.
  void rewind();

 private:
  PrefixFileReader() = default;
  Status read(std::span<std::byte> bytes);
  Status read_head();
  Status read_object(const Record& record, std::uint64_t bytes, std::vector<std::byte>& object);
  Status check_end(std::uint64_t objects);
  Status damaged(const std::string& what) const;

  std::string path_;
  UniqueFd fd_;
  PrefixFileHead head_;
  std::unique_ptr<Checksum64> checksum_;
  std::vector<std::byte> head_bytes_;  // as they were read: the checksum begins with them
  std::uint64_t at_ = 0;
  std::uint64_t objects_ = 0;
  std::optional<Record> last_;
  std::vector<std::uint64_t> needed_;  // by pool: objects that are needed, seen so far
};

// What hitide/prefix_file.h promises, over stores of any kind that take memory of any kind.
Result<PrefixExport> export_from(ObjectStore& store, const ModelSpec& model,
                                 std::span<const PageKey> keys, const std::string& path);
// Reads all of it. Errors: as of import_prefix().
Status verify_prefix(PrefixFileReader& file);
// After verify_prefix(); what does not verify by then is not stored.
Result<PrefixImport> import_into(ObjectStore& store, PrefixFileReader& file);

}  // namespace hitide
