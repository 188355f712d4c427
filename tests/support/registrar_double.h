// RegistrarDouble: a store's client that takes registrations strictly and fails on command; by
// itself, or standing before a real one.
//
// Like a real client it refuses null and empty regions, and any that overlap what is registered,
// the same region included. Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transfer/registrar.h"

namespace hitide {

class RegistrarDouble final : public Registrar {
 public:
  enum class Answer : std::uint8_t {
    refuse,       // the region answers `status`, the call goes on behind it
    throw_error,  // the call throws; what came before stays registered
    nothing,      // an empty list of answers; all regions before it stay registered
    too_many,     // all registered, one answer too many
  };
  // What is not refused on command is passed on to `real`, which must outlive this object.
  explicit RegistrarDouble(Registrar* real = nullptr) : real_(real) {}

  // Once: when the region of this number (of all that were ever passed, from 0) comes.
  void fail_at(std::size_t region, Answer answer,
               Status status = Status(StatusCode::internal, "register_buffer answered -1"));
  // From now on every region is refused; nothing: as before.
  void refuse_all(Status status) { refuse_all_ = std::move(status); }

  std::vector<Status> register_regions(std::span<const MemoryRegion> regions) override;
  Status unregister_region(std::span<std::byte> bytes) override;

  std::size_t calls() const { return calls_; }
  // What is registered now, in the order of registration.
  const std::vector<std::span<std::byte>>& registered() const { return registered_; }
  // What was unregistered, in that order.
  const std::vector<std::span<std::byte>>& unregistered() const { return unregistered_; }

 private:
  struct Fault {
    std::size_t region = 0;
    Answer answer = Answer::refuse;
    Status status = {};
  };
  Status take(const MemoryRegion& region);

  Registrar* const real_;
  std::vector<Fault> faults_;
  Status refuse_all_;
  std::size_t calls_ = 0;
  std::size_t regions_ = 0;
  std::vector<std::span<std::byte>> registered_;
  std::vector<std::span<std::byte>> unregistered_;
};

}  // namespace hitide
