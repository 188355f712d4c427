#include "runtime/store_client.h"

#include <utility>

#include "pool/host_size.h"
#include "storage/mooncake/transport.h"
#include "storage/registry.h"

namespace hitide {
namespace {

ClientKind kind_of(const StorageOptions& options) {
  if (options.backend != "mooncake") return ClientKind::local;
  return options.mooncake.standalone_storage ? ClientKind::standalone : ClientKind::embedded;
}

}  // namespace

ClientCapabilities client_of(const ObjectStore& store) {
  return client_of(store.capabilities(), available_memory().value_or(UINT64_MAX));
}

OpenedStore store_client(std::unique_ptr<ObjectStore> store, TimePoint deadline) {
  OpenedStore opened;
  opened.store = std::move(store);
  opened.status = opened.store->wait_until_ready(deadline);
  opened.client = client_of(*opened.store);
  opened.client.reachable = opened.status.ok();
  if (!opened.status.ok()) opened.client.detail = opened.status.message();
  return opened;
}

OpenedStore open_store_client(const StorageOptions& options, TimePoint deadline,
                              const RankGeometry& ranks) {
  OpenedStore opened;
  opened.client.kind = kind_of(options);
  if (options.backend == "mooncake") {
    opened.status = check_transport(options.mooncake);
    opened.client.transport_available = opened.status.ok();
  }
  if (opened.status.ok()) {
    Result<std::unique_ptr<ObjectStore>> store = open_object_store(options, ranks);
    if (store.ok()) return store_client(std::move(store).value(), deadline);
    opened.status = store.status();
    opened.client.reachable = false;
    opened.client.retried = false;
  }
  opened.client.detail = opened.status.message();
  return opened;
}

}  // namespace hitide
