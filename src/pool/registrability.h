// The rule: can a pool be handed to a store's zero-copy interface? Asked before any attempt, for
// the pools at attach and for those that come later. Pure functions; no call fails or throws.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <hitide/registration.h>

#include "spec/registration.h"

namespace hitide {

struct Registrability {
  RegistrationVerdict verdict = RegistrationVerdict::ok;
  std::string reason;  // empty for a plain ok
};

// `registered`: what the client has registered now. A region among them is ok again (counted); one
// that overlaps them otherwise is not. Cost: regions x registered.
//
// What is asked, in order: the client's state, what the pool declares, whether there are bytes, how
// they lie, whose memory it is, what is in the way.
Registrability registrability(const PoolMemory& pool, const ClientCapabilities& client,
                              std::span<const std::span<std::byte>> registered);

struct RegistrationRules {
  bool staging_allowed = true;
};

// Verdict, path, reason and advice of each pool by itself, in order. Regions of earlier pools of
// the list that will be registered count as registered.
std::vector<PoolRegistration> ask_pools(std::span<const PoolMemory> pools,
                                        const ClientCapabilities& client,
                                        const RegistrationRules& rules,
                                        std::span<const std::span<std::byte>> registered);

// ask_pools(), then settle_registrations(): what will hold if every attempt succeeds.
std::vector<PoolRegistration> plan_registration(
    std::span<const PoolMemory> pools, const ClientCapabilities& client,
    const RegistrationRules& rules, std::span<const std::span<std::byte>> registered = {});

// What one pool's end means for the others: a required pool that is off turns all of them off, as
// restoring without it would be wrong; an optional one concerns nobody else. Markers without any
// data pool that is on are off too. Verdicts stay; paths and reasons change. Idempotent.
void settle_registrations(std::span<PoolRegistration> pools);

}  // namespace hitide
