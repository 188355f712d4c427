// CacheCore: the page state machine. Takes requests, completions and `now`; returns plans.
//
//   open -> [waiting: query storage -> agree -> read into host pages] -> ready
//        -> admit: pin, reserve device pages and a sequence, load back -> [loading] -> running
//        -> commit: pages become nodes of the tree; backup to host, then to storage
//        -> finish or release
//
// A page is always exactly one of: free, owned by a request, owned by the tree, owned by an
// operation, or in quarantine. Only this class moves pages between those states; the shell reads
// and writes bytes of pages that a plan named, and answers each operation exactly once.
//
// Invariants beyond those of the tree (T1-T10) and the allocators, verified by check():
//   C1 pages owned by the tree in an allocator = resident pages of that tier in the tree
//   C2 device pages owned by requests = pages of all requests behind their shared_pages
//   C3 every sequence is free, a request's, or a node's, and is so once
//   C4 on a sequence-addressed device every device leaf has a sequence or a running request on it
//   C5 pages owned by operations = host pages of backups and of prefetches that are not settled
//   C6 occupied prefetch pages = sum of the spans of the prefetches under way
//   C7 at rest (no request, no operation) nothing is pinned
//   C8 pages counted as leaving a tier = sum over the operations that they wait for
//
// Deterministic and single-threaded: no clock, thread, lock, file or device.
// Errors: a broken invariant never ends the process; it sets bypass (see tripped()), in which no
// prompt hits and nothing is kept, while requests still get device pages.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <hitide/options.h>
#include <hitide/request.h>
#include <hitide/result.h>
#include <hitide/stats.h>

#include "cache/ghost.h"
#include "cache/records.h"
#include "policy/prefetch_policy.h"
#include "policy/transfer_speed.h"
#include "pool/page_allocator.h"
#include "prefix/page_hasher.h"
#include "prefix/radix_tree.h"
#include "spec/plan.h"

namespace hitide {

enum class StorageState : std::uint8_t {
  none,  // none was asked for
  off,   // asked for, and not there
  on,
};

struct CoreConfig {
  std::uint32_t page_size = 32;
  std::uint32_t device_pages = 0;
  std::uint32_t device_sequences = 0;  // 0: the device is page-addressed
  std::uint32_t host_pages = 0;        // 0: no L2 and therefore no L3
  std::uint64_t page_bytes = 0;        // of one host page, for the limits of storage calls
  StorageState storage = StorageState::none;
  PolicyOptions policy;
  std::uint32_t explanations_kept = 1024;
  std::uint32_t ghosts_kept = 1 << 16;
  double prefill_tokens_per_s = 0.0;
  std::string explanation_prefix;  // makes ids unique across processes
};

class CacheCore {
 public:
  explicit CacheCore(const CoreConfig& config);

  // All calls that take a Plan append to it. Errors are those of <hitide/cache.h>.
  Result<RequestId> open(const PrefixRequest& request, TimePoint now, Plan& plan);
  Result<Admission> admit(RequestId id, TimePoint now, Plan& plan);
  Result<std::vector<PageId>> reserve(RequestId id, std::uint32_t total_tokens, TimePoint now,
                                      Plan& plan);
  Status commit(RequestId id, std::span<const TokenId> tokens, TimePoint now, Plan& plan);
  // Unknown ids are ignored.
  void release(RequestId id, TimePoint now, Plan& plan);

  void on_completion(const Completion& completion, TimePoint now, Plan& plan);
  // Ends waits whose deadline has passed.
  void tick(TimePoint now, Plan& plan);
  // The earliest deadline of a waiting request; kNoDeadline: none.
  TimePoint next_deadline() const;

  void note_prefill(std::uint32_t tokens, Duration time) { speed_.note(tokens, time); }
  void set_storage(StorageState state) { config_.storage = state; }
  // Another store, or one that was cleared: what was acknowledged so far says nothing of it, and is
  // written again by the next commit on its path.
  void forget_stored();
  // Of the next requests and commits. The eviction policy stays as it is.
  void set_policy(const PolicyOptions& policy);
  // Drops what no request and no operation uses from device and host: at once, or, where write_back
  // owes storage pages, when those have been written as far as storage takes them.
  void flush(TimePoint now, Plan& plan);
  // Starts to write what write_back owes storage; operations_in_flight() is 0 when it is done.
  void drain(TimePoint now, Plan& plan);

  // closed for an unknown request.
  PrefixState state(RequestId id) const;
  std::uint32_t cached_tokens(RequestId id) const;
  // Device pages by position. Ids may be exchanged for equal pages by a load or a commit.
  std::vector<PageId> pages(RequestId id) const;
  std::string explanation_id(RequestId id) const;
  const Explanation* explain(std::string_view id) const;

