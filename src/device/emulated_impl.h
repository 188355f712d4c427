// What EmulatedDevice is made of: launches of the host, streams that carry them out, pages that
// know who may use them. Included by .cc files of this folder only.
//
//   emulated_impl.cc     attach, detach, streams and events, writes, carrying out
//   emulated_copies.cc   copy batches and sequence commands
//   emulated_device.cc   the public face
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <hitide/emulated_device.h>

#include "base/mutex.h"
#include "device/emulated_pages.h"
#include "device/emulated_streams.h"
#include "device/sequence_table.h"
#include "device/vector_clock.h"

namespace hitide {

class EmulatedDevice::Impl {
 public:
  explicit Impl(const EmulatedDeviceOptions& options);
  ~Impl();

  const DeviceGeometry& geometry() const { return options_.geometry; }
  Status attach(CompletionSink* sink);
  void detach();
  void submit(CopyBatch batch);
  void submit(SequenceCommand command);

  void write(PageId page, std::span<const std::byte> bytes);
  std::vector<std::byte> bytes(PageId page) const;
  bool filled(PageId page) const;
  void release(PageId page);

  DeviceStream make_stream();
  void launch_write(DeviceStream stream, PageId page, std::vector<std::byte> bytes);
  void launch_read(DeviceStream stream, PageId page, std::span<std::byte> out);
  DeviceEvent record(DeviceStream stream);
  void wait(DeviceStream stream, DeviceEvent event);
  Status synchronize(DeviceEvent event, TimePoint deadline);

  bool step();
  std::size_t queued() const;
  bool wait_until_queued(std::size_t count, TimePoint deadline) const;
  void script_latencies(CopyDirection direction, std::vector<Duration> latencies);
  void fail_copies(CopyDirection direction, StatusCode code, std::uint64_t count,
                   std::uint64_t skip);
  void hold_completions();
  void release_completions();
  std::size_t held_completions() const;
  void set_buffers_busy_until(TimePoint time);

  std::vector<PageId> sequence(SequenceId sequence) const;
  std::size_t sequences_in_use() const;
  std::vector<DeviceFault> faults() const;

 private:
  static constexpr std::uint32_t kHost = 0;

  // One stream as the host launches on it; index 0 is the host itself.
  struct Launches {
    VectorClock known_done;
    std::vector<std::uint64_t> waits;  // of the next launch
    std::uint64_t last = 0;            // number of the last launch; 0: none
  };
  struct Event {
    VectorClock known_done;
    std::vector<std::uint64_t> numbers;
  };
  struct Fault {
    StatusCode code = StatusCode::ok;
    std::uint64_t count = 0;
    std::uint64_t skip = 0;
  };
  // A copy batch between submit and its completion.
  struct Copy {
    CopyBatch batch;
    Worker who;
    std::vector<bool> ordered;  // by page, as all below
    std::vector<StatusCode> codes;
    std::vector<std::vector<std::byte>> read;  // to_host: what was read when it began
    std::vector<std::uint64_t> sums;           // to_device: of the host bytes at submit
  };
  struct HostUse {
    const std::byte* end;
    std::uint64_t number;
    std::uint64_t op_id;
    bool writes;
  };

  bool by_sequence() const { return options_.geometry.sequence_count > 0; }
  bool wrong_stream(DeviceStream stream, std::string_view call) HITIDE_REQUIRES(mutex_);
  void contract(PageId page, std::uint64_t op_id, std::string text) HITIDE_REQUIRES(mutex_) {
    log_.add(DeviceFaultKind::contract, page, op_id, std::move(text));
  }
  bool attached(std::string_view what) HITIDE_REQUIRES(mutex_);

  // Who launches on this stream now: everything the host knows is done before it.
  Worker worker(std::uint32_t stream, std::uint64_t op_id, std::string name)
      HITIDE_REQUIRES(mutex_);
  Worker host_worker(std::string name) HITIDE_REQUIRES(mutex_);
  void launch(std::uint32_t stream, const Worker& who, EmulatedWork work) HITIDE_REQUIRES(mutex_);
  void after_launch();
  void behind_copies(std::uint32_t stream, const CopyBatch& batch) HITIDE_REQUIRES(mutex_);
  void use_host_bytes(Copy& copy) HITIDE_REQUIRES(mutex_);
  Duration latency_of(const CopyBatch& batch) HITIDE_REQUIRES(mutex_);

  void begin(Copy& copy) HITIDE_REQUIRES(mutex_);
  void end(Copy& copy) HITIDE_REQUIRES(mutex_);
  void answer(Copy& copy) HITIDE_REQUIRES(mutex_);
  bool fits(const Copy& copy, std::size_t index) HITIDE_REQUIRES(mutex_);
  StatusCode move_to_device(const Copy& copy, std::size_t index) HITIDE_REQUIRES(mutex_);
  StatusCode take_fault(CopyDirection direction) HITIDE_REQUIRES(mutex_);

  // Carries out what ends at `end`, and posts what it answers; the lock is let go meanwhile.
  void finish_next(TimePoint end) HITIDE_REQUIRES(mutex_);
  void post(CompletionSink* sink, std::vector<CopyCompletion> answers) HITIDE_REQUIRES(mutex_);
  void work();

  const EmulatedDeviceOptions options_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  CompletionSink* sink_ HITIDE_GUARDED_BY(mutex_) = nullptr;
  FaultLog log_ HITIDE_GUARDED_BY(mutex_);
  EmulatedPages pages_ HITIDE_GUARDED_BY(mutex_);
  SequenceTable sequences_ HITIDE_GUARDED_BY(mutex_);
  EmulatedStreams streams_ HITIDE_GUARDED_BY(mutex_);
  std::vector<Launches> launches_ HITIDE_GUARDED_BY(mutex_);
  std::vector<Event> events_ HITIDE_GUARDED_BY(mutex_);
  std::map<const std::byte*, HostUse> host_uses_ HITIDE_GUARDED_BY(mutex_);  // by their first byte
  std::array<Fault, 2> fail_ HITIDE_GUARDED_BY(mutex_);  // by CopyDirection, as below
  std::array<std::deque<Duration>, 2> latencies_ HITIDE_GUARDED_BY(mutex_);
  TimePoint now_ HITIDE_GUARDED_BY(mutex_){};  // virtual
  bool holding_ HITIDE_GUARDED_BY(mutex_) = false;
  std::vector<CopyCompletion> outbox_ HITIDE_GUARDED_BY(mutex_);
  std::vector<CopyCompletion> held_ HITIDE_GUARDED_BY(mutex_);
  VectorClock held_done_ HITIDE_GUARDED_BY(mutex_);  // what the host will know when it gets them
  TimePoint busy_until_ HITIDE_GUARDED_BY(mutex_) = TimePoint::min();
  std::size_t posting_ HITIDE_GUARDED_BY(mutex_) = 0;  // threads that post
  bool stopping_ HITIDE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hitide
