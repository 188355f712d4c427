// FakeDevice: the checked emulated device as tests of what stands above it drive it: commands take
// effect, in order, when the test says step(), or inside submit() where `immediate` is set.
//
//   fill()         what an engine does: it computes a page
//   violations()   what the caller did that the contract forbids, in order
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hitide/emulated_device.h>

namespace hitide {

// Bytes that are a function of `content`: what fill() writes.
std::vector<std::byte> page_content(std::uint64_t content, std::size_t bytes);

class FakeDevice final : public EmulatedDevice {
 public:
  explicit FakeDevice(const DeviceGeometry& geometry, bool immediate = false);

  void fill(PageId page, std::uint64_t content);
  std::vector<std::string> violations() const;
};

}  // namespace hitide
