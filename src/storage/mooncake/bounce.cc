#include "storage/mooncake/bounce.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/memory_file.h"
#include "base/mutex.h"

namespace hitide {

BounceMemory::BounceMemory(UniqueFd fd, std::span<std::byte> bytes)
    : fd_(std::move(fd)), bytes_(bytes) {}

BounceMemory::~BounceMemory() { ::munmap(bytes_.data(), bytes_.size()); }

Result<std::unique_ptr<BounceMemory>> BounceMemory::create(std::uint64_t bytes) {
  HITIDE_ASSIGN_OR_RETURN(UniqueFd fd, create_memory_file("hitide_bounce", bytes));
  HITIDE_ASSIGN_OR_RETURN(const auto mapped, map_memory_file(fd, "bounce memory", bytes));
  return std::unique_ptr<BounceMemory>(new BounceMemory(std::move(fd), mapped));
}

std::uint64_t BounceMemory::find_gap(std::uint64_t bytes) const {
  std::uint64_t at = 0;
  for (const auto& [offset, taken] : taken_) {
    if (offset - at >= bytes) return at;
    at = offset + taken.bytes;
  }
  return bytes_.size() - at >= bytes ? at : bytes_.size();
}

BounceMemory::Piece BounceMemory::take(std::uint64_t bytes, TimePoint deadline) {
  MutexLock lock(mutex_);
  const auto ticket = waiting_.insert(next_ticket_++).first;
  const auto fits = [&]() HITIDE_REQUIRES(mutex_) {
    return ticket == waiting_.begin() && find_gap(bytes) < bytes_.size();
  };
  bool ready = false;
  for (;;) {
    const TimePoint due = free_overdue();
    ready = fits();
    if (ready || SystemClock::instance().now() >= deadline) break;
    const TimePoint end = std::min(deadline, due);
    if (end == kNoDeadline) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, end);
    }
  }
  waiting_.erase(ticket);
  changed_.notify_all();  // another one is first now
  if (!ready) return {};
  const std::uint64_t offset = find_gap(bytes);
  taken_.emplace(offset, Taken{.bytes = bytes, .until = TimePoint::max()});
  return {this, offset, bytes};
}

TimePoint BounceMemory::free_overdue() {
  const TimePoint now = SystemClock::instance().now();
  std::erase_if(taken_, [now](const auto& entry) { return entry.second.until <= now; });
  TimePoint due = kNoDeadline;
  for (const auto& [offset, taken] : taken_) due = std::min(due, taken.until);
  return due;
}

void BounceMemory::give_back(std::uint64_t offset, TimePoint busy_until) {
  {
    const MutexLock lock(mutex_);
    taken_.at(offset).until = busy_until;
    free_overdue();
  }
  changed_.notify_all();
}

}  // namespace hitide
