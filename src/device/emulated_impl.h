// What EmulatedDevice is made of: launches of the host, streams that carry them out, pages that
// know who may use them. Included by .cc files of this folder only.
//
//   emulated_impl.cc     attach, detach, streams and events, writes, carrying out
//   emulated_copies.cc   copy batches and sequence commands
//   emulated_device.cc   the public face
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <hitide/emulated_device.h>

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
  bool wrong_stream(DeviceStream stream, std::string_view call);
  void contract(PageId page, std::uint64_t op_id, std::string text) {
    log_.add(DeviceFaultKind::contract, page, op_id, std::move(text));
  }
  bool attached(std::string_view what);

  // Who launches on this stream now: everything the host knows is done before it.
  Worker worker(std::uint32_t stream, std::uint64_t op_id, std::string name);
  Worker host_worker(std::string name);
  void launch(std::uint32_t stream, const Worker& who, EmulatedWork work);
  void after_launch();
  void behind_copies(std::uint32_t stream, const CopyBatch& batch);
  void use_host_bytes(Copy& copy);
  Duration latency_of(const CopyBatch& batch);

  void begin(Copy& copy);
  void end(Copy& copy);
  void answer(Copy& copy);
  bool fits(const Copy& copy, std::size_t index);
  StatusCode move_to_device(const Copy& copy, std::size_t index);
  StatusCode take_fault(CopyDirection direction);

  // Carries out what ends at `end`, and posts what it answers; the lock is let go meanwhile.
  void finish_next(std::unique_lock<std::mutex>& lock, TimePoint end);
  void post(std::unique_lock<std::mutex>& lock, CompletionSink* sink,
            std::vector<CopyCompletion> answers);
  void work();

  const EmulatedDeviceOptions options_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // All guarded by mutex_.
  CompletionSink* sink_ = nullptr;
  FaultLog log_;
  EmulatedPages pages_;
  SequenceTable sequences_;
  EmulatedStreams streams_;
  std::vector<Launches> launches_;
  std::vector<Event> events_;
  std::map<const std::byte*, HostUse> host_uses_;  // by their first byte
  std::array<Fault, 2> fail_;                      // by CopyDirection, as below
  std::array<std::deque<Duration>, 2> latencies_;
  TimePoint now_{};  // virtual
  bool holding_ = false;
  std::vector<CopyCompletion> outbox_;
  std::vector<CopyCompletion> held_;
  VectorClock held_done_;  // what the host will know when it gets them
  TimePoint busy_until_ = TimePoint::min();
  std::size_t posting_ = 0;  // threads that post
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hitide
