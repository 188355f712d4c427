#include <hitide/emulated_device.h>

#include <utility>

#include <fmt/format.h>

#include "device/emulated_impl.h"

namespace hitide {

std::string_view to_string(DeviceFaultKind kind) {
  switch (kind) {
    case DeviceFaultKind::contract:
      return "contract";
    case DeviceFaultKind::not_filled:
      return "not_filled";
    case DeviceFaultKind::unordered_read:
      return "unordered_read";
    case DeviceFaultKind::unordered_write:
      return "unordered_write";
    case DeviceFaultKind::released:
      return "released";
    case DeviceFaultKind::reallocated:
      return "reallocated";
    case DeviceFaultKind::host_bytes:
      return "host_bytes";
  }
  return "?";
}

Result<std::unique_ptr<EmulatedDevice>> EmulatedDevice::create(
    const EmulatedDeviceOptions& options) {
  const DeviceGeometry& geometry = options.geometry;
  if (geometry.page_count == 0 || geometry.page_size == 0 || geometry.page_bytes == 0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("emulated device: {} pages of {} tokens and {} bytes: each must be "
                              "at least 1",
                              geometry.page_count, geometry.page_size, geometry.page_bytes));
  }
  for (const Duration duration : {options.latency, options.latency_per_page, options.jitter}) {
    if (duration.count() < 0) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("emulated device: a latency of {} ns: it must not be negative",
                                duration.count()));
    }
  }
  return std::unique_ptr<EmulatedDevice>(new EmulatedDevice(options));
}

EmulatedDevice::EmulatedDevice(const EmulatedDeviceOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
EmulatedDevice::~EmulatedDevice() = default;

DeviceGeometry EmulatedDevice::geometry() const { return impl_->geometry(); }
Status EmulatedDevice::attach(CompletionSink* sink) { return impl_->attach(sink); }
void EmulatedDevice::detach() { impl_->detach(); }
void EmulatedDevice::submit(CopyBatch batch) { impl_->submit(std::move(batch)); }
void EmulatedDevice::submit(SequenceCommand command) { impl_->submit(std::move(command)); }

void EmulatedDevice::write(PageId page, std::span<const std::byte> bytes) {
  impl_->write(page, bytes);
}
std::vector<std::byte> EmulatedDevice::bytes(PageId page) const { return impl_->bytes(page); }
bool EmulatedDevice::filled(PageId page) const { return impl_->filled(page); }
void EmulatedDevice::release(PageId page) { impl_->release(page); }

DeviceStream EmulatedDevice::make_stream() { return impl_->make_stream(); }
void EmulatedDevice::launch_write(DeviceStream stream, PageId page, std::vector<std::byte> bytes) {
  impl_->launch_write(stream, page, std::move(bytes));
}
void EmulatedDevice::launch_read(DeviceStream stream, PageId page, std::span<std::byte> out) {
  impl_->launch_read(stream, page, out);
}
DeviceEvent EmulatedDevice::record(DeviceStream stream) { return impl_->record(stream); }
void EmulatedDevice::wait(DeviceStream stream, DeviceEvent event) { impl_->wait(stream, event); }
Status EmulatedDevice::synchronize(DeviceEvent event, TimePoint deadline) {
  return impl_->synchronize(event, deadline);
}

bool EmulatedDevice::step() { return impl_->step(); }
std::size_t EmulatedDevice::run() {
  std::size_t steps = 0;
  while (step()) ++steps;
  return steps;
}
std::size_t EmulatedDevice::queued() const { return impl_->queued(); }
bool EmulatedDevice::wait_until_queued(std::size_t count, TimePoint deadline) const {
  return impl_->wait_until_queued(count, deadline);
}
void EmulatedDevice::script_latencies(CopyDirection direction, std::vector<Duration> latencies) {
  impl_->script_latencies(direction, std::move(latencies));
}
void EmulatedDevice::fail_copies(CopyDirection direction, StatusCode code, std::uint64_t count,
                                 std::uint64_t skip) {
  impl_->fail_copies(direction, code, count, skip);
}
void EmulatedDevice::fail_no_copies() {
  for (const CopyDirection direction : {CopyDirection::to_host, CopyDirection::to_device}) {
    impl_->fail_copies(direction, StatusCode::ok, 0, 0);
  }
}
void EmulatedDevice::hold_completions() { impl_->hold_completions(); }
void EmulatedDevice::release_completions() { impl_->release_completions(); }
std::size_t EmulatedDevice::held_completions() const { return impl_->held_completions(); }
void EmulatedDevice::set_buffers_busy_until(TimePoint time) { impl_->set_buffers_busy_until(time); }

std::vector<PageId> EmulatedDevice::sequence(SequenceId sequence) const {
  return impl_->sequence(sequence);
}
std::size_t EmulatedDevice::sequences_in_use() const { return impl_->sequences_in_use(); }
std::vector<DeviceFault> EmulatedDevice::faults() const { return impl_->faults(); }

}  // namespace hitide
