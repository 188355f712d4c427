// Opens a storage backend by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/object_store.h>
#include <hitide/options.h>
#include <hitide/result.h>

namespace hitide {

// All of them behind a breaker (storage/breaker.h, options.breaker). options.backend:
//   "file"      the embedded file store in options.path, which must be given (the default directory
//               is the caller's business); created where it is missing
//   "memory"    in this process's memory, gone with it; bytes_max 0 means 1 GiB
//   "mooncake"  options.mooncake; a store that does not answer yet is opened all the same
//   "null"      takes everything and keeps nothing
// bytes_max 0 means, for the file store, a tenth of the disk space that is free or taken by the
// store itself, at most 64 GiB, shared by the ranks, and never less than the store has already;
// otherwise each rank has that limit.
//
// invalid_argument: an unknown backend (also "none", which is no store), or no path;
// failed_precondition: the directory cannot be used: not writable, locked by another process (the
// message names it and the owner's process id where known), or written by a newer version;
// resource_exhausted, unavailable: the disk or the limit of open files says no. Of mooncake: see
// MooncakeStore::open().
//
// Of several ranks each has a file store of its own, in a folder of the path (rank_directory()).
Result<std::unique_ptr<ObjectStore>> open_object_store(const StorageOptions& options,
                                                       const RankGeometry& ranks = {});

// The path itself for one rank; else its folder rank0, rank1, ..., counted with the tensor rank
// fastest, then context-parallel, pipeline and data-parallel rank. One process writes a directory.
std::string rank_directory(const std::string& path, const RankGeometry& ranks);

// The same breaker for a store of the caller's. Never null.
std::unique_ptr<ObjectStore> guard_store(std::unique_ptr<ObjectStore> store,
                                         const BreakerOptions& options);

// The names above.
std::vector<std::string_view> storage_backends();

// The rule for bytes_max = 0: free and used are bytes on the store's disk, used those of one rank.
std::uint64_t default_bytes_max(std::uint64_t disk_free_bytes, std::uint64_t store_used_bytes,
                                std::uint64_t ranks = 1);

}  // namespace hitide
