#include "pool/registrability.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

namespace hitide {
namespace {

using Verdict = RegistrationVerdict;
using Registered = std::span<const std::span<std::byte>>;

std::uintptr_t address(std::span<const std::byte> bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data());
}

std::string describe(const MemoryRegion& region) {
  return fmt::format("{} bytes at {:#x}", region.bytes.size(), address(region.bytes));
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() == b.data() && a.size() == b.size();
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return address(a) < address(b) + b.size() && address(b) < address(a) + a.size();
}

std::string whose(const PoolMemory& pool) {
  if (pool.allocator == AllocatorKind::none) return "memory of no named allocator";
  if (pool.allocator == AllocatorKind::unknown) return "memory of an unknown allocator";
  return fmt::format("{} memory", to_string(pool.allocator));
}

const MemoryRegion* first_private(const PoolMemory& pool) {
  for (const MemoryRegion& region : pool.regions) {
    if (region.fd < 0) return &region;
  }
  return nullptr;
}

// A real client: any memory that its process sees, or can map.
Registrability ask_embedded(const PoolMemory& pool, const ClientCapabilities& client) {
  if (client.sees_private_memory) return {};
  const MemoryRegion* hidden = first_private(pool);
  if (is_mooncake_compatible(pool.allocator) && hidden == nullptr) return {};
  const MemoryRegion& named = hidden != nullptr ? *hidden : pool.regions.front();
  return {Verdict::not_shareable,
          fmt::format("{}, {}: the client lives in another process and cannot map it", whose(pool),
                      describe(named))};
}

// A thin client: whole segments that it handed out, or memfd segments that it adopts.
Registrability ask_standalone(const PoolMemory& pool, const ClientCapabilities& client) {
  const auto largest = std::max_element(
      pool.regions.begin(), pool.regions.end(),
      [](const auto& a, const auto& b) { return a.bytes.size() < b.bytes.size(); });
  if (!is_mooncake_compatible(pool.allocator)) {
    return {Verdict::outside_store_segment,
            fmt::format("{}, {}: in no segment of the thin client", whose(pool),
                        describe(pool.regions.front()))};
  }
  if (!pool.whole_segments) {
    return {Verdict::partial_segment,
            fmt::format("{}, {}: only a part of a segment; the thin client takes whole ones",
                        whose(pool), describe(pool.regions.front()))};
  }
  if (pool.allocator == AllocatorKind::store) return {};
  if (const MemoryRegion* hidden = first_private(pool)) {
    return {Verdict::outside_store_segment,
            fmt::format("{}, {}: has no descriptor by which the thin client could adopt it",
                        whose(pool), describe(*hidden))};
  }
  if (!client.adopts) {
    return {Verdict::adoption_failed, "this client cannot adopt memory of ours"};
  }
  if (largest->bytes.size() > client.adoption_bytes_max) {
    return {Verdict::adoption_failed,
            fmt::format("too little free memory to adopt: a segment of {} bytes, {} are free",
                        largest->bytes.size(), client.adoption_bytes_max)};
  }
  return {Verdict::ok, "adopted"};
}

Registrability ask_place(const PoolMemory& pool, const ClientCapabilities& client,
                         Registered registered) {
  bool again = false;
  std::vector<std::span<std::byte>> own;  // regions of this pool that have been looked at
  for (const MemoryRegion& region : pool.regions) {
    for (const std::span<std::byte> other : own) {
      if (overlap(region.bytes, other)) {
        return {Verdict::overlaps_registered,
                fmt::format("{}: overlaps another region of the pool", describe(region))};
      }
    }
    own.push_back(region.bytes);
    if (address(region.bytes) % client.alignment != 0 ||
        region.bytes.size() % client.alignment != 0) {
      return {Verdict::unaligned,
              fmt::format("{}: not a multiple of {}", describe(region), client.alignment)};
    }
    for (const std::span<std::byte> other : registered) {
      if (same(region.bytes, other)) {
        again = true;
      } else if (overlap(region.bytes, other)) {
        return {Verdict::overlaps_registered,
                fmt::format("{}: overlaps {}, which are registered", describe(region),
                            describe({.bytes = other}))};
      }
    }
  }
  return {Verdict::ok, again ? "registered already; counted" : ""};
}

bool is_null(const MemoryRegion& region) {
  return region.bytes.data() == nullptr && !region.bytes.empty();
}

}  // namespace

