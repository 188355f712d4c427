// BounceMemory: shared memory of bounded size through which pass the bytes of buffers that the
// agent cannot map.
//
// Threading: any thread. Waiters are served in the order in which they came, so that a large piece
// is not passed over for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <hitide/result.h>
#include <hitide/types.h>

#include "base/file.h"
#include "base/mutex.h"

namespace hitide {

class BounceMemory {
 public:
  // A contiguous piece, given back when this goes away.
  class Piece {
   public:
    Piece() = default;
    Piece(Piece&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)),
          offset_(other.offset_),
          bytes_(other.bytes_) {}
    Piece& operator=(Piece&& other) noexcept {
      std::swap(memory_, other.memory_);
      std::swap(offset_, other.offset_);
      std::swap(bytes_, other.bytes_);
      std::swap(busy_until_, other.busy_until_);
      return *this;
    }
    ~Piece() {
      if (memory_ != nullptr) memory_->give_back(offset_, busy_until_);
    }
    explicit operator bool() const { return memory_ != nullptr; }
    // Somebody may write to it until then: it is not handed out before.
    void keep_until(TimePoint time) { busy_until_ = time; }
    std::uint64_t offset() const { return offset_; }
    std::span<std::byte> bytes() const { return memory_->bytes_.subspan(offset_, bytes_); }

   private:
    friend class BounceMemory;
    Piece(BounceMemory* memory, std::uint64_t offset, std::uint64_t bytes)
        : memory_(memory), offset_(offset), bytes_(bytes) {}
    BounceMemory* memory_ = nullptr;
    std::uint64_t offset_ = 0;
    std::uint64_t bytes_ = 0;
    TimePoint busy_until_ = TimePoint::min();
  };

  // bytes: a multiple of 4096. resource_exhausted: the system has no such memory.
  static Result<std::unique_ptr<BounceMemory>> create(std::uint64_t bytes);
  ~BounceMemory();
  BounceMemory(const BounceMemory&) = delete;
  BounceMemory& operator=(const BounceMemory&) = delete;

  int fd() const { return fd_.get(); }
  std::span<std::byte> bytes() const { return bytes_; }

  // Requires 0 < bytes <= bytes().size(). Nothing: the deadline was up first.
  Piece take(std::uint64_t bytes, TimePoint deadline);

 private:
  BounceMemory(UniqueFd fd, std::span<std::byte> bytes);
  // The start of a gap of so many bytes, or bytes_.size().
  std::uint64_t find_gap(std::uint64_t bytes) const HITIDE_REQUIRES(mutex_);
  void give_back(std::uint64_t offset, TimePoint busy_until);
  // Frees what was kept until now or earlier; answers when the next is due.
  TimePoint free_overdue() HITIDE_REQUIRES(mutex_);

  const UniqueFd fd_;
  const std::span<std::byte> bytes_;

  Mutex mutex_;
  CondVar changed_;
  struct Taken {
    std::uint64_t bytes;
    TimePoint until;  // max(): until it is given back
  };
  std::map<std::uint64_t, Taken> taken_ HITIDE_GUARDED_BY(mutex_);  // by offset
  std::set<std::uint64_t> waiting_ HITIDE_GUARDED_BY(mutex_);       // tickets, oldest first
  std::uint64_t next_ticket_ HITIDE_GUARDED_BY(mutex_) = 0;
};

}  // namespace hitide
