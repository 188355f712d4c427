// Flags of SGLang's launch line that are not in the option table: which are taken without effect,
// because they are the engine's and llama.cpp has its own ways, and which are refused, because a
// server without them would not be what was asked for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/result.h>

namespace hitide {

// Names of the flags among `arguments`, each once and in order; their values are taken with them.
// Every argument must belong to such a flag. invalid_argument: a flag that is refused or unknown
// (with the nearest known name), a value that is missing, or one that nothing asked for.
Result<std::vector<std::string>> take_engine_flags(std::span<const std::string> arguments);

// invalid_argument for a flag that is not in the option table: refused, or no such option, with the
// nearest known name.
Status unknown_flag(std::string_view name);

// Names that are taken without effect, and those that are refused.
std::vector<std::string_view> accepted_engine_flags();
std::vector<std::string_view> refused_engine_flags();

}  // namespace hitide
