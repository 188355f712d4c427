// MooncakeStore: objects in a Mooncake store, through an agent process (docs/design/
// mooncake_agent.md).
//
// Buffers that lie in registered shared memory, each object's next to each other, are moved by the
// agent without a copy; all others pass through bounce memory of bounded size.
//
// Slack past a deadline: a call that the client has begun is not cut off by the caller's deadline
// but by its own limit (call_limit and more by its bytes), after which the agent is killed and the
// call's items answer deadline_exceeded; items of a later batch of the same call are not begun
// once the deadline is up. Whatever the agent had begun for others ends as unavailable then. All
// buffers are free when a call returns.
//
// While there is no agent, or it could not reach the store, calls answer unavailable at once;
// another agent is started by itself.
//
// Standalone mode: a daemon moves the bytes, and goes on when our agent is gone. Outcomes of calls
// whose agent ended say in buffers_busy_until that the daemon may still touch their buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/object_store.h>
#include <hitide/result.h>

#include "base/mutex.h"
#include "spec/mooncake_options.h"
#include "storage/call_gate.h"
#include "storage/mooncake/agent_supervisor.h"
#include "storage/mooncake/bounce.h"
#include "storage/mooncake/client_memory.h"
#include "storage/mooncake/key_guard.h"
#include "storage/mooncake/owner_process.h"
#include "storage/mooncake/region_table.h"

namespace hitide {

struct MooncakeCounts {
  std::uint64_t agent_starts = 0;
  std::uint64_t zero_copy_items = 0;
  std::uint64_t staged_items = 0;
  // Calls of the client that were answered: a batch is one, unless it is too large for a frame.
  std::uint64_t exists_calls = 0;
  std::uint64_t get_calls = 0;
  std::uint64_t put_calls = 0;
  std::uint64_t regions_refused = 0;  // registered, but copied: this agent could not map them
};

class MooncakeStore final : public ObjectStore {
 public:
  // Waits for the first try to reach the store, start_limit at most; a store that is down is
  // opened all the same and tried again. invalid_argument: the options. failed_precondition: the
  // interpreter or the package is missing, with the line that installs it; rdma without a device.
  // resource_exhausted: no shared memory or descriptors.
  static Result<std::unique_ptr<MooncakeStore>> open(const MooncakeOptions& options);
  ~MooncakeStore() override;

  StoreCapabilities capabilities() const override;
  CallOutcome exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  CallOutcome get(std::span<const GetItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  CallOutcome put(std::span<const PutItem> items, std::span<ItemResult> out,
                  const CallOptions& options) override;
  // Forced: also objects that others hold a lease on.
  CallOutcome remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                     const CallOptions& options) override;
  // Objects under a lease go too. Nobody of this process may read or write one meanwhile: the store
  // would give its space to others under their hands.
  Result<std::uint64_t> remove_prefix(std::string_view prefix, const CallOptions& options) override;
  // ok: the agent has mapped the region, and in standalone mode has had it adopted and tested; so
  // has every later agent, or it is copied for that agent's life, which is warned of and counted.
  // Else the region is not kept: failed_precondition: private memory; invalid_argument: 0 bytes, an
  // overlap, an odd offset, and in standalone mode a part of a file; data_loss: adopted, it did not
  // show the daemon what it shows us; resource_exhausted: too little free memory to adopt it;
  // unavailable: the client refused, with its code, or there is no agent, which is waited for
  // call_limit at most.
  Status register_memory(const MemoryRegion& region) override;
  Status unregister_memory(std::span<std::byte> bytes) override;
  // Embedded: a sealed memory file. Standalone: a segment of the thin client's; it outlives the
  // agent that handed it out, and a later one adopts it. Waits for an agent as register_memory().
  Result<MemoryRegion> allocate_memory(const std::string& name, std::uint64_t bytes) override;
  // Unregister it first.
  void release_memory(std::span<std::byte> bytes) override;
  // objects, bytes_used, bytes_limit and evicted_objects are those of the whole store, as its
  // master told last; 0 where it was never reached.
  StoreStats stats() const override;
  Status health() const override;
  Status close(TimePoint deadline) override;

