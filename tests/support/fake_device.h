// FakeDevice: a checked Device for tests of what stands above it.
//
// Commands queue up and take effect, in order, when the test says step(). The device holds the
// bytes of its pages and checks everything the contract of <hitide/device.h> asks of its caller;
// what does not hold is noted in violations(), never fatal, and the copies concerned answer
// internal.
//
//   fill()   what an engine does: it computes a page
//   step()   the next command takes effect; the completion of a copy is posted, or held
//
// Threading: all methods from any thread. Completions are posted by the thread that calls step(),
// release_completions() or detach() (submit() where `immediate` is set), under no lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <hitide/device.h>

namespace hitide {

// Bytes that are a function of `content`: what fill() writes.
std::vector<std::byte> page_content(std::uint64_t content, std::size_t bytes);

class FakeDevice final : public Device {
 public:
  // geometry.sequence_count 0: page-addressed. `immediate`: commands take effect inside submit().
  explicit FakeDevice(const DeviceGeometry& geometry, bool immediate = false);
  ~FakeDevice() override;

  DeviceGeometry geometry() const override { return geometry_; }
  Status attach(CompletionSink* sink) override;
  void detach() override;
  void submit(CopyBatch batch) override;
  void submit(SequenceCommand command) override;

  // ---- the engine's part ----

  // The page has been computed. On sequence-addressed devices it stands in a sequence, and all
  // pages before it are filled.
  void fill(PageId page, std::uint64_t content);

  // ---- the test's part ----

  // The next command takes effect. False: there is none.
  bool step();
  // All of them; how many.
  std::size_t run();
  std::size_t queued() const;
  bool wait_until_queued(std::size_t count, TimePoint deadline) const;

  // After `skip` more pages of this direction, the copies of `count` pages fail with `code`. A page
  // that fails on the way to the device stays unfilled.
  void fail_copies(CopyDirection direction, StatusCode code, std::uint64_t count = UINT64_MAX,
                   std::uint64_t skip = 0);
  void fail_no_copies();
  // From now on copies take effect, but their completions wait for release_completions().
  void hold_completions();
  void release_completions();
  std::size_t held_completions() const;
  // What later completions say in buffers_busy_until.
  void set_buffers_busy_until(TimePoint time);

  bool filled(PageId page) const;
  // Empty when the page is not filled under this generation.
  std::vector<std::byte> bytes(PageId page) const;
  // The pages of a sequence; empty when it is free.
  std::vector<PageId> sequence(SequenceId sequence) const;
  std::size_t sequences_in_use() const;

  // What the caller did that the contract forbids, in order.
  std::vector<std::string> violations() const;

 private:
  struct Page {
    std::uint32_t generation = 0;
    bool filled = false;
    std::vector<std::byte> bytes;
  };
  struct Fault {
    StatusCode code = StatusCode::ok;
    std::uint64_t count = 0;
    std::uint64_t skip = 0;
  };
  using Command = std::variant<CopyBatch, SequenceCommand>;
  using Pages = std::vector<PageId>;

  void enqueue(Command command);
  bool by_sequence() const { return geometry_.sequence_count > 0; }
  void violation(std::string text) { violations_.push_back(std::move(text)); }
  bool known(PageId page) const;
  // Where some sequence holds the page: its pages, and the place; null when none does.
  const Pages* holder(PageId page, std::size_t& position) const;
  // True when a sequence other than `except` starts with exactly these pages.
  bool shared(const Pages& prefix, std::int32_t except) const;
  bool filled_before(const Pages& pages, std::size_t position) const;
  bool filled_now(PageId page) const;

  CopyCompletion copy(const CopyBatch& batch);
  StatusCode copy_page(const CopyBatch& batch, const PageCopy& copy);
  StatusCode copy_to_host(const PageCopy& copy);
  StatusCode copy_to_device(const CopyBatch& batch, const PageCopy& copy);
  StatusCode take_fault(CopyDirection direction);
  void apply(const SequenceCommand& command);
  void bind(const SequenceCommand& command);
  void extend(const SequenceCommand& command);
  void replace(const SequenceCommand& command);
  void trim(const SequenceCommand& command);
  void forget_unheld();
  void check_prefixes();
  // Fills the page, or says why that must not be.
  bool write(PageId page, std::vector<std::byte> bytes, const std::string& who);

  const DeviceGeometry geometry_;
  const bool immediate_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // All guarded by mutex_.
  CompletionSink* sink_ = nullptr;
  std::deque<Command> commands_;
  std::vector<Page> pages_;
  std::map<std::int32_t, Pages> sequences_;  // those in use
  Fault faults_[2];                          // by CopyDirection
  bool holding_ = false;
  std::vector<CopyCompletion> held_;
  TimePoint busy_until_ = TimePoint::min();
  std::vector<std::string> violations_;
};

}  // namespace hitide
