// What the core remembers of requests and operations. Plain data; only CacheCore changes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <hitide/explanation.h>
#include <hitide/request.h>
#include <hitide/types.h>

#include "prefix/radix_tree.h"
#include "spec/plan.h"

namespace hitide {

// A prompt and what names it. Shared, never changed: an operation keeps its own hold of it, so that
// it can be completed after its request has gone.
struct Prompt {
  std::vector<TokenId> tokens;  // [n]
  std::string space;            // Namespace::encode()
  std::vector<PageKey> keys;    // [n / page_size]
  std::optional<PageKey> seed;  // where the chain starts; none without a namespace
  std::uint32_t page_size = 0;

  std::uint32_t token_count() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t page_count() const { return token_count() / page_size; }
  // Pages that may be served: the last token is always computed.
  std::uint32_t usable_pages() const { return (token_count() - 1) / page_size; }
};

// Why pages [begin, end) of a prompt were not served by storage.
struct PageReason {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  MissReason reason = MissReason::unknown;
};

struct Request {
  RequestId id = 0;
  PrefixState state = PrefixState::ready;
  std::shared_ptr<const Prompt> prompt;
  std::int32_t priority = 0;
  TimePoint opened{};
  TimePoint admitted{};

  // Waiting.
  std::uint64_t prefetch = 0;  // 0: none
  TimePoint deadline = kNoDeadline;
  std::vector<PageReason> reasons;  // pages that storage did not bring
  std::uint32_t fetched_begin = 0;  // pages [begin, end) that its own prefetch brought
  std::uint32_t fetched_end = 0;
  std::uint32_t hit_pages = 0;       // expected before running, in place while running
  TimePoint retry_at = kNoDeadline;  // ready: storage is asked again
  std::uint32_t retries = 0;

  // Pins, held from open to the end. Nodes of the tree; kNoNode: none.
  NodeIndex device_pin = kNoNode;
  NodeIndex host_pin = kNoNode;

  // Loading and running.
  SequenceId sequence;
  std::vector<PageId> pages;           // device pages by position
  std::uint32_t shared_pages = 0;      // the first ones belong to the tree, the rest to us
  std::uint32_t device_hit_pages = 0;  // found on the device at admission
  OpId load_op = 0;

  Explanation explanation;
};

// One span of one prompt on its way from storage to host memory. Lives until its last operation
// is answered, whether or not a request still waits for it.
struct Prefetch {
  std::uint64_t id = 0;
  std::shared_ptr<const Prompt> prompt;
  RequestId waiter = 0;  // 0: nobody waits any more
  std::uint32_t first_page = 0;
  std::uint32_t span_pages = 0;    // asked for; counted as occupied
  NodeIndex anchor = kNoNode;      // pinned on the host tier; ends at or above first_page
  std::uint32_t anchor_pages = 0;  // from position 0 to its end
  bool held = false;               // pages wait for those above them to come down from the device
  bool reading = false;
  bool goes_on_alone = false;  // is not given up when nobody waits for it any more
  std::vector<PageId> pages;   // host pages of [first_page, first_page + n)
  enum class PageState : std::uint8_t { reading, read, failed, settled };
  std::vector<PageState> states;    // one per page
  std::uint32_t settled = 0;        // leading pages that were published or given back
  std::uint32_t published = 0;      // leading pages that are in the tree
  std::uint32_t operations = 0;     // not answered yet
  std::uint64_t storage_epoch = 0;  // of its start
  bool broken = false;              // a page failed: nothing behind it is of use
  bool again = false;               // asks once more, or as a probe; nobody waits for it
  bool worth_asking_again = false;  // something that may change stood in the way
  TimePoint started{};
  std::uint32_t read_pages = 0;   // that have come
  std::uint32_t served_from = 0;  // first page that this prefetch or one before it brought
};

enum class OpKind : std::uint8_t { backup, load, query, agree, read, write };

struct Operation {
  OpId id = 0;
  OpKind kind = OpKind::backup;
  RequestId request = 0;             // load
  std::uint64_t prefetch = 0;        // query, agree, read
  std::uint32_t first = 0;           // read: index of the first page within the prefetch
  std::vector<PageId> device_pages;  // backup, load
  std::vector<PageId> host_pages;    // backup, load, read, write
  // Held until the answer: on the device for a backup, on the host for a load and a write. A pinned
  // node stays, and a split keeps the index of its lower end.
  NodeIndex pin = kNoNode;
  std::uint64_t storage_epoch = 0;  // write: of its start
  std::uint32_t attempt = 0;        // write: times that it was tried before
  TimePoint started{};              // load
  // backup, write: the last pages of the operation that leave the tier above with its answer.
  std::uint32_t leaving = 0;
  bool drains = false;               // backup, write: counted in drain_operations_
  std::optional<Completion> answer;  // backup: came before that of the pages above
};

// Pages of one path that storage has not taken and is offered once more. They are not pinned: what
// has left the host by then is left out.
struct WriteRetry {
  TimePoint due{};
  std::uint32_t attempt = 0;
  std::uint64_t storage_epoch = 0;
  std::vector<PageId> pages;  // of the host; one of each node
};

// What a drain is for.
enum class Drain : std::uint8_t { none, keep, forget };

}  // namespace hitide
