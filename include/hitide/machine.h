// What this machine has for a cache, and what to do about it: `hitide doctor`.
//
// Threading: free functions, safe from any thread. They change nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/options.h>

namespace hitide {

// X(name, meaning)
#define HITIDE_MACHINE_STATES(X)                       \
  X(ok, "as it should be")                             \
  X(advice, "it works, and something could be better") \
  X(problem, "what was asked for does not work like this")

enum class MachineState : std::uint8_t {
#define HITIDE_X(name, meaning) name,
  HITIDE_MACHINE_STATES(HITIDE_X)
#undef HITIDE_X
};
std::string_view to_string(MachineState state);

struct MachineLine {
  std::string subject = {};  // "memory", "huge_pages", ...; docs/cli.md has them all
  MachineState state = MachineState::ok;
  std::string found = {};   // what was looked at, with its numbers
  std::string advice = {};  // what to do; empty where the state is ok
};

struct MachineCheck {
  HostOptions host = {};
  StorageOptions storage = {};  // a file store without a path: nothing is said of disks
  std::uint32_t threads = 0;    // that compute; 0: one less than the processors
};

// One line a subject, in a fixed order. Cost: a few files and one look at the disk; with the
// backend mooncake the interpreter is started once, which takes up to seconds.
std::vector<MachineLine> check_machine(const MachineCheck& check);

}  // namespace hitide
