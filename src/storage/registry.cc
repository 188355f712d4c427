#include "storage/registry.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>

#include <fmt/format.h>

#include "storage/breaker.h"
#include "storage/file/directory.h"
#include "storage/file/file_store.h"
#include "storage/memory/memory_store.h"
#include "storage/mooncake/mooncake_store.h"
#include "storage/null/null_store.h"

namespace hitide {
namespace {

constexpr std::uint64_t kDefaultBytesMost = 64ull << 30;
constexpr std::uint64_t kMemoryDefaultBytes = 1ull << 30;

std::int64_t free_bytes_around(const std::string& directory) {
  const UniqueFd fd(::open(nearest_existing(directory).c_str(), O_PATH | O_CLOEXEC));
  return fd.valid() ? FileSystem::real().free_bytes(fd.get()) : -errno;
}

Result<std::unique_ptr<ObjectStore>> open_file_store(const StorageOptions& options,
                                                     std::uint64_t ranks) {
  FileStoreOptions file;
  file.path = options.path;
  file.bytes_max = options.bytes_max;
  file.segment_bytes = options.segment_bytes;
  file.sync_interval_ms = options.sync_interval_ms;
  file.sync_puts = options.sync_puts;
  if (file.bytes_max == 0 && !file.path.empty()) {
    const std::int64_t free = free_bytes_around(file.path);
    if (free < 0) return errno_status(static_cast<int>(-free), "ask for free space", file.path);
    file.bytes_max =
        default_bytes_max(static_cast<std::uint64_t>(free), disk_bytes(file.path), ranks);
    if (file.bytes_max < kFileStoreBytesLeast) {
      return Status(StatusCode::resource_exhausted,
                    fmt::format("file store in {}: its disk has {} bytes free, a tenth of which is "
                                "less than the {} that a store needs: free space, or give max_size",
                                file.path, free, kFileStoreBytesLeast));
    }
  }
  HITIDE_ASSIGN_OR_RETURN(auto store, FileStore::open(file));
  return std::unique_ptr<ObjectStore>(std::move(store));
}

Result<std::unique_ptr<ObjectStore>> open_memory_store(const StorageOptions& options,
                                                       std::uint64_t ranks) {
  static_cast<void>(ranks);
  const std::uint64_t limit = options.bytes_max == 0 ? kMemoryDefaultBytes : options.bytes_max;
  return std::unique_ptr<ObjectStore>(std::make_unique<MemoryStore>(limit));
}

Result<std::unique_ptr<ObjectStore>> open_null_store(const StorageOptions& options,
                                                     std::uint64_t ranks) {
  static_cast<void>(ranks);
  static_cast<void>(options);
  return std::unique_ptr<ObjectStore>(std::make_unique<NullStore>());
}

Result<std::unique_ptr<ObjectStore>> open_mooncake_store(const StorageOptions& options,
                                                         std::uint64_t ranks) {
  static_cast<void>(ranks);
  HITIDE_ASSIGN_OR_RETURN(auto store, MooncakeStore::open(options.mooncake));
  return std::unique_ptr<ObjectStore>(std::move(store));
}

struct Backend {
  std::string_view name;
  Result<std::unique_ptr<ObjectStore>> (*open)(const StorageOptions& options, std::uint64_t ranks);
};
constexpr Backend kBackends[] = {
    {"file", open_file_store},
    {"memory", open_memory_store},
    {"mooncake", open_mooncake_store},
    {"null", open_null_store},
};

std::uint64_t count_of(const RankGeometry& ranks) {
  return std::uint64_t{ranks.tp_size} * ranks.cp_size * ranks.pp_size * ranks.dp_size;
}

}  // namespace

std::vector<std::string_view> storage_backends() {
  std::vector<std::string_view> names;
  for (const Backend& backend : kBackends) names.push_back(backend.name);
  return names;
}

std::uint64_t default_bytes_max(std::uint64_t disk_free_bytes, std::uint64_t store_used_bytes,
                                std::uint64_t ranks) {
  const std::uint64_t share =
      std::min((disk_free_bytes + store_used_bytes) / 10, kDefaultBytesMost) / ranks;
  return std::max(share, store_used_bytes);
}

// A store that is away costs no call any time.
std::unique_ptr<ObjectStore> guard_store(std::unique_ptr<ObjectStore> store,
                                         const BreakerOptions& options) {
  return std::make_unique<BreakerStore>(std::move(store), options);
}

std::string rank_directory(const std::string& path, const RankGeometry& ranks) {
  if (count_of(ranks) == 1 || path.empty()) return path;
  std::uint64_t rank = ranks.dp_rank;
  rank = rank * ranks.pp_size + ranks.pp_rank;
  rank = rank * ranks.cp_size + ranks.cp_rank;
  rank = rank * ranks.tp_size + ranks.tp_rank;
  return fmt::format("{}/rank{}", path, rank);
}

Result<std::unique_ptr<ObjectStore>> open_object_store(const StorageOptions& options,
                                                       const RankGeometry& ranks) {
  StorageOptions mine = options;
  mine.path = rank_directory(options.path, ranks);
  for (const Backend& backend : kBackends) {
    if (options.backend != backend.name) continue;
    HITIDE_ASSIGN_OR_RETURN(auto store, backend.open(mine, count_of(ranks)));
    return guard_store(std::move(store), options.breaker);
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("there is no storage backend '{}': use one of {}", options.backend,
                            fmt::join(storage_backends(), ", ")));
}

}  // namespace hitide
