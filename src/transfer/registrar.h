// Registrar: who carries registrations out. It may refuse, throw, or answer for too few regions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <hitide/object_store.h>
#include <hitide/status.h>

namespace hitide {

class Registrar {
 public:
  virtual ~Registrar() = default;
  // In order; one status per region. data_loss or resource_exhausted for memory that was to be
  // adopted: the self-test failed, or there was no room. The message holds the client's code.
  virtual std::vector<Status> register_regions(std::span<const MemoryRegion> regions) = 0;
  // A region that is not registered is an error and changes nothing.
  virtual Status unregister_region(std::span<std::byte> bytes) = 0;
};

// Over a store. `store` must outlive it.
class StoreRegistrar final : public Registrar {
 public:
  explicit StoreRegistrar(ObjectStore& store) : store_(store) {}

  // Stops at the first failure; the regions behind it answer cancelled.
  std::vector<Status> register_regions(std::span<const MemoryRegion> regions) override {
    std::vector<Status> answers;
    bool going_on = true;
    for (const MemoryRegion& region : regions) {
      answers.push_back(going_on ? store_.register_memory(region)
                                 : Status(StatusCode::cancelled, "an earlier region failed"));
      going_on = going_on && answers.back().ok();
    }
    return answers;
  }
  Status unregister_region(std::span<std::byte> bytes) override {
    return store_.unregister_memory(bytes);
  }

 private:
  ObjectStore& store_;
};

}  // namespace hitide
