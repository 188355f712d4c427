// Runs the conformance suite over the emulated device, in each way it can be driven.
#include <thread>

#include <hitide/emulated_device.h>

#include "tests/conformance/device_suite.h"  // tidy: allow-include the suite is shared
#include "tests/support/fake_device.h"

namespace hitide {
namespace {

using Drive = EmulatedDeviceOptions::Drive;

class EmulatedRig final : public DeviceRig {
 public:
  explicit EmulatedRig(const EmulatedDeviceOptions& options)
      : drive_(options.drive), device_(EmulatedDevice::create(options).value()) {}

  Device& device() override { return *device_; }
  void compute(SequenceId, std::uint32_t, PageId page, std::uint64_t content) override {
    device_->write(page, page_content(content, device_->geometry().page_bytes));
  }
  void settle() override {
    if (drive_ == Drive::manual) device_->run();
    while (device_->queued() > 0) std::this_thread::yield();
  }

 private:
  const Drive drive_;
  std::unique_ptr<EmulatedDevice> device_;
};

DeviceKind kind(std::string name, Drive drive, std::uint32_t sequence_count) {
  const EmulatedDeviceOptions options{.geometry = {.page_count = 16,
                                                   .page_size = 4,
                                                   .page_bytes = 96,
                                                   .sequence_count = sequence_count},
                                      .drive = drive,
                                      .latency = std::chrono::microseconds(20),
                                      .jitter = std::chrono::microseconds(100),
                                      .seed = 11};
  return {std::move(name), [options] { return std::make_unique<EmulatedRig>(options); }};
}

const auto kPaged = testing::Values(kind("PagedManual", Drive::manual, 0),
                                    kind("PagedImmediate", Drive::immediate, 0),
                                    kind("PagedThread", Drive::thread, 0));
const auto kSequences = testing::Values(kind("SequencesManual", Drive::manual, 4),
                                        kind("SequencesImmediate", Drive::immediate, 4),
                                        kind("SequencesThread", Drive::thread, 4));

std::string name_of(const testing::TestParamInfo<DeviceKind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Paged, DeviceSuite, kPaged, name_of);
INSTANTIATE_TEST_SUITE_P(Sequences, DeviceSuite, kSequences, name_of);
INSTANTIATE_TEST_SUITE_P(Sequences, SequenceDeviceSuite, kSequences, name_of);

}  // namespace
}  // namespace hitide