  // ok when calls can be made now. Else why not.
  Status wait_until_ready(TimePoint deadline) override;
  MooncakeCounts counts() const;
  // Process id of the agent, or -1: for tests and diagnosis.
  int agent_pid() const;
  // The process that owns global_segment_size bytes of the store, or -1; and whether it does so
  // now.
  int owner_pid() const { return owner_ ? owner_->pid() : -1; }
  bool owner_mounted() const { return owner_ && owner_->mounted(); }

 private:
  struct TestedRegion;
  struct Work;  // one item of a get or put on its way
  template <typename Item>
  struct Call;  // one get or put

  explicit MooncakeStore(const MooncakeOptions& options);
  ChildCommand python_command(std::vector<std::string> arguments) const;
  AgentConfig agent_config() const;
  void start_owner();
  Status on_agent_start(AgentSession& session);

  // Memory (mooncake_memory.cc).
  Status map_in_agent(AgentSession& session, std::uint32_t region, const MemoryRegion& memory);
  Status self_test(AgentSession& session, std::uint32_t region, const MemoryRegion& memory);
  Status test_once(AgentSession& session, const TestedRegion& tested, std::uint64_t size,
                   bool& changed);
  Result<std::vector<std::int64_t>> move_tested(AgentSession& session, AgentCall kind,
                                                std::span<const FrameItem> items);
  void unmap_in_agent(AgentSession& session, std::uint32_t region);
  Result<std::shared_ptr<AgentSession>> session_soon() const;
  // What an agent may take longer for memory of this size than for another control call.
  Duration adopt_limit(std::uint64_t bytes) const;

  std::string stored_key(std::string_view key) const { return key_prefix_ + std::string(key); }
  // Of the store's, behind the tag as keys are; empty where groups are not wanted.
  std::string stored_group(std::string_view group) const {
    return group.empty() || !options_.group_semantics ? std::string() : stored_key(group);
  }
  Duration limit_for(std::uint64_t bytes) const;

  // get and put (mooncake_moves.cc).
  template <typename Item>
  CallOutcome move(AgentCall kind, std::span<const Item> items, std::span<ItemResult> out,
                   const CallOptions& options);
  template <typename Item>
  std::vector<Work> plan(std::span<const Item> items, std::span<ItemResult> out,
                         std::vector<std::size_t>& empty) const;
  template <typename Item>
  Status move_works(const Call<Item>& call, std::span<Work> works);
  template <typename Item>
  Status move_batch(const Call<Item>& call, std::span<Work> batch);
  template <typename Item>
  Status exchange(const Call<Item>& call, std::span<const Work> batch, std::uint64_t staged_at);
  // When the buffers of a call that has ended so are free.
  TimePoint busy_until(const AgentSession& session, const Status& status) const;
  template <typename Item>
  Status judge_lengths(const Call<Item>& call, std::span<const std::size_t> indices);
  std::size_t batch_end(std::span<const Work> works, std::size_t begin) const;
  void count_moves(AgentCall kind, std::span<const ItemResult> out);

  // exists and remove.
  CallOutcome ask(AgentCall kind, std::span<const std::string_view> keys, std::span<ItemResult> out,
                  const CallOptions& options);
  Status ask_batches(AgentSession& session, AgentCall kind, std::span<const std::string> keys,
                     std::span<ItemResult* const> results, const CallOptions& options);

  const MooncakeOptions options_;
  const std::string key_prefix_;
  mutable CallGate gate_;
  KeyGuard keys_;
  RegionTable regions_;
  ClientMemory memory_;
  std::unique_ptr<BounceMemory> bounce_;
  std::unique_ptr<AgentSupervisor> agent_;  // set once in open()
  std::unique_ptr<OwnerProcess> owner_;     // set once in open(), where there is a segment

  mutable Mutex stats_mutex_;
  mutable StoreStats stats_ HITIDE_GUARDED_BY(stats_mutex_);
  MooncakeCounts counts_ HITIDE_GUARDED_BY(stats_mutex_);
};

}  // namespace hitide
