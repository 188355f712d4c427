// Arguments from the option table: all of `hitide serve`, some of other commands.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace hitide::cli {

// Option and value, as given; the values are not looked at.
using GivenOptions = std::vector<std::pair<std::string, std::string>>;

// Adds an option for each row, or for those `names` alone; what is given is collected.
std::shared_ptr<GivenOptions> add_table_options(CLI::App& command,
                                                std::span<const std::string_view> names = {});

}  // namespace hitide::cli
