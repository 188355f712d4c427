// LlamaDevice: llama.cpp's cells as the device tier (L1).
//
// llama.cpp addresses its cache by (sequence id, position). HiTide's core names logical sequences
// and pages; this class keeps the table between the two and carries out the core's commands.
//
//   logical sequence S ---> pages [P0 P1 P2 ...], filled tokens, physical id
//   physical id        ---> cells, in the order of positions
//
// Cells are handed out in rising order only. llama.cpp would fill a hole below its head, and cells
// of a sequence out of order change logits; therefore nothing is freed between compactions. What
// nobody lists any more stays behind as dead cells under a physical id that is not used again,
// until compact() exports what is alive, clears the context and imports it in path order.
//
// Invariants (checked by check()):
//   1 A live sequence with filled > 0 has a physical id of its own, which holds [0, filled), and
//   its
//     cells lie in the order of positions.
//   2 A page is listed at one position only; all pages before it are then the same in every list,
//     as far as the core's contract goes; only pages that are filled are shared.
//   3 cells_used() counts every cell that is not empty; they are cells 0..cells_used()-1.
//   4 The scratch id is empty between two operations.
//   5 Every physical id is free, owned by one live sequence, or dead until the next compaction.
//
// Threading: submit(), attach(), detach(), geometry() and the metrics may be used from any thread.
// Everything under "Step thread" belongs to the one thread that owns the context; copies are done
// there, and completions are posted from there (or from detach()).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <hitide/device.h>
#include <hitide/result.h>

#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/llama/llama_model.h"

namespace hitide {

struct LlamaDeviceOptions {
  DeviceGeometry geometry;
  std::uint32_t cells = 0;           // of the context; >= page_count * page_size when shareable
  std::uint32_t batch = 0;           // tokens per compute(), at most
  std::uint32_t physical_count = 0;  // ids of the context; the last one is the scratch
  std::uint32_t run_tokens_max = 0;  // exported in one blob by a compaction; 0: any number
  // False: this model's cache cannot be copied. Then each logical id is a physical one with cells
  // of its own, bind of pages and copies answer unimplemented, and nothing is ever compacted.
  bool shareable = true;
};

struct LlamaDeviceMetrics {
  Counter pages_saved, pages_restored, copy_failures;
  Counter compactions, compaction_cells, protocol_errors;
  Histogram compaction_seconds{kSecondsBounds};
  std::atomic<std::int64_t> compaction_ns_max{0};
  std::atomic<std::uint32_t> cells_used{0};
};

// Tokens to be computed behind what a sequence holds.
struct ComputeRun {
  SequenceId sequence;
  std::span<const TokenId> tokens;  // n >= 1
  bool want_logits = false;         // of the last token
  // Out: [vocabulary], valid until the next call on the device.
  const float* logits = nullptr;
};

class LlamaDevice final : public Device {
 public:
  // `context` must be empty and made for `options` (batch, sequences, unified when shareable).
  // `wake` is called from submit(): the step thread has something to do. invalid_argument: the
  // numbers do not fit each other.
  static Result<std::unique_ptr<LlamaDevice>> create(LlamaContextPtr context,
                                                     const LlamaDeviceOptions& options,
                                                     std::function<void()> wake);
  ~LlamaDevice() override;
  LlamaDevice(const LlamaDevice&) = delete;
  LlamaDevice& operator=(const LlamaDevice&) = delete;

  DeviceGeometry geometry() const override { return options_.geometry; }
  Status attach(CompletionSink* sink) override;
  void detach() override;
  void submit(CopyBatch batch) override;
  void submit(SequenceCommand command) override;

  const LlamaDeviceMetrics& metrics() const { return metrics_; }

  // How many items have been submitted, and how many are done. Whoever has to wait for a command
  // reads submitted() after it was submitted and waits until executed() has come that far.
  std::uint64_t submitted() const;
  std::uint64_t executed() const;

  // ---- Step thread
  // -------------------------------------------------------------------------------

  // Executes items in order for about `budget`: at least one page or command, then until the time
  // is up; as long as a load is queued, until `load_budget` is, because its request waits for it.
  // Returns true when items are left.
  bool run_commands(Duration budget, Duration load_budget);
  bool run_commands(Duration budget) { return run_commands(budget, budget); }

