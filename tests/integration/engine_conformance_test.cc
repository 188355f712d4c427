// Runs the conformance suite of Device over llama.cpp's: pages are computed by the real model.
#include <chrono>

#include "engine/llama/llama_device.h"
#include "tests/conformance/device_suite.h"
#include "tests/integration/engine_support.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kPageSize = 16;

class LlamaRig final : public DeviceRig {
 public:
  explicit LlamaRig(KvType type) {
    LlamaDeviceOptions options;
    options.geometry = {
        .page_count = 16, .page_size = kPageSize, .page_bytes = 1, .sequence_count = 8};
    options.cells = 16 * kPageSize + 32;
    options.batch = 256;
    options.physical_count = 12;
    // The size of a page is known once there is one: make one, measure it, and begin again.
    open(type, options);
    const SequenceId sequence{0};
    device_->submit({Kind::extend, sequence, 0, {{0, 1}}});
    settle();
    compute(sequence, 0, {0, 1}, 1);
    options.geometry.page_bytes = device_->measure_page_bytes(sequence).value();
    open(type, options);
  }

  Device& device() override { return *device_; }
  void compute(SequenceId sequence, std::uint32_t position, PageId,
               std::uint64_t content) override {
    EXPECT_EQ(device_->filled(sequence), position * kPageSize);
    const std::vector<TokenId> tokens =
        test::some_tokens(kPageSize, static_cast<std::uint32_t>(content));
    std::vector<ComputeRun> runs{{.sequence = sequence, .tokens = tokens}};
    EXPECT_TRUE(device_->compute(runs).ok());
  }
  void settle() override {
    while (device_->run_commands(1s)) {
    }
    EXPECT_EQ(device_->check().to_string(), "ok");
  }

 private:
  using Kind = SequenceCommand::Kind;
  void open(KvType type, const LlamaDeviceOptions& options) {
    const ContextPlan plan{.cells = options.cells,
                           .batch = options.batch,
                           .micro_batch = 32,
                           .sequences = options.physical_count,
                           .threads = 1,
                           .kv_type = type};
    device_.reset();
    device_ =
        LlamaDevice::create(make_llama_context(test::shared_model(), plan).value(), options, {})
            .value();
  }
  std::unique_ptr<LlamaDevice> device_;
};

DeviceKind kind(std::string name, KvType type) {
  return {std::move(name), [type] { return std::make_unique<LlamaRig>(type); }};
}

const auto kKinds = testing::Values(kind("Q8", KvType::q8_0), kind("F16", KvType::f16));

std::string name_of(const testing::TestParamInfo<DeviceKind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Llama, DeviceSuite, kKinds, name_of);
INSTANTIATE_TEST_SUITE_P(Llama, SequenceDeviceSuite, kKinds, name_of);

}  // namespace
}  // namespace hitide
