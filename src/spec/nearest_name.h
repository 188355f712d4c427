// The known name that a misspelt one was probably meant to be.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace hitide {

// Letters to insert, remove, exchange, or swap with their neighbour until `a` is `b`. Dashes and
// underscores are the same letter, as are large and small ones.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `names`, the first of equals, where that is near enough for a slip: a third of the
// letters, at most 4. Else empty.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> names);

// "; did you mean NAME?", or nothing where no name is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> names);

}  // namespace hitide
