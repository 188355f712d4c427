#include "spec/registration.h"

#include <algorithm>

#include <fmt/format.h>

namespace hitide {
namespace {

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string cost_text(const PoolRegistration& pool) {
  const std::string cost(cost_of(pool.path));
  return pool.measured.empty() ? cost : cost + "; " + pool.measured;
}

}  // namespace

std::string_view to_string(RegistrationVerdict verdict) {
  switch (verdict) {
#define HITIDE_X(name, text)      \
  case RegistrationVerdict::name: \
    return #name;
    HITIDE_REGISTRATION_VERDICTS(HITIDE_X)
#undef HITIDE_X
  }
  return "unknown";
}

std::string_view meaning(RegistrationVerdict verdict) {
  switch (verdict) {
#define HITIDE_X(name, text)      \
  case RegistrationVerdict::name: \
    return text;
    HITIDE_REGISTRATION_VERDICTS(HITIDE_X)
#undef HITIDE_X
  }
  return {};
}

std::string_view to_string(RegistrationPath path) {
  switch (path) {
    case RegistrationPath::zero_copy:
      return "zero_copy";
    case RegistrationPath::staged:
      return "staged";
    case RegistrationPath::markers_only:
      return "markers_only";
    case RegistrationPath::none:
      return "none";
    case RegistrationPath::off:
      return "off";
  }
  return "unknown";
}

std::string_view to_string(ClientKind kind) {
  switch (kind) {
    case ClientKind::local:
      return "local";
    case ClientKind::embedded:
      return "embedded";
    case ClientKind::standalone:
      return "standalone";
  }
  return "unknown";
}

std::string_view to_string(AllocatorKind kind) {
  switch (kind) {
    case AllocatorKind::none:
      return "none";
    case AllocatorKind::mmap:
      return "mmap";
    case AllocatorKind::shm:
      return "shm";
    case AllocatorKind::store:
      return "store";
    case AllocatorKind::unknown:
      return "unknown";
  }
  return "unknown";
}

AllocatorKind allocator_kind(std::string_view name) {
  if (name.empty() || name == "none") return AllocatorKind::none;
  for (const AllocatorKind kind : {AllocatorKind::mmap, AllocatorKind::shm, AllocatorKind::store}) {
    if (name == to_string(kind)) return kind;
  }
  return AllocatorKind::unknown;
}

std::uint64_t PoolMemory::bytes() const {
  std::uint64_t sum = 0;
  for (const MemoryRegion& region : regions) sum += region.bytes.size();
  return sum;
}

ClientCapabilities client_of(const StoreCapabilities& store, std::uint64_t memory_available) {
  ClientCapabilities client;
  client.kind = store.client;
  client.adoption_bytes_max = memory_available;
  return client;
}

RegistrationPath path_of(RegistrationVerdict verdict, bool staging_allowed) {
  switch (verdict) {
    case RegistrationVerdict::ok:
      return RegistrationPath::zero_copy;
    case RegistrationVerdict::logical_no_buffer:
      return RegistrationPath::markers_only;
    case RegistrationVerdict::no_buffer_side_pools_only:
      return RegistrationPath::none;
    case RegistrationVerdict::empty_buffer:
    case RegistrationVerdict::client_down:
    case RegistrationVerdict::transport_unavailable:
      return RegistrationPath::off;
    case RegistrationVerdict::not_shareable:
    case RegistrationVerdict::outside_store_segment:
    case RegistrationVerdict::partial_segment:
    case RegistrationVerdict::overlaps_registered:
    case RegistrationVerdict::unaligned:
    case RegistrationVerdict::layout_unsupported:
    case RegistrationVerdict::adoption_failed:
    case RegistrationVerdict::register_failed:
      break;
  }
  return staging_allowed ? RegistrationPath::staged : RegistrationPath::off;
}

std::string_view cost_of(RegistrationPath path) {
  switch (path) {
    case RegistrationPath::zero_copy:
      return "no copy";
    case RegistrationPath::staged:
      return "one more copy of each page, both ways";
    case RegistrationPath::markers_only:
      return "a small record for each page";
    case RegistrationPath::none:
      return "nothing";
    case RegistrationPath::off:
      return "no L3";
  }
  return {};
}

std::string advice_for(const PoolRegistration& pool, bool staging_allowed) {
  std::string advice;
  switch (pool.verdict) {
    case RegistrationVerdict::ok:
    case RegistrationVerdict::logical_no_buffer:
    case RegistrationVerdict::no_buffer_side_pools_only:
      return {};
    case RegistrationVerdict::empty_buffer:
      return fmt::format("give pool {} memory, or leave it out", pool.pool);
    case RegistrationVerdict::client_down:
      if (pool.client == ClientKind::local)
        return "see the reason: path, permission, or who has it";
      return "start the store, or correct its address (MOONCAKE_MASTER, standalone "
             "MOONCAKE_CLIENT, or "
             "the same keys where the settings come from), or the interpreter (key python); it is "
             "attached as soon as it answers";
    case RegistrationVerdict::transport_unavailable:
      return "set MOONCAKE_PROTOCOL=tcp (`protocol` where the settings come from a file or the "
             "extra "
             "config), or name a device";
    case RegistrationVerdict::not_shareable:
    case RegistrationVerdict::outside_store_segment:
    case RegistrationVerdict::partial_segment:
      advice = fmt::format("--host-allocator {}=shm", pool.pool);
      break;
    case RegistrationVerdict::adoption_failed:
      advice = fmt::format("--host-allocator {}=store, or free memory before the start", pool.pool);
      break;
    case RegistrationVerdict::overlaps_registered:
      advice = fmt::format("give pool {} memory of its own", pool.pool);
      break;
    case RegistrationVerdict::unaligned:
      advice = fmt::format("align the memory of pool {}", pool.pool);
      break;
    case RegistrationVerdict::layout_unsupported:
      advice = fmt::format("choose a page-first layout for pool {}", pool.pool);
      break;
    case RegistrationVerdict::register_failed:
      advice = "look for the code in docs/registration.md";
      break;
  }
  if (!staging_allowed) advice += "; or allow staging (no --no-staging)";
  return advice;
}

bool storage_on(std::span<const PoolRegistration> pools) {
  return std::any_of(pools.begin(), pools.end(), [](const PoolRegistration& pool) {
    return pool.path == RegistrationPath::zero_copy || pool.path == RegistrationPath::staged;
  });
}

std::string registration_text(std::span<const PoolRegistration> pools) {
  std::string text = storage_on(pools) ? "L3 is on\n" : "L3 is off; L1 and L2 go on\n";
  text += fmt::format("{:<15} {:>10}  {:<9} {:<10} {:<25} {}\n", "pool", "size", "allocator",
                      "client", "verdict", "path");
  for (const PoolRegistration& pool : pools) {
    text += fmt::format("{:<15} {:>10}  {:<9} {:<10} {:<25} {}\n", pool.pool,
                        human_bytes(pool.bytes), to_string(pool.allocator), to_string(pool.client),
                        to_string(pool.verdict), to_string(pool.path));
  }
  for (const PoolRegistration& pool : pools) {
    text += fmt::format("{}: costs: {}\n", pool.pool, cost_text(pool));
    if (!pool.reason.empty()) text += fmt::format("{}: because: {}\n", pool.pool, pool.reason);
    if (!pool.advice.empty()) text += fmt::format("{}: change: {}\n", pool.pool, pool.advice);
  }
  return text;
}

std::string registration_json(std::span<const PoolRegistration> pools) {
  std::string json = "[";
  for (const PoolRegistration& pool : pools) {
    if (json.size() > 1) json += ',';
    json += fmt::format(R"({{"pool":{},"bytes":{},"required":{},"allocator":"{}","client":"{}",)"
                        R"("verdict":"{}","path":"{}","reason":{},"cost":{},"advice":{}}})",
                        json_text(pool.pool), pool.bytes, pool.required, to_string(pool.allocator),
                        to_string(pool.client), to_string(pool.verdict), to_string(pool.path),
                        json_text(pool.reason), json_text(cost_text(pool)), json_text(pool.advice));
  }
  return json + "]";
}

}  // namespace hitide
