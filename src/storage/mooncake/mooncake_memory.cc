// The part of MooncakeStore that shares memory with the agent.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/memory_file.h"
#include "base/random.h"
#include "storage/mooncake/codes.h"
#include "storage/mooncake/mooncake_store.h"
#include "storage/mooncake/store_internal.h"

namespace hitide {
namespace {

constexpr std::uint64_t kTestedBytes = 4096;  // at two places of an adopted region
constexpr int kTestTries = 8;

Status closed_status(std::string_view call) {
  return Status(StatusCode::failed_precondition, fmt::format("{}: the store is closed", call));
}

// How a refusal of the agent or of the client is told to those who register.
Status refusal(std::string_view what, std::int64_t code, std::uint64_t bytes) {
  if (code == kNoMemory) {
    return Status(StatusCode::resource_exhausted,
                  fmt::format("{}: too little free memory: a thin client takes as much as the "
                              "region has, {} bytes, for a moment",
                              what, bytes));
  }
  if (code == kNotAdoptable) {
    return Status(StatusCode::data_loss,
                  fmt::format("{}: the client's segment cannot be exchanged", what));
  }
  return Status(StatusCode::unavailable, fmt::format("{}: the store's client answers {} ({})", what,
                                                     name_of_code(code), code));
}

// Of a control call about memory. The agent's own words are kept.
Status failure(const Status& status) {
  const bool told = status.code() == StatusCode::invalid_argument ||
                    status.code() == StatusCode::failed_precondition;
  return told ? status : Status(StatusCode::unavailable, std::string(status.message()));
}

// The region's bytes through its file: others may be writing to them.
Result<std::vector<std::byte>> read_file_of(const MemoryRegion& memory, std::uint64_t offset,
                                            std::uint64_t size) {
  std::vector<std::byte> bytes(size);
  const ssize_t got =
      ::pread(memory.fd, bytes.data(), size, static_cast<off_t>(memory.fd_offset + offset));
  if (got == static_cast<ssize_t>(size)) return bytes;
  return errno_status(got < 0 ? errno : EIO, "read", "a registered region's file");
}

}  // namespace

struct MooncakeStore::TestedRegion {
  std::uint32_t region = 0;
  const MemoryRegion& memory;
  std::array<std::uint64_t, 2> offsets;
};

Duration MooncakeStore::adopt_limit(std::uint64_t bytes) const {
  if (!options_.standalone_storage) return Duration::zero();
  const double gib = static_cast<double>(bytes) / static_cast<double>(1u << 30);
  return from_seconds(to_seconds(options_.adopt_limit_per_gib) * gib);
}

Status MooncakeStore::on_agent_start(AgentSession& session) {
  const MemoryRegion bounce{.bytes = bounce_->bytes(), .fd = bounce_->fd()};
  HITIDE_RETURN_IF_ERROR(map_in_agent(session, kBounceRegion, bounce));
  regions_.map_all([&](const RegionTable::Region& region) {
    return map_in_agent(session, region.number, region.memory);
  });
  if (session.alive()) return {};
  return Status(StatusCode::unavailable, "the store agent ended: " + session.death());
}

Status MooncakeStore::map_in_agent(AgentSession& session, std::uint32_t region,
                                   const MemoryRegion& memory) {
  const FrameBytes body = encode_memory(region, memory.fd_offset, memory.bytes.size());
  const Result<FrameBytes> answer =
      session.control({.call = AgentCall::add_memory, .body = body, .fd = memory.fd},
                      adopt_limit(memory.bytes.size()));
  if (!answer.ok()) return failure(answer.status());
  HITIDE_ASSIGN_OR_RETURN(const auto codes, decode_results(*answer, 1));
  if (codes[0] != 0) return refusal("registering memory", codes[0], memory.bytes.size());
  if (!options_.standalone_storage) return {};
  Status status = self_test(session, region, memory);
  if (!status.ok()) unmap_in_agent(session, region);
  return status;
}

void MooncakeStore::unmap_in_agent(AgentSession& session, std::uint32_t region) {
  const FrameBytes body = encode_region(region);
  session.control({.call = AgentCall::remove_memory, .body = body}).status().ignore();
}

Result<std::vector<std::int64_t>> MooncakeStore::move_tested(AgentSession& session, AgentCall kind,
                                                             std::span<const FrameItem> items) {
  const FrameBytes body = encode_items(items);
  const Result<FrameBytes> answer =
      session.call(kind == AgentCall::put ? AgentLane::write : AgentLane::read,
                   {.call = kind, .body = body}, kNoDeadline, options_.call_limit);
  if (!answer.ok()) return failure(answer.status());
  return decode_results(*answer, items.size());
}

// An adopted region must show the daemon what it shows us, at both of its ends. Its bytes are only
// read: it may be in use, and then what changes under the test is tested elsewhere. That its first
// content may be zeros, as a segment's is, proves no less: the agent has written other bytes to the
// segment that was exchanged.
Status MooncakeStore::self_test(AgentSession& session, std::uint32_t region,
                                const MemoryRegion& memory) {
  TestedRegion tested{.region = region, .memory = memory, .offsets = {}};
  const std::uint64_t bytes = memory.bytes.size();
  const std::uint64_t size = std::min<std::uint64_t>(bytes, kTestedBytes);
  BounceMemory::Piece pattern;
  tested.offsets = {0, bytes - size};
  if (region == kBounceRegion) {
    // Others may hold the rest of it.
    pattern = bounce_->take(size, kNoDeadline);
    std::fill(pattern.bytes().begin(), pattern.bytes().end(), std::byte{0x5a});
    tested.offsets = {pattern.offset(), pattern.offset()};
  }
  Random random(static_cast<std::uint64_t>(session.process().pid()) << 32 | region);
  for (int tries = 0; tries < kTestTries; ++tries) {
    bool changed = false;
    const Status status = test_once(session, tested, size, changed);
    if (!changed) return status;
    for (std::uint64_t& offset : tested.offsets) offset = random.below(bytes - size + 1);
  }
  return Status(StatusCode::unavailable,
                fmt::format("adopted memory changed under each of {} tests", kTestTries));
}

// `changed`: the bytes were not the same before and after: nothing is known.
Status MooncakeStore::test_once(AgentSession& session, const TestedRegion& tested,
                                std::uint64_t size, bool& changed) {
  constexpr std::size_t kPlaces = std::tuple_size_v<decltype(tested.offsets)>;
  const BounceMemory::Piece read = bounce_->take(kPlaces * size, kNoDeadline);
  std::array<std::string, kPlaces> keys;
  std::array<FrameItem, kPlaces> sources;
  std::array<FrameItem, kPlaces> targets;
  std::array<std::vector<std::byte>, kPlaces> before;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    keys[i] = fmt::format("hitide/adoption/{}/{}/{}/{}", session.process().pid(), tested.region, i,
                          SystemClock::instance().now().time_since_epoch().count());
    sources[i] = {.key = keys[i],
                  .group = {},
                  .region = tested.region,
                  .offset = tested.offsets[i],
                  .bytes = size};
    targets[i] = sources[i];
    targets[i].region = kBounceRegion;
    targets[i].offset = read.offset() + i * size;
    HITIDE_ASSIGN_OR_RETURN(before[i], read_file_of(tested.memory, tested.offsets[i], size));
  }
  std::fill(read.bytes().begin(), read.bytes().end(), std::byte{0xa5});
  HITIDE_ASSIGN_OR_RETURN(const auto put, move_tested(session, AgentCall::put, sources));
  HITIDE_ASSIGN_OR_RETURN(const auto got, move_tested(session, AgentCall::get, targets));
  const std::array<std::string_view, kPlaces> names = {keys[0], keys[1]};
  const FrameBytes body = encode_keys(names);
  session
      .call(AgentLane::write, {.call = AgentCall::remove, .body = body}, kNoDeadline,
            options_.call_limit)
      .status()
      .ignore();
  for (std::size_t i = 0; i < kPlaces; ++i) {
    if (put[i] < 0) return refusal("testing adopted memory with a put", put[i], size);
    if (got[i] < 0) return refusal("testing adopted memory with a get", got[i], size);
    HITIDE_ASSIGN_OR_RETURN(const auto after, read_file_of(tested.memory, tested.offsets[i], size));
    changed = changed || after != before[i];
    const auto seen = read.bytes().subspan(i * size, size);
    const bool same = std::equal(seen.begin(), seen.end(), after.begin(), after.end());
    if (put[i] == 0 && got[i] == static_cast<std::int64_t>(size) && same) continue;
    return Status(StatusCode::data_loss,
                  fmt::format("adopted memory failed its test at byte {}: put {}, get {}, bytes {}",
                              tested.offsets[i], put[i], got[i], same ? "equal" : "differ"));
  }
  return {};
}

