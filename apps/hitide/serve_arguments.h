// Arguments of `hitide serve` from the option table.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace hitide::cli {

// Option and value, as given; the values are not looked at.
using GivenOptions = std::vector<std::pair<std::string, std::string>>;

// Adds an option for each row; what is given is collected.
std::shared_ptr<GivenOptions> add_table_options(CLI::App& command);

}  // namespace hitide::cli
