// CoreWorld: a deterministic world around CacheCore, without threads. It carries plans out late, in
// another order and with faults, computes prompts, and knows what every page must hold: the hash of
// its namespace and of all tokens up to its end. Whatever the core says is in place must equal
// that.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cache/cache_core.h"

namespace hitide {

struct WorldFaults {
  double copy_fails = 0.0;
  double storage_fails = 0.0;  // per call
  double page_lost = 0.0;      // per page, between query and read
  double page_damaged = 0.0;   // per page: data_loss
  double busy_after = 0.0;     // per storage call: buffers stay busy, and are written to later
  double duplicate = 0.0;      // a completion comes twice
};

// Virtual time that operations take, one after the other.
struct WorldSpeeds {
  Duration storage_call{};  // of each
  Duration read_page{};     // and for each page of a read
  Duration load_page{};     // from host to device
};

struct WorldOptions {
  CoreConfig core;
  WorldSpeeds speeds;
  WorldFaults faults;
  std::uint64_t seed = 1;
};

class CoreWorld {
 public:
  explicit CoreWorld(const WorldOptions& options);

  CacheCore& core() { return core_; }
  TimePoint now() const { return now_; }
  Random& random() { return random_; }

  // Opens a request; its tokens are the prompt. Returns its id.
  RequestId open(const std::vector<TokenId>& prompt, const std::string& salt = "");
  RequestId open_as(const std::optional<std::string>& adapter,
                    const std::optional<std::string>& salt, const std::vector<TokenId>& prompt);
  // admit(); false when there was no room. The prompt is verified and computed by compute().
  bool admit(RequestId id);
  // Requires running: verifies every cached page, computes the rest of the prompt and `generated`
  // more tokens, and commits. False when there was no room to grow.
  bool compute(RequestId id, std::uint32_t generated);
  void release(RequestId id);
  // Drops device and host; storage stays, as over a restart.
  void flush();
  // What close() does before it waits.
  void drain();

  // Carries out one device command, or nothing.
  void step_device();
  // Carries out one storage operation, chosen at random.
  void step_storage();
  // Delivers one completion, chosen at random.
  void deliver();
  // Delivers all that there are now, in any order.
  void deliver_all();
  void advance(Duration by);
  // Until nothing is left to do.
  void settle();

  // Everything that was ever violated, by content or by the sequence contract; empty is good.
  const std::vector<std::string>& violations() const { return violations_; }
  std::size_t stored_pages() const { return storage_.size(); }
  std::uint32_t device_commands() const { return static_cast<std::uint32_t>(device_queue_.size()); }
  // Storage operations that have not been carried out.
  const std::vector<PlanOp>& storage_queue() const { return storage_queue_; }
  void forget_storage() { storage_.clear(); }
  // Of the pages that are written from now on, counted from 0, these fail, once.
  void fail_writes(std::set<std::uint32_t> which);
  // Takes everything out of storage, in the order of the keys' first writes, and puts the first
  // `pages` of such a list back, as another process would.
  using Stored = std::vector<std::pair<PageKey, std::uint64_t>>;
  Stored take_storage();
  void give_storage(const Stored& stored, std::size_t pages = SIZE_MAX);

  // From now on.
  void set_speeds(const WorldSpeeds& speeds) { options_.speeds = speeds; }

  // Puts the whole prompt through, alone. Returns the tokens served from (device, host, storage).
  std::array<std::uint32_t, 3> run(const std::vector<TokenId>& prompt, const std::string& salt = "",
                                   std::uint32_t generated = 0);
  std::array<std::uint32_t, 3> run_as(const std::optional<std::string>& adapter,
                                      const std::optional<std::string>& salt,
                                      const std::vector<TokenId>& prompt);
  Explanation last_explanation() const { return last_explanation_; }

 private:
  using Content = std::uint64_t;
  struct Sequence {
    std::vector<PageId> pages;
  };
  struct Scribble {  // a remote side that writes on until `until`
    std::vector<PageId> pages;
    TimePoint until;
  };

  std::array<std::uint32_t, 3> put_through(RequestId id, std::uint32_t generated);
  void take(Plan& plan);
  void violate(std::string what) { violations_.push_back(std::move(what)); }
  void run_command(const SequenceCommand& command);
  void run_copy(const CopyOp& copy);
  void run_storage(const PlanOp& op);
  void finish_read(const StorageReadOp& read);
  void complete(Completion completion);
  bool in_some_sequence(PageId page, std::uint32_t position) const;
  Content truth(RequestId id, const std::vector<TokenId>& tokens, std::uint32_t page) const;
  void verify_explanation(RequestId id, const std::vector<TokenId>& prompt);

  WorldOptions options_;
  Random random_;
  CacheCore core_;
  TimePoint now_{std::chrono::seconds(1)};
  std::map<RequestId, std::vector<TokenId>> prompts_;
  std::map<RequestId, std::string> spaces_;  // names no two namespaces alike
  std::deque<PlanOp> device_queue_;          // in order
  std::vector<PlanOp> storage_queue_;        // in any order
  std::vector<Completion> completions_;
  std::vector<Scribble> scribbles_;
  std::map<std::uint32_t, Content> device_;  // by page index
  std::map<std::uint32_t, Content> host_;
  std::map<PageKey, Content> storage_;
  std::vector<PageKey> stored_order_;
  std::set<std::uint32_t> failing_writes_;
  std::uint32_t writes_ = 0;
  std::map<std::int32_t, Sequence> sequences_;
  std::vector<std::string> violations_;
  Explanation last_explanation_;
};

}  // namespace hitide
