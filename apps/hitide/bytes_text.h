// Sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace hitide::cli {

// "0 B", "1.5 KiB", "12.0 GiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace hitide::cli