  // Fills what the core knows; storage's own part is the shell's.
  void fill_stats(CacheStats& stats) const;
  std::size_t operations_in_flight() const { return operations_.size(); }
  std::size_t requests_open() const { return requests_.size(); }
  Status check() const;
  // The first broken invariant, or ok.
  const Status& tripped() const { return tripped_; }
  const RadixTree& tree() const { return tree_; }
  // For the shell's observer of page bytes; before the first request only.
  Status observe_host_pages(PageObserver* observer) { return host_.set_observer(observer); }

 private:
  // --- open.cc
  std::shared_ptr<const Prompt> make_prompt(const PrefixRequest& request);
  FindResult find(const Prompt& prompt) const;
  void start_prefetch(Request& request, const FindResult& found, bool again, TimePoint now,
                      Plan& plan);
  void pin_request(Request& request, NodeIndex device, NodeIndex host);
  void unpin_request(Request& request);
  void leave_prefetch(Request& request);
  void make_ready(Request& request, TimePoint now, Plan& plan);

  // --- prefetch.cc
  void on_query(Operation& operation, const Completion& completion, TimePoint now, Plan& plan);
  void on_agree(Operation& operation, const Completion& completion, TimePoint now, Plan& plan);
  void on_read(Operation& operation, const Completion& completion, TimePoint now, Plan& plan);
  bool bring_down_head(Prefetch& prefetch, TimePoint now, Plan& plan);
  NodeIndex above(const Prefetch& prefetch);
  void issue_reads(Prefetch& prefetch, TimePoint now, Plan& plan);
  void settle_held(TimePoint now, Plan& plan);
  void settle(Prefetch& prefetch, Plan& plan);
  void end_prefetch(std::uint64_t id, TimePoint now, Plan& plan);
  void add_reason(Prefetch& prefetch, std::uint32_t begin, std::uint32_t end, MissReason reason);
  void report_progress(const Prefetch& prefetch);

  // --- admit.cc
  bool start_load(Request& request, NodeIndex host_node, std::uint32_t host_pages, TimePoint now,
                  Plan& plan);
  void on_load(Operation& operation, const Completion& completion, TimePoint now, Plan& plan);
  void start_running(Request& request, TimePoint now, Plan& plan);
  SequenceId take_sequence(TimePoint now, Plan& plan);

  // --- commit.cc
  void place_request_pages(Request& request, std::span<const TokenId> tokens,
                           std::span<const PageKey> keys, TimePoint now, Plan& plan);
  void release_sequence(Request& request, Plan& plan);

  // --- place.cc
  // Puts pages at positions behind `start` into the tree on a tier, as far as closure allows.
  struct PlaceRun {
    Tier tier = Tier::device;
    NodeIndex start = kNoNode;        // resident on the tier, or a root
    std::span<const TokenId> tokens;  // of the run: pages * page_size
    std::span<const PageKey> keys;
    std::span<const PageId> pages;
    PageOwner owner = PageOwner::request;
    const Request* request = nullptr;  // device: whose sequence exchanges pages that exist
  };
  struct Placement {
    NodeIndex end = kNoNode;       // the node that ends where the placed run ends
    std::uint32_t existing = 0;    // leading pages that others had there already
    std::uint32_t placed = 0;      // existing + newly resident ones
    std::vector<PageId> resident;  // ids in the tree, for [0, placed)
  };
  Placement place(const PlaceRun& run, Plan& plan);
  void exchange_existing(const PlaceRun& run, const Placement& placed, Plan& plan) const;
  NodeIndex first_on_path(const Boundary& path, std::uint32_t pages_max);
  void drop_sequence(NodeIndex node, Plan& plan);

  // --- backup.cc
  void back_up_path(NodeIndex node, TimePoint now, Plan& plan);
  Operation* start_backup(const std::vector<NodeIndex>& chain, TimePoint now, Plan& plan);
  void on_backup(Operation& operation, const Completion& completion, TimePoint now, Plan& plan);
  bool answered_too_early(const Operation& operation) const;
  void take_deferred_backups(TimePoint now, Plan& plan);
  Operation& write_to_storage(const std::vector<NodeIndex>& nodes, Plan& plan);
  void on_write(Operation& operation, const Completion& completion, TimePoint now, Plan& plan);

  // --- cost.cc
  std::uint64_t span_bytes(std::uint32_t pages) const;
  bool worth_loading(Request& request, Tier tier, std::uint32_t begin, std::uint32_t end,
                     TimePoint now);

