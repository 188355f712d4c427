#include "pool/page_allocator.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace hitide {
namespace {

constexpr std::uint16_t kOperationsMax = std::numeric_limits<std::uint16_t>::max();

std::string describe(PageId page) {
  return "page " + std::to_string(page.index) + " generation " + std::to_string(page.generation);
}

Status broken(std::string what) { return Status(StatusCode::internal, std::move(what)); }

}  // namespace

const char* to_string(PageOwner owner) {
  switch (owner) {
    case PageOwner::free:
      return "free";
    case PageOwner::request:
      return "request";
    case PageOwner::node:
      return "node";
    case PageOwner::operation:
      return "operation";
    case PageOwner::quarantined:
      return "quarantined";
  }
  return "unknown";
}

PageAllocator::PageAllocator(std::uint32_t capacity)
    : pages_(capacity), busy_until_(capacity, TimePoint::min()), free_(capacity) {
  waiting_.reserve(capacity);
  for (std::uint32_t i = 0; i < capacity; ++i) free_[i] = capacity - 1 - i;
  counter(PageOwner::free) = capacity;
}

Status PageAllocator::allocate(std::uint32_t count, PageOwner owner, std::vector<PageId>& out) {
  if (!is_owned(owner)) {
    return Status(StatusCode::internal,
                  std::string("pages cannot be allocated for owner ") + to_string(owner));
  }
  if (count > free_count()) {
    return Status(StatusCode::resource_exhausted,
                  std::to_string(count) + " pages asked for, " + std::to_string(free_count()) +
                      " of " + std::to_string(capacity()) + " are free: evict or ask for less");
  }
  const std::size_t first = out.size();
  out.resize(first + count);
  // A free page has no operation and waits for nothing: one store hands it out.
  const std::uint64_t taken = word_of({.owner = owner});
  Page* const all = pages_.data();
  const std::uint32_t* const top = free_.data() + free_count();
  PageId* const handed_out = out.data() + first;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t index = *(top - 1 - i);
    const std::uint32_t generation = all[index].generation + 1;
    all[index] = std::bit_cast<Page>(taken | word_of({.generation = generation}));
    handed_out[i] = PageId{index, generation};
  }
  counter(PageOwner::free) -= count;
  counter(owner) += count;
  hand_outs_ += count;
  if (observer_ != nullptr) {
    for (std::uint32_t i = 0; i < count; ++i) observer_->on_allocated(out[first + i]);
  }
  return ok_status();
}

Status PageAllocator::free(PageId id, PageOwner owner) {
  if (!matches(id) || !is_owned(owner) || pages_[id.index].owner != owner) [[unlikely]] {
    return refuse("free", id, to_string(owner));
  }
  Page& page = pages_[id.index];
  if (page.operations == 0 && (!page.busy || busy_until_[id.index] <= now_)) [[likely]] {
    push_free(id.index);
    return ok_status();
  }
  move_to(page, PageOwner::quarantined);
  settle(id.index);
  return ok_status();
}

Status PageAllocator::free(std::span<const PageId> pages, PageOwner owner) {
  for (std::size_t done = 0; done < pages.size(); ++done) {
    if (is_owned(owner) && observer_ == nullptr) done += free_idle(pages.subspan(done), owner);
    if (done < pages.size()) HITIDE_RETURN_IF_ERROR(free(pages[done], owner));
  }
  return ok_status();
}

// The usual case, without a Status for each page: frees the leading pages that `owner` owns and
// nobody touches, and returns how many.
std::size_t PageAllocator::free_idle(std::span<const PageId> pages, PageOwner owner) {
  const std::uint64_t taken = word_of({.owner = owner});
  const std::size_t capacity = pages_.size();
  Page* const all = pages_.data();
  std::uint32_t* const top = free_.data() + free_count();
  std::uint32_t count = 0;
  for (const PageId id : pages) {
    if (id.index >= capacity) break;
    // Owned by `owner`, under this generation, no operation, waits for nothing.
    if (word_of(all[id.index]) != (taken | word_of({.generation = id.generation}))) break;
    all[id.index].owner = PageOwner::free;
    top[count++] = id.index;
  }
  counter(owner) -= count;
  counter(PageOwner::free) += count;
  return count;
}

Status PageAllocator::set_owner(PageId id, PageOwner from, PageOwner to) {
  if (!matches(id) || !is_owned(from) || pages_[id.index].owner != from) {
    return refuse("set_owner", id, to_string(from));
  }
  if (!is_owned(to)) return refuse("set_owner", id, "request, node or operation as the new owner");
  move_to(pages_[id.index], to);
  return ok_status();
}

Status PageAllocator::begin_operation(PageId id) {
  if (!is_current(id)) return refuse("begin_operation", id, "an owner");
  Page& page = pages_[id.index];
  if (page.operations == kOperationsMax) {
    return refuse("begin_operation", id, "fewer than 65535 operations on the page");
  }
  if (page.operations++ == 0) ++in_flight_;
  return ok_status();
}

Status PageAllocator::end_operation(PageId id, TimePoint busy_until) {
  if (!matches(id) || pages_[id.index].operations == 0) {
    return refuse("end_operation", id, "an operation in flight");
  }
  Page& page = pages_[id.index];
  if (busy_until > now_ && (!page.busy || busy_until > busy_until_[id.index])) {
    page.busy = true;
    busy_until_[id.index] = busy_until;
  }
  if (--page.operations > 0) return ok_status();
  --in_flight_;
  if (page.owner == PageOwner::quarantined) settle(id.index);
  return ok_status();
}

