// Registration: which pools can be handed to a store's zero-copy interface, and what becomes of
// those that cannot. One rule for every pool, asked before any attempt; docs/registration.md.
//
//   PoolMemory + client --rule--> verdict, reason --> path --> attempt --> PoolRegistration
//
// Threading: values and pure functions, but for check_registration(), which blocks for seconds: it
// opens a store and moves bytes, and may start programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/options.h>
#include <hitide/result.h>

namespace hitide {

// X(name, meaning): the one place that lists the verdicts.
#define HITIDE_REGISTRATION_VERDICTS(X)                                                         \
  X(ok, "the client takes this memory")                                                         \
  X(logical_no_buffer, "the pool owns page ids and no bytes; its pages are markers in storage") \
  X(empty_buffer, "the pool should have bytes and has none")                                    \
  X(not_shareable, "private memory that the client, in another process, cannot map")            \
  X(outside_store_segment, "the memory lies in no segment that the thin client handed out")     \
  X(partial_segment, "a part of a segment; the thin client takes whole ones only")              \
  X(overlaps_registered, "overlaps memory that is registered, without being the same region")   \
  X(unaligned, "address or length is no multiple of what the client demands")                   \
  X(layout_unsupported, "a foreign pool whose pages the store cannot take as they lie")         \
  X(no_buffer_side_pools_only, "no bytes of its own: all of them travel in side pools")         \
  X(adoption_failed, "the thin client could not be made to take over this memory")              \
  X(register_failed, "the client was asked to register the memory and refused")                 \
  X(client_down, "the store does not answer")                                                   \
  X(transport_unavailable, "the chosen transport cannot work on this machine")

enum class RegistrationVerdict : std::uint8_t {
#define HITIDE_X(name, meaning) name,
  HITIDE_REGISTRATION_VERDICTS(HITIDE_X)
#undef HITIDE_X
};
std::string_view to_string(RegistrationVerdict verdict);
std::string_view meaning(RegistrationVerdict verdict);

// How the pages of a pool travel to and from storage.
enum class RegistrationPath : std::uint8_t {
  zero_copy,     // from where they lie
  staged,        // through bounce memory: slower, still right
  markers_only,  // a logical pool: small records, one a page
  none,          // nothing of its own travels
  off,           // this pool has no L3
};
std::string_view to_string(RegistrationPath path);

std::string_view to_string(ClientKind kind);

// Who handed out a pool's memory.
enum class AllocatorKind : std::uint8_t {
  none,     // nobody said
  mmap,     // private anonymous memory
  shm,      // memfd segments, which another process may map
  store,    // segments that the store client handed out
  unknown,  // somebody HiTide does not know
};
std::string_view to_string(AllocatorKind kind);
// The kind of that name; none for "", unknown for any other word.
AllocatorKind allocator_kind(std::string_view name);

// A pool as the rule sees it. Being logical is declared here, never guessed from a missing buffer.
struct PoolMemory {
  std::string pool = {};
  bool required = true;  // false: may lose its L3 while the others go on
  bool logical = false;
  bool side_pools_only = false;  // not logical, no bytes of its own: all travel in side pools
  bool layout_supported = true;  // false: a foreign layout that the store cannot take
  bool in_use = false;           // pages are owned: its memory cannot be exchanged any more
  AllocatorKind allocator = AllocatorKind::none;  // of a decorator: what it wraps
  bool whole_segments = true;  // false: some region is only a part of an allocator's segment
  std::vector<MemoryRegion> regions = {};

  std::uint64_t bytes() const;
};

// What came of one pool. In JSON by these names, enumerators by their spelling.
struct PoolRegistration {
  std::string pool = {};
  std::uint64_t bytes = 0;
  bool required = true;
  AllocatorKind allocator = AllocatorKind::none;
  ClientKind client = ClientKind::local;
  RegistrationVerdict verdict = RegistrationVerdict::ok;
  RegistrationPath path = RegistrationPath::off;
  std::string reason = {};    // what holds for exactly this pool: sizes, codes, who is in the way
  std::string advice = {};    // what to change; empty where there is nothing to gain
  std::string measured = {};  // what trying it took, where it was tried

  bool on() const { return path != RegistrationPath::off; }
};

// True while any pool has bytes in storage. False: L3 is off for the model.
bool storage_on(std::span<const PoolRegistration> pools);
// The table that people read: a headline, one line a pool, then reasons and advice.
std::string registration_text(std::span<const PoolRegistration> pools);
// The same as a JSON list of objects.
std::string registration_json(std::span<const PoolRegistration> pools);

// Pools to try a store with.
struct RegistrationCheck {
  struct PoolAllocator {
    std::string pool;
    AllocatorKind kind = AllocatorKind::shm;
  };
  ModelSpec model = {};
  std::uint32_t pages = 16;                         // of each pool with bytes
  AllocatorKind allocator = AllocatorKind::shm;     // mmap, shm or store
  std::vector<PoolAllocator> pool_allocators = {};  // of single pools; wins
  bool staging_allowed = true;
  // mooncake: with a store of its own on this machine, over TCP, that is stopped afterwards: a
  // master, and a daemon (standalone) or an owner. What the options say of addresses is not used.
  bool start_store = false;
};
// Builds the pools, opens the store, registers them with it as a cache would, moves pages of every
// pool that is on to the store and back, and lets go of all of it again: one row a pool. A store
// that cannot be opened is a verdict. invalid_argument: a model that does not validate, an unknown
// pool, an allocator that no pool can have here. resource_exhausted: no memory for the pools.
// failed_precondition, unavailable: the store of its own does not start.
Result<std::vector<PoolRegistration>> check_registration(const RegistrationCheck& check,
                                                         const StorageOptions& storage);

// The field's words over the rule. False forbids zero-copy alone; staging stays allowed.
// store and shm: true; mmap, none, unknown: false.
bool is_mooncake_compatible(AllocatorKind allocator);
// False for a logical pool, else its allocator's answer.
bool is_mooncake_registerable(const PoolMemory& pool);
bool is_logical_anchor(const PoolMemory& pool);
// A group answers for its anchor, which comes first; an empty group has none.
bool is_logical_anchor(std::span<const PoolMemory> group);
bool is_logical_anchor(const ModelSpec& model);

}  // namespace hitide