Registrability registrability(const PoolMemory& pool, const ClientCapabilities& client,
                              Registered registered) {
  if (!client.reachable) return {Verdict::client_down, client.detail};
  if (!client.transport_available) return {Verdict::transport_unavailable, client.detail};
  if (pool.logical) return {Verdict::logical_no_buffer, "owns page ids and no bytes"};
  if (pool.side_pools_only) return {Verdict::no_buffer_side_pools_only, "all in side pools"};
  if (pool.bytes() == 0 || std::any_of(pool.regions.begin(), pool.regions.end(), is_null)) {
    return {Verdict::empty_buffer, "a pool that is not logical and has no bytes"};
  }
  if (!pool.layout_supported) {
    return {Verdict::layout_unsupported, "the bytes of a page do not lie as the store needs them"};
  }
  if (client.kind == ClientKind::local) return {};
  Registrability answer = client.kind == ClientKind::embedded ? ask_embedded(pool, client)
                                                              : ask_standalone(pool, client);
  if (answer.verdict != Verdict::ok) return answer;
  Registrability place = ask_place(pool, client, registered);
  return place.verdict != Verdict::ok || !place.reason.empty() ? place : answer;
}

std::vector<PoolRegistration> plan_registration(std::span<const PoolMemory> pools,
                                                const ClientCapabilities& client,
                                                const RegistrationRules& rules,
                                                Registered registered) {
  std::vector<PoolRegistration> plan = ask_pools(pools, client, rules, registered);
  settle_registrations(plan);
  return plan;
}

std::vector<PoolRegistration> ask_pools(std::span<const PoolMemory> pools,
                                        const ClientCapabilities& client,
                                        const RegistrationRules& rules, Registered registered) {
  std::vector<std::span<std::byte>> taken(registered.begin(), registered.end());
  std::vector<PoolRegistration> plan;
  for (const PoolMemory& pool : pools) {
    Registrability answer = registrability(pool, client, taken);
    PoolRegistration entry;
    entry.pool = pool.pool;
    entry.bytes = pool.bytes();
    entry.required = pool.required;
    entry.allocator = pool.allocator;
    entry.client = client.kind;
    entry.verdict = answer.verdict;
    entry.reason = std::move(answer.reason);
    entry.path = path_of(entry.verdict, rules.staging_allowed);
    entry.advice = advice_for(entry, rules.staging_allowed);
    if (entry.verdict == RegistrationVerdict::client_down && !client.retried) {
      entry.advice = "mend what the reason says, and start again";
    }
    if (entry.path == RegistrationPath::zero_copy) {
      for (const MemoryRegion& region : pool.regions) taken.push_back(region.bytes);
    }
    plan.push_back(std::move(entry));
  }
  return plan;
}

void settle_registrations(std::span<PoolRegistration> pools) {
  const auto needed_and_off =
      std::find_if(pools.begin(), pools.end(),
                   [](const PoolRegistration& pool) { return pool.required && !pool.on(); });
  std::string why;
  if (needed_and_off != pools.end()) {
    why = fmt::format("L3 is off for the model without its required pool {}", needed_and_off->pool);
  } else if (!storage_on(pools)) {
    why = "no pool with bytes is on";
  } else {
    return;
  }
  for (PoolRegistration& pool : pools) {
    if (!pool.on()) continue;
    pool.path = RegistrationPath::off;
    pool.reason += pool.reason.empty() ? why : "; " + why;
  }
}

bool is_mooncake_compatible(AllocatorKind allocator) {
  return allocator == AllocatorKind::store || allocator == AllocatorKind::shm;
}

bool is_mooncake_registerable(const PoolMemory& pool) {
  return !pool.logical && is_mooncake_compatible(pool.allocator);
}

bool is_logical_anchor(const PoolMemory& pool) { return pool.logical; }

bool is_logical_anchor(std::span<const PoolMemory> group) {
  return !group.empty() && is_logical_anchor(group.front());
}

bool is_logical_anchor(const ModelSpec& model) {
  return !model.pools.empty() && model.anchor().kind == PoolKind::logical;
}

}  // namespace hitide
