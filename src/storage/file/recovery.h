// What lies in a segment file, as a start or a follower finds it: its checkpoint, and the records
// behind that.
//
// Threading: free functions, for different segments at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <hitide/result.h>

#include "storage/file/checkpoint.h"
#include "storage/file/directory.h"
#include "storage/file/segment.h"

namespace hitide {

struct RecoveredSegment {
  std::shared_ptr<SegmentFile> file;
  SegmentScan scan;  // of the whole segment
  // The objects that are alive, by offset as far as the headers were read. `space` is an index of
  // known.names.
  Checkpoint known;
  std::uint64_t checkpoint_end = 0;  // 0: there was none
};

// Errors: as of SegmentFile::open() and scan().
Result<RecoveredSegment> recover_segment(FileSystem& files, const StoreDirectory& directory,
                                         const SegmentPath& found, SegmentFile::Access access);

// Reads the headers from `from` on into known.entries and known.names.
Result<SegmentScan> collect_records(const SegmentFile& file, std::uint64_t from, Checkpoint& known);

}  // namespace hitide
