// Plan and completion: what the core wants done, and what became of it.
//
// The core (src/cache) takes requests and completions and returns plans; the shell carries them
// out. Operations hold page ids and keys of their own, never nodes of the tree, so that a split or
// an eviction elsewhere cannot pull the ground from under them.
//
// Rules that hold for every operation:
// - it is answered by exactly one completion, also after failure, cancellation or close;
// - a page that it reads or writes is not freed or reused before that completion, and not before
//   the completion's buffers_busy_until;
// - it carries generations: a completion that names a page of an older generation is dropped.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include <hitide/device.h>
#include <hitide/types.h>

namespace hitide {

using OpId = std::uint64_t;
using RequestId = std::uint64_t;

// A copy between device and host. pages[i] stands at position first_position + i.
struct CopyOp {
  struct Page {
    PageId device;
    PageId host;
  };
  OpId id = 0;
  CopyDirection direction = CopyDirection::to_host;
  SequenceId sequence;  // to_device on sequence-addressed devices
  std::uint32_t first_position = 0;
  std::vector<Page> pages;
};

// Asks storage where a prefix of `keys` may end so that all required pools can be restored. Holds
// no buffers.
struct StorageQueryOp {
  OpId id = 0;
  std::vector<PageKey> keys;
  TimePoint deadline = kNoDeadline;
  std::uint32_t first_page = 0;  // where keys[0] stands in the prompt
};

// Pages of a side pool that travel with the anchor's: those of keys[first] and the keys behind it.
struct SidePages {
  std::uint32_t pool = 0;  // index into ModelSpec::pools; not the anchor, which is 0
  std::uint32_t first = 0;
  std::vector<PageId> host_pages;
};

struct StorageReadOp {
  OpId id = 0;
  std::vector<PageKey> keys;
  std::vector<PageId> host_pages;  // one per key, of the anchor
  TimePoint deadline = kNoDeadline;
  std::vector<SidePages> sides = {};
  bool waited = true;  // by a request; else it gives way to those that are
};

struct StorageWriteOp {
  OpId id = 0;
  std::vector<PageKey> keys;
  std::vector<PageId> host_pages;  // one per key, of the anchor
  std::vector<SidePages> sides = {};
};

// Asks the rank group to agree on how much of a prefix may be used. Rank 0 intersects the sets of
// all ranks and publishes a numbered decision; with one rank the answer is the question.
struct AgreeOp {
  OpId id = 0;
  std::uint64_t decision = 0;             // numbered in the order of asking, equal on all ranks
  std::vector<std::uint8_t> stop_points;  // [pages + 1]: 1 where the prefix may end
};

using PlanOp =
    std::variant<CopyOp, StorageQueryOp, StorageReadOp, StorageWriteOp, AgreeOp, SequenceCommand>;

// In order; the shell must hand CopyOps and SequenceCommands to the device in this order.
struct Plan {
  std::vector<PlanOp> ops;
  bool wake = false;  // some request may have left waiting or loading
};

// The answer to any operation but a SequenceCommand.
struct Completion {
  OpId id = 0;
  // Per page or key. Queries: ok = the prefix may end behind this page, not_found = an object is
  // missing, else why it is not known. Reads: ok = this page of the anchor is there, and of every
  // required all-pages pool that travelled with it. Writes: ok = the page is committed; cancelled =
  // declined: not for the core to offer again by itself. AgreeOp:
  // one per stop point, ok where the group agreed.
  std::vector<StatusCode> pages;
  // [the operation's sides][their pages]: what became of the pages of each by itself. The pages of
  // an optional pool that are not ok are absent from the prefix; the prefix itself is as good.
  std::vector<std::vector<StatusCode>> sides = {};
  std::uint64_t bytes = 0;
  TimePoint buffers_busy_until = TimePoint::min();
};

}  // namespace hitide
