// Text to numbers and sizes, one parser for flags and configuration keys. The messages say what was
// given and what is accepted; the caller puts the option's name in front.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <hitide/result.h>

namespace hitide {

// A whole decimal number in [least, most]. invalid_argument otherwise.
Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t least, std::uint64_t most);

// A finite number in [least, most]. invalid_argument otherwise.
Result<double> parse_number(std::string_view text, double least, double most);

// A size in bytes: a number >= 0, then nothing (`bare_unit` bytes each) or a unit. kb, mb, gb, tb
// and k, m, g, t are powers of 1000, kib, mib, gib, tib powers of 1024, b is one byte; upper or
// lower case, spaces around the parts. invalid_argument when it is anything else, negative, or does
// not fit 63 bits.
Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t bare_unit);

// The shortest of "0", "1.5 GB", "64 GiB" that is exact, else plain bytes.
std::string format_bytes(std::uint64_t bytes);

}  // namespace hitide
