// What `hitide doctor` says of the machine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <hitide/machine.h>

namespace hitide::cli {

// No line is a problem.
bool machine_fits(std::span<const MachineLine> lines);
// A line each, and what to do under it; or a count, and those lines alone that are not ok.
std::string machine_text(std::span<const MachineLine> lines, bool all);
// A JSON list of subject, state, found, advice.
std::string machine_json(std::span<const MachineLine> lines);

}  // namespace hitide::cli