std::uint32_t PageAllocator::release_quarantine(TimePoint now) {
  now_ = std::max(now_, now);
  std::uint32_t released = 0;
  const auto later = [this](std::uint32_t a, std::uint32_t b) { return due_later(a, b); };
  while (!waiting_.empty() && busy_until_[waiting_.front()] <= now_) {
    std::pop_heap(waiting_.begin(), waiting_.end(), later);
    const std::uint32_t index = waiting_.back();
    waiting_.pop_back();
    push_free(index);
    ++released;
  }
  return released;
}

PageOwner PageAllocator::owner(PageId id) const {
  return matches(id) ? pages_[id.index].owner : PageOwner::free;
}

std::uint32_t PageAllocator::operations(PageId id) const {
  return matches(id) ? pages_[id.index].operations : 0;
}

Status PageAllocator::set_observer(PageObserver* observer) {
  if (free_count() != capacity()) {
    return Status(StatusCode::failed_precondition,
                  "an observer can only be set while all pages are free; " +
                      std::to_string(capacity() - free_count()) + " are not");
  }
  observer_ = observer;
  return ok_status();
}

void PageAllocator::move_to(Page& page, PageOwner owner) {
  --counter(page.owner);
  ++counter(owner);
  page.owner = owner;
}

void PageAllocator::push_free(std::uint32_t index) {
  Page& page = pages_[index];
  free_[free_count()] = index;
  move_to(page, PageOwner::free);
  page.busy = false;
  if (observer_ != nullptr) observer_->on_freed(PageId{index, page.generation});
}

// A quarantined page goes to the free list, waits for its time, or waits for its operations.
void PageAllocator::settle(std::uint32_t index) {
  const Page& page = pages_[index];
  if (page.operations > 0) return;
  if (!page.busy || busy_until_[index] <= now_) {
    push_free(index);
    return;
  }
  waiting_.push_back(index);
  std::push_heap(waiting_.begin(), waiting_.end(),
                 [this](std::uint32_t a, std::uint32_t b) { return due_later(a, b); });
}

Status PageAllocator::refuse(const char* call, PageId id, const char* expected) const {
  std::string found = "no such page";
  if (id.index < pages_.size()) {
    const Page& page = pages_[id.index];
    found = std::string("generation ") + std::to_string(page.generation) + ", owner " +
            to_string(page.owner) + ", operations " + std::to_string(page.operations);
  }
  return broken(std::string(call) + "(" + describe(id) + "): expected " + expected + ", found " +
                found);
}

// Invariants 2 and 3, seen from the lists; listed[i] becomes the number of places of page i.
Status PageAllocator::check_lists(std::vector<std::uint8_t>& listed) const {
  for (const std::uint32_t index : std::span(free_).first(std::min(free_count(), capacity()))) {
    if (index >= pages_.size() || listed[index]++ != 0) {
      return broken("free list: page " + std::to_string(index) + " twice or out of range");
    }
    const Page& page = pages_[index];
    if (page.owner != PageOwner::free || page.operations != 0 || page.busy) {
      return broken("free list: page " + std::to_string(index) + " is " + to_string(page.owner) +
                    " with " + std::to_string(page.operations) + " operations");
    }
  }
  for (const std::uint32_t index : waiting_) {
    if (index >= pages_.size() || listed[index]++ != 0) {
      return broken("quarantine: page " + std::to_string(index) + " twice or out of range");
    }
    const Page& page = pages_[index];
    if (page.owner != PageOwner::quarantined || page.operations != 0 || !page.busy) {
      return broken("quarantine: page " + std::to_string(index) + " is " + to_string(page.owner) +
                    " with " + std::to_string(page.operations) + " operations");
    }
  }
  if (!std::is_heap(waiting_.begin(), waiting_.end(),
                    [this](std::uint32_t a, std::uint32_t b) { return due_later(a, b); })) {
    return broken("quarantine: pages are not in the order of their times");
  }
  return ok_status();
}

Status PageAllocator::check() const {
  std::vector<std::uint8_t> listed(pages_.size(), 0);
  HITIDE_RETURN_IF_ERROR(check_lists(listed));
  std::array<std::uint32_t, kPageOwnerCount> counts{};
  std::uint32_t in_flight = 0;
  std::uint32_t generations = 0;
  for (std::size_t index = 0; index < pages_.size(); ++index) {
    const Page& page = pages_[index];
    ++counts[static_cast<std::size_t>(page.owner)];
    in_flight += page.operations > 0 ? 1 : 0;
    generations += page.generation;
    const bool wants_place = page.owner == PageOwner::free ||
                             (page.owner == PageOwner::quarantined && page.operations == 0);
    if (wants_place != (listed[index] != 0)) {
      return broken("page " + std::to_string(index) + " is " + to_string(page.owner) +
                    (wants_place ? " and in no list" : " and in a list"));
    }
  }
  for (int owner = 0; owner < kPageOwnerCount; ++owner) {
    if (counts[owner] != counts_[owner]) {
      return broken(std::string("count of ") + to_string(static_cast<PageOwner>(owner)) + " is " +
                    std::to_string(counts_[owner]) + ", counted " + std::to_string(counts[owner]));
    }
  }
  if (in_flight != in_flight_) {
    return broken("in flight is " + std::to_string(in_flight_) + ", counted " +
                  std::to_string(in_flight));
  }
  if (generations != static_cast<std::uint32_t>(hand_outs_)) {
    return broken("generations sum to " + std::to_string(generations) + ", handed out " +
                  std::to_string(hand_outs_));
  }
  return ok_status();
}

}  // namespace hitide
