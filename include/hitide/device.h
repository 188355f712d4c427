// Device: the seam to the engine's own pools (L1).
//
// Two families of devices stand behind it:
// - page-addressed (GPU pools): a page id is an address; sequence_count is 0 and no sequence
//   command is ever submitted;
// - sequence-addressed (llama.cpp): pages are reached through sequences, of which there are few.
//   The core accounts them and says with SequenceCommands which pages each one consists of.
//
// Commands are submitted in order and take effect in order. Each CopyBatch is answered by exactly
// one CopyCompletion, also after failure, cancellation and close; a sequence command has no answer
// and cannot fail. Nothing a device does calls upward: completions are values posted to the sink.
//
// The contract is checked for every device by tests/conformance/device_suite.h.
//
// Threading: all methods from any thread, at once; attach() and detach() not beside each other.
// submit() never blocks on copies; a device says itself on which thread the work is done.
//
// Cost: the core submits under its lock, so submit() should only queue: microseconds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <hitide/status.h>
#include <hitide/types.h>

namespace hitide {

struct DeviceGeometry {
  std::uint32_t page_count = 0;      // pages of the anchor pool, >= 1
  std::uint32_t page_size = 0;       // tokens
  std::uint64_t page_bytes = 0;      // payload of one page as to_host writes it
  std::uint32_t sequence_count = 0;  // 0: page-addressed
};

enum class CopyDirection : std::uint8_t { to_host, to_device };

struct PageCopy {
  PageId page = {};            // device page
  std::uint32_t position = 0;  // index of the page in its prefix: tokens [position*page_size, ..)
  std::span<std::byte> payload = {};  // host memory, page_bytes long; stays until the completion
};

// Copies of consecutive positions, in order.
struct CopyBatch {
  std::uint64_t op_id = 0;  // the caller's; unique among those that are not answered
  CopyDirection direction = CopyDirection::to_host;
  SequenceId sequence = {};  // to_device on sequence-addressed devices: the sequence being filled
  std::vector<PageCopy> pages = {};
};

// What came of each page. ok: its bytes are in place. cancelled: not done, by detach() or because a
// page before it failed. resource_exhausted: no room on the device. data_loss: the bytes are not
// those of this position. invalid_argument: a payload of another size. unimplemented: this device
// cannot copy. internal: the page is not there under this generation, or the device failed. After
// anything but ok a payload to the host holds undefined bytes, and a page on the device is as empty
// as before; the caller counts it as missed.
struct CopyCompletion {
  std::uint64_t op_id = 0;
  std::vector<StatusCode> pages = {};  // one per page of the batch, in order
  // Nobody may reuse the payloads before this: the device may still touch them.
  TimePoint buffers_busy_until = TimePoint::min();
};

// "From now on sequence S consists of ...". A page may be in several sequences, always at the same
// position, and all pages before it are then the same too.
struct SequenceCommand {
  enum class Kind : std::uint8_t {
    bind,     // S is empty; it shares `pages` (positions 0..n-1), which are filled in others
    extend,   // `pages` are appended from `position` on; they are new, to be computed or copied in
    replace,  // from `position` on S's own pages give way to `pages`, equal in content, held by
              // another sequence
    trim,     // S keeps its first `position` pages; 0 releases it
  };
  Kind kind = Kind::trim;
  SequenceId sequence = {};
  std::uint32_t position = 0;
  std::vector<PageId> pages = {};
};

// Where completions go. post() never blocks for long and never calls back into the device.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void post(CopyCompletion completion) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceGeometry geometry() const = 0;
  // Before the first submit, and again after a detach(). The sink is the caller's and outlives
  // detach(). failed_precondition when attached already.
  virtual Status attach(CompletionSink* sink) = 0;
  // Answers everything pending (as cancelled where not done) and forgets the sink: nothing is
  // posted once it has returned. Nothing may be submitted until the next attach(). Idempotent.
  virtual void detach() = 0;
  virtual void submit(CopyBatch batch) = 0;
  virtual void submit(SequenceCommand command) = 0;
};

}  // namespace hitide
