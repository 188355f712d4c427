// What the rule of <hitide/registration.h> knows of a store's client.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <hitide/registration.h>

namespace hitide {

struct ClientCapabilities {
  ClientKind kind = ClientKind::local;
  bool reachable = true;             // false: client_down
  bool retried = true;               // not reachable: asked again by itself; else for good
  bool transport_available = true;   // false: transport_unavailable
  std::string detail = {};           // of what is not reachable or available, for people
  bool sees_private_memory = false;  // embedded: the client runs in this process
  bool adopts = true;                // standalone: memfd segments of ours can be taken over
  // standalone: memory that is free now; adopting a segment takes its size for a moment.
  std::uint64_t adoption_bytes_max = UINT64_MAX;
  std::uint64_t alignment = 1;  // of addresses and lengths, >= 1
};

// What a store says of its client. memory_available: what is free now, for adoption.
ClientCapabilities client_of(const StoreCapabilities& store, std::uint64_t memory_available);

// Where a pool of this verdict goes, by the verdict alone.
RegistrationPath path_of(RegistrationVerdict verdict, bool staging_allowed);

// What a page of a pool on that path costs more than its bytes.
std::string_view cost_of(RegistrationPath path);

// What an operator can change so that the pool comes up one path; empty for verdicts that are as
// good as they get.
std::string advice_for(const PoolRegistration& pool, bool staging_allowed);

}  // namespace hitide
