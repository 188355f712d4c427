#include "tests/support/registrar_double.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace hitide {

void RegistrarDouble::fail_at(std::size_t region, Answer answer, Status status) {
  faults_.push_back({.region = region, .answer = answer, .status = std::move(status)});
}

Status RegistrarDouble::take(const MemoryRegion& region) {
  const std::span<std::byte> bytes = region.bytes;
  if (bytes.data() == nullptr || bytes.empty()) {
    return Status(StatusCode::invalid_argument, "register_buffer answered -600: no buffer");
  }
  for (const std::span<std::byte> other : registered_) {
    if (bytes.data() < other.data() + other.size() && other.data() < bytes.data() + bytes.size()) {
      return Status(StatusCode::invalid_argument, "register_buffer answered -600: overlap");
    }
  }
  if (real_ != nullptr) HITIDE_RETURN_IF_ERROR(real_->register_regions({&region, 1}).front());
  registered_.push_back(bytes);
  return ok_status();
}

std::vector<Status> RegistrarDouble::register_regions(std::span<const MemoryRegion> regions) {
  ++calls_;
  std::vector<Status> answers;
  bool one_more = false;
  for (const MemoryRegion& region : regions) {
    const std::size_t number = regions_++;
    const auto fault = std::find_if(faults_.begin(), faults_.end(),
                                    [&](const Fault& other) { return other.region == number; });
    if (fault != faults_.end() && fault->answer == Answer::throw_error) {
      throw std::runtime_error("the client's own words");
    }
    if (fault != faults_.end() && fault->answer == Answer::nothing) return {};
    if (fault != faults_.end() && fault->answer == Answer::too_many) one_more = true;
    if (fault != faults_.end() && fault->answer == Answer::refuse) {
      answers.push_back(fault->status);
    } else {
      answers.push_back(refuse_all_.ok() ? take(region) : refuse_all_);
    }
  }
  if (one_more) answers.emplace_back();
  return answers;
}

Status RegistrarDouble::unregister_region(std::span<std::byte> bytes) {
  const auto known = std::find_if(registered_.begin(), registered_.end(), [&](auto other) {
    return other.data() == bytes.data() && other.size() == bytes.size();
  });
  if (known == registered_.end()) {
    return Status(StatusCode::not_found, "unregister_buffer answered -600");
  }
  unregistered_.push_back(*known);
  registered_.erase(known);
  return real_ != nullptr ? real_->unregister_region(bytes) : ok_status();
}

}  // namespace hitide
