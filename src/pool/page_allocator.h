// PageAllocator: who owns each page of one pool. Metadata only: no bytes, no thread, no clock.
//
//            allocate                     set_owner
//    free --------------> request | node | operation  (owned, one of the three)
//      ^                       |
//      | free, nothing busy    | free, while an operation or a remote side still touches the page
//      |                       v
//      +---------------- quarantined
//        end_operation / release_quarantine, once nothing touches it any more
//
// Invariants, proven by check():
// 1. free + request + node + operation + quarantined = capacity; each index is in one state.
// 2. The free list holds exactly the free pages, each once.
// 3. A free page has no operation and no busy time; a quarantined one has an operation, or stands
//    in the queue of those that wait for their time.
// 4. A page's generation is the number of times it was handed out (modulo 2^32); an id of an older
//    generation is never accepted.
//
// Every misuse (double free, stale id, wrong owner, unmatched end_operation) answers internal and
// changes nothing.
//
// Threading: one thread at a time. Cost: O(1) per page; O(log n) for a page that waits for a time;
// check() is O(n). Nothing is allocated after construction but what grows in the caller's `out`.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include <hitide/status.h>
#include <hitide/types.h>

namespace hitide {

enum class PageOwner : std::uint8_t {
  free,         // in the free list
  request,      // a running request; not findable by others
  node,         // the prefix tree
  operation,    // the target of an operation that nobody else knows yet
  quarantined,  // given back, but an operation or a remote side may still touch it
};
inline constexpr int kPageOwnerCount = 5;
const char* to_string(PageOwner owner);

// Told when a page's bytes become somebody's and when they become nobody's: poisons memory in debug
// builds. Called on the allocator's thread, inside the call that changes the state.
class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void on_allocated(PageId page) = 0;
  virtual void on_freed(PageId page) = 0;
};

class PageAllocator {
 public:
  explicit PageAllocator(std::uint32_t capacity);

  // Appends `count` pages to `out`, or none. `owner` is request, node or operation.
  // resource_exhausted: fewer than `count` are free; ask free_count() first where that is expected.
  Status allocate(std::uint32_t count, PageOwner owner, std::vector<PageId>& out);

  // Gives back a page that `owner` owns. The id is not current afterwards.
  Status free(PageId page, PageOwner owner);
  // In order, up to the first failure, which is returned; the pages before it stay freed.
  Status free(std::span<const PageId> pages, PageOwner owner);

  // Hands an owned page from one owner to another (request, node, operation).
  Status set_owner(PageId page, PageOwner from, PageOwner to);

  // An operation starts to read or write the page; it is not handed out again before the matching
  // end_operation. Only for owned pages; at most 65,535 at once.
  Status begin_operation(PageId page);
  // The operation has been answered; nobody may reuse the page before `busy_until`. Also for pages
  // that were given back in the meantime.
  Status end_operation(PageId page, TimePoint busy_until);

  // Moves quarantined pages whose time has come to the free list and returns how many. Also tells
  // the allocator the time: `now` never goes back. One comparison when none is due.
  std::uint32_t release_quarantine(TimePoint now);

  // True while the page is owned (not free, not quarantined) under exactly this generation.
  bool is_current(PageId page) const {
    return page.index < pages_.size() && pages_[page.index].generation == page.generation &&
           is_owned(pages_[page.index].owner);
  }
  // The state of the page; free for an id of another generation.
  PageOwner owner(PageId page) const;
  // Operations that touch the page now; 0 for an id of another generation.
  std::uint32_t operations(PageId page) const;

  std::uint32_t capacity() const { return static_cast<std::uint32_t>(pages_.size()); }
  std::uint32_t count(PageOwner owner) const { return counts_[static_cast<std::size_t>(owner)]; }
  std::uint32_t free_count() const { return count(PageOwner::free); }
  // Pages that some operation touches, whoever owns them.
  std::uint32_t in_flight_count() const { return in_flight_; }

  // May be null. Only while every page is free. It must outlive its last notice.
  Status set_observer(PageObserver* observer);

  // internal with the first invariant that does not hold.
  Status check() const;

 private:
  struct Page {
    std::uint32_t generation = 0;
    std::uint16_t operations = 0;
    PageOwner owner = PageOwner::free;
    bool busy = false;  // busy_until_ of the page counts
  };
  // All of a page's fields as one number; those that are zero leave no bit in it.
  static std::uint64_t word_of(const Page& page) {
    static_assert(sizeof(Page) == sizeof(std::uint64_t) && PageOwner{} == PageOwner::free);
    return std::bit_cast<std::uint64_t>(page);
  }

  static bool is_owned(PageOwner owner) {
    return owner != PageOwner::free && owner != PageOwner::quarantined;
  }
  bool matches(PageId page) const {
    return page.index < pages_.size() && pages_[page.index].generation == page.generation;
  }
  std::uint32_t& counter(PageOwner owner) { return counts_[static_cast<std::size_t>(owner)]; }
  void move_to(Page& page, PageOwner owner);
  std::size_t free_idle(std::span<const PageId> pages, PageOwner owner);
  void push_free(std::uint32_t index);
  void settle(std::uint32_t index);
  bool due_later(std::uint32_t a, std::uint32_t b) const { return busy_until_[a] > busy_until_[b]; }
  Status refuse(const char* call, PageId page, const char* expected) const;
  Status check_lists(std::vector<std::uint8_t>& listed) const;

  std::vector<Page> pages_;
  std::vector<TimePoint> busy_until_;   // [capacity]; latest time anybody named for the page
  std::vector<std::uint32_t> free_;     // [capacity]; a stack of the first free_count(), the
                                        // last of them is handed out next
  std::vector<std::uint32_t> waiting_;  // min-heap by busy_until_: quarantined, no operation
  std::array<std::uint32_t, kPageOwnerCount> counts_{};
  std::uint32_t in_flight_ = 0;
  std::uint64_t hand_outs_ = 0;       // sum of all generations
  TimePoint now_ = TimePoint::min();  // the latest that release_quarantine() was told
  PageObserver* observer_ = nullptr;
};

}  // namespace hitide
