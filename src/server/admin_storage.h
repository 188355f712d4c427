// Storage that operators attach, detach and clear while requests are served: the addresses
// /hicache/storage-backend and /hicache/storage-backend/clear, in SGLang's shapes. docs/server.md.
//
// Threading: any thread. Changes are made one at a time, and wait for I/O within limits.
#pragma once

#include <string>

#include "base/mutex.h"
#include "engine/engine.h"
#include "server/reply.h"
#include "spec/storage_config.h"

namespace hitide {

// What the server was launched with.
struct StorageSettings {
  ServeOptions launched;
  Environment environment;  // where Mooncake's settings may come from
  std::string
      default_file_path;  // of the backend file where no path is given; empty: none is known
};

class StorageAdmin {
 public:
  // `engine` must outlive it.
  StorageAdmin(Engine& engine, StorageSettings settings);

  // {"hicache_storage_backend", "hicache_storage_backend_extra_config",
  // "hicache_storage_prefetch_policy", "hicache_write_policy", "status", "detail"}; null for what
  // there is not.
  Reply show() const;
  // body: {"hicache_storage_backend", and optionally "hicache_storage_backend_extra_config_json",
  // "hicache_storage_prefetch_policy", "hicache_write_policy"}, all text. Everything is checked
  // before anything is changed; 400 says what is wrong, or why the store cannot be attached.
  Reply attach(const std::string& body);
  Reply detach();
  // {"success", "message", "removed_objects"}
  Reply clear();

 private:
  // invalid_argument names the field, or the key within it.
  Result<ServeOptions> wanted(const std::string& body) const;
  bool is_attached() const;

  Engine& engine_;
  const StorageSettings settings_;
  Mutex change_mutex_;  // held while something is changed; taken before mutex_
  mutable Mutex mutex_;
  ServeOptions current_ HITIDE_GUARDED_BY(mutex_);
};

}  // namespace hitide
