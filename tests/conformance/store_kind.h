// Which store a conformance suite runs over.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include <hitide/object_store.h>

namespace hitide {

struct StoreUnderTest {
  std::shared_ptr<void> surroundings;  // a directory, a server; outlives the store
  std::unique_ptr<ObjectStore> store;
};

struct StoreKind {
  std::string name;
  // An empty store with room for 4 MiB of objects at least.
  std::function<StoreUnderTest()> open;
  bool keeps = true;  // false: every object is evicted at once
  friend std::ostream& operator<<(std::ostream& out, const StoreKind& kind) {
    return out << kind.name;
  }
};

}  // namespace hitide
