#include "tests/support/fake_device.h"

namespace hitide {

std::vector<std::byte> page_content(std::uint64_t content, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::uint64_t state = content + 0x9e3779b97f4a7c15ull;
  for (std::byte& byte : out) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(state >> 56);
  }
  return out;
}

FakeDevice::FakeDevice(const DeviceGeometry& geometry, bool immediate)
    : EmulatedDevice({.geometry = geometry,
                      .drive = immediate ? EmulatedDeviceOptions::Drive::immediate
                                         : EmulatedDeviceOptions::Drive::manual}) {}

void FakeDevice::fill(PageId page, std::uint64_t content) {
  write(page, page_content(content, geometry().page_bytes));
}

std::vector<std::string> FakeDevice::violations() const {
  std::vector<std::string> texts;
  for (const DeviceFault& fault : faults()) texts.push_back(fault.text);
  return texts;
}

}  // namespace hitide
