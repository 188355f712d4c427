// What the tools that look into a store share: hitide/file_store.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "storage/file/directory.h"
#include "storage/file/segment.h"

namespace hitide {

// What stands in front of a key's first slash; empty where there is none.
constexpr std::string_view namespace_of(std::string_view key) {
  const std::size_t slash = key.find('/');
  return slash == std::string_view::npos ? std::string_view() : key.substr(0, slash);
}

// Namespace and page key; the whole key where it has no second slash.
constexpr std::string_view page_of(std::string_view key) {
  const std::size_t slash = key.find('/');
  return slash == std::string_view::npos ? key : key.substr(0, key.find('/', slash + 1));
}

}  // namespace hitide
