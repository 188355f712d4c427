// FileStore: removing what begins with a prefix. The index knows hashes and namespaces alone, so
// keys are read from the records; nothing else waits for that.
#include <vector>

#include <fmt/format.h>

#include "storage/file/file_store.h"

namespace hitide {

// Those of namespaces that fit: of all of them only where the prefix is not longer than a name.
std::vector<KeyHash> FileStore::keys_that_may_begin_with(std::string_view prefix) const {
  std::vector<bool> fits;
  {
    const MutexLock lock(mutex_);
    for (const std::string& name : names_) {
      // The one without a name has the keys without a slash, and those of too many namespaces.
      const std::string whole = name + '/';
      fits.push_back(name.empty() || prefix.starts_with(whole) || whole.starts_with(prefix));
    }
  }
  std::vector<KeyHash> keys;
  index_.for_each([&](const IndexEntry& entry) {
    if (entry.space >= fits.size() || fits[entry.space]) keys.push_back(entry.key);
  });
  return keys;
}

Result<std::uint64_t> FileStore::remove_prefix(std::string_view prefix,
                                               const CallOptions& options) {
  if (prefix.empty()) {
    return Status(StatusCode::invalid_argument, "remove_prefix: an empty prefix would be all");
  }
  const CallGate::Pass pass(gate_);
  if (!pass) return Status(StatusCode::failed_precondition, "remove_prefix: the store is closed");
  const std::vector<KeyHash> keys = keys_that_may_begin_with(prefix);
  std::uint64_t removed = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (options.deadline <= SystemClock::instance().now()) {
      return Status(StatusCode::deadline_exceeded,
                    fmt::format("remove_prefix: {} removed, {} of {} objects not looked at",
                                removed, keys.size() - i, keys.size()));
    }
    const std::optional<Located> found = locate(keys[i]);
    if (!found) continue;
    const std::string name = found->file->key_at(found->entry.offset());
    if (!name.starts_with(prefix)) continue;
    const ItemResult result = remove_one(name, options);
    if (result.code != StatusCode::ok) {
      return Status(result.code,
                    fmt::format("remove_prefix: {} removed, then '{}' could not be: {}", removed,
                                name, to_string(result.code)));
    }
    ++removed;
  }
  return removed;
}

}  // namespace hitide