  // --- retry.cc
  void write_again_later(const Operation& operation, std::vector<PageId> missing, TimePoint now);
  void write_again(const WriteRetry& retry, Plan& plan);
  void take_write_retries(TimePoint now, Plan& plan);
  void ask_again_later(Request& request, TimePoint now);
  void ask_again(Request& request, TimePoint now, Plan& plan);

  // --- evict.cc
  bool make_room(Tier tier, std::uint32_t pages, TimePoint now, Plan& plan);
  NodeIndex next_to_leave(Tier tier) const;
  void evict(Tier tier, NodeIndex node, std::uint32_t pages_wanted, Plan& plan);
  bool make_sequence_room(TimePoint now, Plan& plan);
  void forget_unused(TimePoint now, Plan& plan);
  void thin_device(TimePoint now, Plan& plan);

  // --- write_back.cc
  bool copies_first(Tier tier, NodeIndex node) const;
  OpId copy_then_evict(Tier tier, NodeIndex node, std::uint32_t pages_wanted, TimePoint now,
                       Plan& plan);
  std::vector<NodeIndex> missing_below(Tier tier, NodeIndex node) const;
  void evict_tail(Tier tier, std::span<const PageId> pages, std::uint32_t count, Plan& plan);
  void keep_host_reserve(TimePoint now, Plan& plan);
  void start_drain(Drain kind, TimePoint now, Plan& plan);
  void drain_wave(TimePoint now, Plan& plan);
  void drain_node(NodeIndex node, TimePoint now, Plan& plan);
  void count_for_drain(Operation& operation);
  void drained(const Operation& operation, TimePoint now, Plan& plan);

  // --- explain.cc
  void explain_running(Request& request, TimePoint now);
  void explain_missing_page_run(const Request& request, std::uint32_t begin, std::uint32_t end,
                                std::vector<MissedSpan>& out) const;
  MissReason refine(const Request& request, std::uint32_t page, MissReason reason,
                    std::uint32_t elsewhere_pages) const;
  void keep_explanation(Request& request);

  // --- check.cc
  Status check_requests() const;
  Status check_sequences() const;
  Status check_operations() const;

  // --- cache_core.cc
  Operation& add_operation(OpKind kind, OpId& id);
  // Drops the failure of a call that cannot fail unless an invariant is broken; trips the bypass.
  bool require(const Status& status);
  PageAllocator& allocator(Tier tier) { return tier == Tier::device ? device_ : host_; }
  void begin_operations(Tier tier, std::span<const PageId> pages);
  void end_operations(Tier tier, std::span<const PageId> pages, TimePoint busy_until);
  void give_back(Tier tier, std::span<const PageId> pages, PageOwner owner);
  Request* find_request(RequestId id);
  const Request* find_request(RequestId id) const;
  bool sequences_used() const { return config_.device_sequences > 0; }
  void submit(SequenceCommand::Kind kind, SequenceId sequence, std::uint32_t position,
              std::vector<PageId> pages, Plan& plan) const;

  CoreConfig config_;
  RadixTree tree_;
  PageAllocator device_;
  PageAllocator host_;
  PageHasher hasher_;
  PrefillSpeed speed_;
  TransferSpeed host_speed_;     // host to device
  TransferSpeed storage_speed_;  // storage to host, from the question to the last page
  Ghost ghost_;
  std::vector<SequenceId> free_sequences_;
  std::map<RequestId, Request> requests_;
  std::map<std::uint64_t, Prefetch> prefetches_;
  std::unordered_map<OpId, Operation> operations_;
  std::deque<Explanation> explanations_;
  std::uint64_t next_request_ = 1;
  std::uint64_t next_prefetch_ = 1;
  std::uint64_t next_decision_ = 1;
  OpId next_op_ = 1;
  std::uint64_t storage_epoch_ = 0;  // forget_stored() so far
  std::uint64_t occupied_pages_ = 0;
  std::array<std::uint32_t, 2> leaving_{};  // [tier] pages that leave when they have been copied
  OpId sequence_copy_ = 0;                  // the copy that a sequence is waited for with
  std::vector<OpId> deferred_backups_;      // answered before those above them
  std::vector<WriteRetry> write_retries_;
  Drain drain_ = Drain::none;
  std::uint32_t drain_operations_ = 0;
  std::uint32_t drain_waves_ = 0;
  std::uint64_t drain_progress_ = 0;  // pages copied down in all before the wave
  CacheStats stats_;
  Status tripped_;
};

}  // namespace hitide
