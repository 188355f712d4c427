// EmulatedDevice: a Device in host memory that moves bytes as an accelerator would, and checks what
// it is told. For tests of engines and of what stands above a device, for replays and examples.
//
//   compute stream     [ write P1 ]-----[ write P2 ] record e
//   to_host stream                                   wait e [ copy P1 to host ]
//   to_device stream          [ copy host to P7 ]
//
// Streams run at once, each in its own order, for as long as a script says. Ordered are: the work
// of one stream; work before record() and work behind wait() for that event; what the host has seen
// done (synchronize(), a completion) and what it launches afterwards; commands that name the same
// page, as <hitide/device.h> says. A use of a page that nothing orders behind the use it depends on
// is a fault whether or not it went well this time: it is found by the order alone. Faults are
// kept, with the pages concerned, and the copies concerned answer internal; nothing ends the
// program.
//
// A page is written once under each generation, when all its tokens are computed. A page that is
// released, trimmed from its last sequence or handed out anew is filled with kPoison, and so is the
// host memory of a copy until it is carried out.
//
// A device with sequences has one stream: its commands, its copies and the engine's writes are
// those of one thread, as with llama.cpp; streams, events and release() are of the others.
//
// Threading: all methods from any thread. Completions are posted, under no lock, by the thread that
// moves the device on (Drive), by release_completions() and by detach(), which waits for the
// others; so none of these may be called by the sink. Who knows what is done is "the host",
// whatever its threads; what they owe each other is theirs.
//
// Cost: two copies of its bytes and a hash a page; memory: the bytes of pages once written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/device.h>
#include <hitide/result.h>
#include <hitide/types.h>

namespace hitide {

struct EmulatedDeviceOptions {
  // Who carries work out. Time is virtual but for `thread`: it jumps to the next end.
  enum class Drive : std::uint8_t {
    manual,     // step() and run(): each takes what ends next
    immediate,  // whoever submits or launches, before the call returns
    thread,     // a thread of the device, in real time
  };
  DeviceGeometry geometry = {};
  Drive drive = Drive::thread;
  Duration latency{};           // of a copy batch, a write or a read of a stream
  Duration latency_per_page{};  // more for each page of a copy batch
  Duration jitter{};            // more, up to this, by the seed
  std::uint64_t seed = 0;       // of jitter, and of what goes first of two that end at once
};

enum class DeviceFaultKind : std::uint8_t {
  contract,         // a call that <hitide/device.h> or this header forbids
  not_filled,       // reads a page that nobody has written
  unordered_read,   // reads a page whose write nothing orders before it
  unordered_write,  // writes or releases a page that something may still read or write
  released,         // uses a page that was given back
  reallocated,      // uses a page under a generation that has passed
  host_bytes,       // host memory of a copy was changed, or given to a second one, too early
};
// The enumerator's spelling.
std::string_view to_string(DeviceFaultKind kind);

struct DeviceFault {
  DeviceFaultKind kind = DeviceFaultKind::contract;
  PageId page = {};         // the page as it was asked for; invalid where no page is concerned
  std::uint64_t op_id = 0;  // of the copy batch; 0: no copy
  std::string text = {};    // who did what to which page, and what was missing
};

struct DeviceStream {
  std::uint32_t index = UINT32_MAX;
};
// The streams that copies run on; also for wait() and record().
inline constexpr DeviceStream kToHostStream{1};
inline constexpr DeviceStream kToDeviceStream{2};

// All that was launched on a stream when it was recorded.
struct DeviceEvent {
  std::uint32_t index = UINT32_MAX;
};

class EmulatedDevice : public Device {
 public:
  static constexpr std::byte kPoison{0xd5};

  // invalid_argument: no pages, a page size or page bytes of 0, a negative duration.
  static Result<std::unique_ptr<EmulatedDevice>> create(const EmulatedDeviceOptions& options);
  ~EmulatedDevice() override;  // detach()
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  DeviceGeometry geometry() const override;
  Status attach(CompletionSink* sink) override;
  void detach() override;
  void submit(CopyBatch batch) override;
  void submit(SequenceCommand command) override;

  // ---- the engine's part, by the host itself: done when the call returns
  // -------------------------

  // The page is computed; `bytes` is page_bytes long. With sequences it stands in one, and all
  // pages before it are written.
  void write(PageId page, std::span<const std::byte> bytes);
  // What lies there, in no order with anything: empty unless written under this generation.
  std::vector<std::byte> bytes(PageId page) const;
  bool filled(PageId page) const;
  // Given back: nobody may use the page under this generation any more.
  void release(PageId page);

  // ---- the engine's part, on streams; without sequences
  // ------------------------------------------

  // At most 61 beside the two above; an invalid one beyond that, or with sequences.
  DeviceStream make_stream();
  void launch_write(DeviceStream stream, PageId page, std::vector<std::byte> bytes);
  // `out` is page_bytes long and stays until the read is known to be done.
  void launch_read(DeviceStream stream, PageId page, std::span<std::byte> out);
  DeviceEvent record(DeviceStream stream);
  // What is launched on the stream from now on begins behind the event.
  void wait(DeviceStream stream, DeviceEvent event);
  // Until the event has come; with Drive::manual it carries work out itself. deadline_exceeded;
  // failed_precondition: an event of no stream, or nothing is left that could bring it.
  Status synchronize(DeviceEvent event, TimePoint deadline);

  // ---- the script
  // ---------------------------------------------------------------------------------

  // The work that ends next is carried out. False: there is none.
  bool step();
  // All of it; how many.
  std::size_t run();
  // Commands and launches that are not carried out.
  std::size_t queued() const;
  bool wait_until_queued(std::size_t count, TimePoint deadline) const;
  // How long the next batches of this direction take, in place of the options.
  void script_latencies(CopyDirection direction, std::vector<Duration> latencies);
  // After `skip` more pages of this direction, the copies of `count` pages fail with `code`. A page
  // that fails on the way to the device stays unwritten.
  void fail_copies(CopyDirection direction, StatusCode code, std::uint64_t count = UINT64_MAX,
                   std::uint64_t skip = 0);
  void fail_no_copies();
  // From now on copies are carried out, but their completions wait for release_completions().
  void hold_completions();
  void release_completions();
  std::size_t held_completions() const;
  // What later completions say in buffers_busy_until.
  void set_buffers_busy_until(TimePoint time);

  // ---- what came of it
  // ----------------------------------------------------------------------------

  // The pages of a sequence; empty when it is free.
  std::vector<PageId> sequence(SequenceId sequence) const;
  std::size_t sequences_in_use() const;
  // In the order they were found; the first 1000.
  std::vector<DeviceFault> faults() const;

 protected:
  // Requires options that create() accepts.
  explicit EmulatedDevice(const EmulatedDeviceOptions& options);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace hitide