Result<std::shared_ptr<AgentSession>> MooncakeStore::session_soon() const {
  const Status ready =
      agent_->wait_until_ready(SystemClock::instance().now() + options_.call_limit);
  if (!ready.ok()) return failure(ready);
  return agent_->session();
}

Status MooncakeStore::register_memory(const MemoryRegion& region) {
  const CallGate::Pass pass(gate_);
  if (!pass) return closed_status("register_memory");
  // Before the table is entered, where a new agent waits to map what it holds.
  const Result<std::shared_ptr<AgentSession>> session = session_soon();
  return regions_.add(region, [&](const RegionTable::Region& added) -> Status {
    if (!session.ok()) return session.status();
    return map_in_agent(**session, added.number, added.memory);
  });
}

Status MooncakeStore::unregister_memory(std::span<std::byte> bytes) {
  const CallGate::Pass pass(gate_);
  if (!pass) return closed_status("unregister_memory");
  return regions_.remove(bytes, [this](std::uint32_t number) -> Status {
    const Result<std::shared_ptr<AgentSession>> session = agent_->session();
    if (!session.ok()) return {};  // gone with the agent that had it
    const FrameBytes body = encode_region(number);
    const Result<FrameBytes> answer =
        (*session)->control({.call = AgentCall::remove_memory, .body = body});
    return answer.ok() || !(*session)->alive() ? Status() : answer.status();
  });
}

