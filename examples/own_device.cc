// A device of one's own, and the conformance suite of Device over it. This one has no sequences
// (a page id is an address) and copies inside submit(), as one whose copies are too quick to wait
// for may.
#include <algorithm>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <hitide/conformance/device_suite.h>
#include <hitide/device.h>

namespace hitide {
namespace {

class PlainDevice final : public Device {
 public:
  explicit PlainDevice(const DeviceGeometry& geometry)
      : geometry_(geometry), pages_(geometry.page_count) {}

  DeviceGeometry geometry() const override { return geometry_; }
  Status attach(CompletionSink* sink) override {
    const std::lock_guard lock(mutex_);
    if (sink_ != nullptr) return Status(StatusCode::failed_precondition, "attached already");
    sink_ = sink;
    return {};
  }
  void detach() override {
    const std::lock_guard lock(mutex_);  // nothing is ever pending
    sink_ = nullptr;
  }
  void submit(CopyBatch batch) override {
    const std::lock_guard lock(mutex_);
    CopyCompletion completion;
    completion.op_id = batch.op_id;
    for (const PageCopy& copy : batch.pages) {
      completion.pages.push_back(move(batch.direction, copy));
    }
    if (sink_ != nullptr) sink_->post(std::move(completion));
  }
  void submit(SequenceCommand) override {}  // never comes: sequence_count is 0

  // The engine's kernel has computed the page.
  void write(PageId page, std::vector<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    pages_.at(page.index) = {page.generation, std::move(bytes)};
  }

 private:
  struct Page {
    std::uint32_t generation = 0;
    std::vector<std::byte> bytes;  // empty: nothing is there
  };

  StatusCode move(CopyDirection direction, const PageCopy& copy) {
    if (copy.payload.size() != geometry_.page_bytes) return StatusCode::invalid_argument;
    if (copy.page.index >= pages_.size()) return StatusCode::internal;
    Page& page = pages_[copy.page.index];
    if (direction == CopyDirection::to_device) {
      page = {copy.page.generation, {copy.payload.begin(), copy.payload.end()}};
      return StatusCode::ok;
    }
    // A generation that is not there: whoever asks is late, or early.
    if (page.bytes.empty() || page.generation != copy.page.generation) return StatusCode::internal;
    std::ranges::copy(page.bytes, copy.payload.begin());
    return StatusCode::ok;
  }

  const DeviceGeometry geometry_;
  std::mutex mutex_;
  std::vector<Page> pages_;  // guarded by mutex_, as all below
  CompletionSink* sink_ = nullptr;
};

// The engine's part, for the suite.
class PlainRig final : public DeviceRig {
 public:
  Device& device() override { return device_; }
  void compute(SequenceId, std::uint32_t, PageId page, std::uint64_t content) override {
    std::vector<std::byte> bytes(device_.geometry().page_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(content = content * 31 + 7);
    device_.write(page, std::move(bytes));
  }
  void settle() override {}  // everything is done when submit() returns

 private:
  PlainDevice device_{{.page_count = 16, .page_size = 16, .page_bytes = 256}};
};

const DeviceKind kPlain{.name = "plain", .open = [] { return std::make_unique<PlainRig>(); }};

INSTANTIATE_TEST_SUITE_P(Own, DeviceSuite, testing::Values(kPlain));

}  // namespace
}  // namespace hitide
