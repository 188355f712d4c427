// What the registration rule is told of a store's client: the one place that turns what opening a
// store answered into it. Used by the cache at start and by check_registration().
#pragma once

#include <memory>

#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/options.h>
#include <hitide/result.h>

#include "spec/registration.h"

namespace hitide {

struct OpenedStore {
  std::unique_ptr<ObjectStore> store;  // null: it could not be opened
  ClientCapabilities client;           // not reachable: `store`, if any, may become so later
  Status status;                       // why there is no store, or why it does not answer yet
};

// Opens options.backend and waits for its first answer until `deadline` at most. Never fails: a
// wrong option, a missing package, a transport that cannot work here and a store that is down are
// all in the result. Where `store` is set and the client is not reachable, ask
// store->wait_until_ready() again later. `ranks`: of several, each has a file store of its own.
OpenedStore open_store_client(const StorageOptions& options, TimePoint deadline,
                              const RankGeometry& ranks = {});

// The same for a store that is open.
OpenedStore store_client(std::unique_ptr<ObjectStore> store, TimePoint deadline);

// What is known of the client of a store that answers.
ClientCapabilities client_of(const ObjectStore& store);

}  // namespace hitide