  // Computes all runs in one batch (at most options.batch tokens; one run per sequence). After ok
  // every sequence holds its tokens too. Makes room first: by executing what is queued, then by
  // compaction. resource_exhausted: no room even so; nothing has changed. internal: the sequence is
  // not alive, or llama.cpp failed; sequences hold what they held before.
  Status compute(std::span<ComputeRun> runs);

  // Tokens of the sequence that are in place, from position 0; 0 for one that is not alive.
  std::uint32_t filled(SequenceId sequence) const;

  // Bytes of the sequence's first page as a copy to the host would write it. failed_precondition
  // unless that page is filled.
  Result<std::uint64_t> measure_page_bytes(SequenceId sequence) const;

  // Moves what is alive to the front, in path order, and makes all dead cells and ids free.
  // internal: something could not be imported again; the sequences concerned hold less.
  Status compact();

  std::uint32_t cells_used() const { return cells_used_; }
  // Cells that a compaction would free.
  std::uint32_t cells_dead() const;

  // internal, with the number of the invariant that does not hold.
  Status check() const;

 private:
  struct Sequence {
    bool live = false;
    std::int32_t physical = -1;
    std::uint32_t filled = 0;
    std::vector<PageId> pages;
  };
  struct ActiveCopy {
    CopyBatch batch;
    std::vector<StatusCode> results;
    bool failed = false;
  };
  struct Export;
  using Item = std::variant<SequenceCommand, CopyBatch>;

  LlamaDevice(LlamaContextPtr context, const LlamaDeviceOptions& options,
              std::function<void()> wake);

  bool run_one();
  void enqueue(Item item);
  bool loads_pending() const;
  void execute(const SequenceCommand& command);
  void execute_bind(Sequence& sequence, const SequenceCommand& command);
  void execute_trim(Sequence& sequence, std::uint32_t pages_kept);
  StatusCode save_page(const PageCopy& copy);
  StatusCode restore_page(SequenceId target, const PageCopy& copy);
  void finish_copy() HITIDE_REQUIRES(run_mutex_);

  Sequence* live_sequence(SequenceId id);
  const Sequence* holder_of(PageId page, std::uint32_t position) const;
  void protocol_error(std::string_view what, SequenceId sequence);
  Status make_room(std::uint32_t cells);
  Status own_tail(Sequence& sequence);
  std::int32_t take_physical();
  void release_physical(Sequence& sequence);
  void set_cells_used(std::uint32_t cells);
  Status decode(std::span<ComputeRun> runs, std::uint32_t tokens);

  std::vector<Export> plan_exports() const;
  bool read_pieces(const Sequence& sequence, Export& item);
  bool write_pieces(Sequence& sequence, const Export& item);

  const LlamaDeviceOptions options_;
  const std::function<void()> wake_;
  LlamaDeviceMetrics metrics_;

  mutable Mutex queue_mutex_;
  std::deque<Item> queue_ HITIDE_GUARDED_BY(queue_mutex_);
  std::uint64_t submitted_ HITIDE_GUARDED_BY(queue_mutex_) = 0;
  std::uint64_t executed_ HITIDE_GUARDED_BY(queue_mutex_) = 0;
  std::uint64_t loads_ HITIDE_GUARDED_BY(queue_mutex_) = 0;  // to_device batches not done

  Mutex run_mutex_;  // held while one item is executed, and by attach and detach
  CompletionSink* sink_ HITIDE_GUARDED_BY(run_mutex_) = nullptr;
  bool copying_ HITIDE_GUARDED_BY(run_mutex_) = false;
  ActiveCopy active_ HITIDE_GUARDED_BY(run_mutex_);

  // Step thread only.
  struct Batch;
  LlamaContextPtr context_;
  std::unique_ptr<Batch> batch_;
  std::vector<Sequence> sequences_;          // by logical id
  std::vector<std::int32_t> physical_free_;  // ascending from the back
  std::uint32_t cells_used_ = 0;
  bool cells_uncertain_ = false;  // a decode failed half-way: compact before anything else
};

}  // namespace hitide