Result<MemoryRegion> MooncakeStore::allocate_memory(const std::string& name, std::uint64_t bytes) {
  const CallGate::Pass pass(gate_);
  if (!pass) return closed_status("allocate_memory");
  if (bytes == 0) return Status(StatusCode::invalid_argument, name + ": memory of 0 bytes");
  const std::uint32_t segment = memory_.next_segment();
  if (!options_.standalone_storage) {
    HITIDE_ASSIGN_OR_RETURN(UniqueFd file, create_memory_file("hitide_" + name, bytes));
    return memory_.keep(segment, std::move(file), bytes);
  }
  HITIDE_ASSIGN_OR_RETURN(const std::shared_ptr<AgentSession> session, session_soon());
  const FrameBytes body = encode_segment(segment, bytes);
  UniqueFd file;
  const Result<FrameBytes> answer = session->control(
      {.call = AgentCall::allocate_memory, .body = body, .answer_fd = &file}, adopt_limit(bytes));
  if (!answer.ok()) return failure(answer.status()).with_context(name);
  HITIDE_ASSIGN_OR_RETURN(const auto codes, decode_results(*answer, 1));
  if (codes[0] != 0) return refusal(name, codes[0], bytes);
  struct stat held {};
  if (!file.valid() || ::fstat(file.get(), &held) != 0 ||
      static_cast<std::uint64_t>(held.st_size) != bytes) {
    const FrameBytes region = encode_region(segment);
    session->control({.call = AgentCall::free_memory, .body = region}).status().ignore();
    return Status(StatusCode::unavailable,
                  fmt::format("{}: the store's client was asked for {} bytes and its file has {}",
                              name, bytes, file.valid() ? held.st_size : 0));
  }
  return memory_.keep(segment, std::move(file), bytes);
}

void MooncakeStore::release_memory(std::span<std::byte> bytes) {
  const std::optional<std::uint32_t> segment = memory_.release(bytes);
  const CallGate::Pass pass(gate_);
  if (!segment || !pass || !options_.standalone_storage) return;
  const Result<std::shared_ptr<AgentSession>> session = agent_->session();
  if (!session.ok()) return;
  // An agent that did not hand it out says so, and has nothing to free.
  const FrameBytes body = encode_region(*segment);
  (*session)->control({.call = AgentCall::free_memory, .body = body}).status().ignore();
}

}  // namespace hitide
