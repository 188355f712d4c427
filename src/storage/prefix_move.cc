// Export and import: hitide/prefix_file.h.

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <hitide/file_store.h>
#include <hitide/prefix_file.h>

#include "base/clock.h"
#include "storage/file/file_follower.h"
#include "storage/marker.h"
#include "storage/page_store.h"
#include "storage/prefix_file.h"
#include "storage/registry.h"

namespace hitide {
namespace {

constexpr std::uint32_t kExportPages = 16;           // read at a time
constexpr std::uint64_t kImportBytes = 64ull << 20;  // stored at a time
constexpr Duration kCallTime = std::chrono::seconds(60);
constexpr Duration kCloseTime = std::chrono::minutes(5);

TimePoint in(Duration time) { return SystemClock::instance().now() + time; }

Status check_backend(const StorageOptions& storage) {
  if (storage.backend == "file") return {};
  return Status(
      StatusCode::invalid_argument,
      fmt::format("storage backend '{}': a prefix is taken from and put into file stores alone",
                  storage.backend));
}

// An object of a page, in memory.
struct Object {
  std::uint32_t page = 0;
  std::uint32_t pool = 0;
  std::vector<std::byte> bytes = {};
};

class Exporter {
 public:
  Exporter(PageStore& store, const ModelSpec& model, std::span<const PageKey> keys,
           PrefixFileWriter& file)
      : store_(store), model_(model), keys_(keys), file_(file) {}

  Status run() {
    for (std::size_t first = 0; first < keys_.size(); first += kExportPages) {
      HITIDE_RETURN_IF_ERROR(move(first, std::min(keys_.size(), first + kExportPages)));
    }
    return file_.finish();
  }

 private:
  Status move(std::size_t first, std::size_t end) {
    std::vector<Object> objects;
    for (auto page = static_cast<std::uint32_t>(first); page < end; ++page) {
      for (std::uint32_t pool = 0; pool < model_.pools.size(); ++pool) {
        const std::uint64_t bytes = stored_object_bytes(model_, pool);
        if (bytes == 0) continue;
        objects.push_back({.page = page, .pool = pool, .bytes = std::vector<std::byte>(bytes)});
      }
    }
    std::vector<PageSlot> slots;
    for (Object& object : objects) {
      slots.push_back({.key = keys_[object.page], .slot = object.bytes, .pool = object.pool});
    }
    std::vector<StatusCode> codes(slots.size(), StatusCode::internal);
    const CallOutcome outcome = store_.load(slots, codes, {.deadline = in(kCallTime)});
    for (std::size_t i = 0; i < objects.size(); ++i) {
      Object& object = objects[i];
      if (codes[i] == StatusCode::ok) {
        if (!has_bytes(model_.pools[object.pool])) fill_marker(object);
        HITIDE_RETURN_IF_ERROR(file_.add(object.page, object.pool, object.bytes));
      } else if (object_needed(model_, object.pool, object.page, keys_.size())) {
        return refuse(object, codes[i], outcome.status);
      }
    }
    return {};
  }

  // What was loaded and verified is not handed out; it is a function of the page.
  void fill_marker(Object& object) const {
    write_marker({.identity = identity_digest(model_),
                  .key = keys_[object.page],
                  .pool = model_.pools[object.pool].name,
                  .part = part_of(model_.ranks)},
                 object.bytes);
  }

  Status refuse(const Object& object, StatusCode code, const Status& why) const {
    const std::string page =
        fmt::format("page {}, pool {}: ", object.page, model_.pools[object.pool].name);
    if (code == StatusCode::data_loss) {
      return Status(code, page + "is damaged in the store; `hitide verify` finds such pages");
    }
    return Status(StatusCode::unavailable,
                  fmt::format("{}was there and cannot be read now ({}{}{}); try again", page,
                              to_string(code), why.ok() ? "" : ": ", why.message()));
  }

  PageStore& store_;
  const ModelSpec& model_;
  const std::span<const PageKey> keys_;
  PrefixFileWriter& file_;
};

class Importer {
 public:
  Importer(PageStore& store, PrefixFileReader& file) : store_(store), file_(file) {}

  Status run() {
    file_.rewind();
    std::vector<std::byte> bytes;
    for (;;) {
      HITIDE_ASSIGN_OR_RETURN(const auto record, file_.next(bytes));
      if (!record) break;
      // Never a part of a page: its anchor waits for its side pools.
      if (held_bytes_ >= kImportBytes && record->page != objects_.back().page) {
        HITIDE_RETURN_IF_ERROR(store_held());
      }
      held_bytes_ += bytes.size();
      objects_.push_back(
          {.page = record->page, .pool = record->pool, .bytes = std::exchange(bytes, {})});
    }
    HITIDE_RETURN_IF_ERROR(store_held());
    return check_kept();
  }

 private:
  struct PoolBatch {
    std::vector<PageKey> keys;
    std::vector<std::uint32_t> pages;
    std::vector<std::span<std::byte>> slots;
    std::vector<StatusCode> codes;
  };

  Status store_held() {
    const ModelSpec& model = file_.head().model;
    std::vector<PoolBatch> batches(model.pools.size());
    for (Object& object : objects_) {
      PoolBatch& batch = batches[object.pool];
      batch.keys.push_back(file_.head().keys[object.page]);
      batch.pages.push_back(object.page);
      if (has_bytes(model.pools[object.pool])) batch.slots.emplace_back(object.bytes);
      batch.codes.push_back(StatusCode::internal);
    }
    std::vector<PoolPages> pools;
    for (std::size_t pool = 0; pool < batches.size(); ++pool) {
      PoolBatch& batch = batches[pool];
      if (batch.keys.empty()) continue;
      pools.push_back({.pool = model.pools[pool].name,
                       .keys = batch.keys,
                       .slots = batch.slots,
                       .out = batch.codes});
    }
    const CallOutcome outcome =
        store_.store(std::span<const PoolPages>(pools), {.deadline = in(kCallTime)});
    for (std::size_t pool = 0; pool < batches.size(); ++pool) {
      const PoolBatch& batch = batches[pool];
      for (std::size_t i = 0; i < batch.codes.size(); ++i) {
        if (batch.codes[i] == StatusCode::ok) continue;
        // The store's limit may have taken a side object before its anchor came.
        const bool gone = batch.codes[i] == StatusCode::not_found;
        return Status(gone ? StatusCode::resource_exhausted : batch.codes[i],
                      fmt::format("page {}, pool {}: the store did not keep it ({}{}{})",
                                  batch.pages[i], model.pools[pool].name, to_string(batch.codes[i]),
                                  outcome.status.ok() ? "" : ": ", outcome.status.message()));
      }
    }
    objects_.clear();
    held_bytes_ = 0;
    return {};
  }

  // Its own limit may have made the store give up the first pages for the last ones.
  Status check_kept() {
    const std::vector<PageKey>& keys = file_.head().keys;
    PrefixStops stops;
    HITIDE_RETURN_IF_ERROR(store_.exists_prefix(keys, stops, {.deadline = in(kCallTime)}).status);
    if (stops.longest() == keys.size()) return {};
    return Status(StatusCode::resource_exhausted,
                  fmt::format("the store kept {} of {} pages: its limit is too small for the {} "
                              "bytes of the file; raise max_size",
                              stops.longest(), keys.size(), file_.head().file_bytes));
  }

  PageStore& store_;
  PrefixFileReader& file_;
  std::vector<Object> objects_;
  std::uint64_t held_bytes_ = 0;
};

}  // namespace

Result<PrefixExport> export_from(ObjectStore& store, const ModelSpec& model,
                                 std::span<const PageKey> keys, const std::string& path) {
  HITIDE_RETURN_IF_ERROR(validate(model));
  if (keys.empty()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the prompt is shorter than one page of {} tokens, and only whole "
                              "pages are stored",
                              model.page_size()));
  }
  PageStore pages(store, model);
  PrefixStops stops;
  HITIDE_RETURN_IF_ERROR(pages.exists_prefix(keys, stops, {.deadline = in(kCallTime)}).status);
  const std::uint32_t count = stops.longest();
  if (count == 0) {
    return Status(StatusCode::not_found,
                  fmt::format("the store has nothing of this prompt: of its {} pages not the first "
                              "one, {}, in namespace {}",
                              keys.size(), keys.front().to_hex(), identity_digest(model).to_hex()));
  }
  HITIDE_ASSIGN_OR_RETURN(PrefixFileWriter file,
                          PrefixFileWriter::create(path, model, keys.first(count)));
  HITIDE_RETURN_IF_ERROR(Exporter(pages, model, keys.first(count), file).run());
  return PrefixExport{.pages = count, .objects = file.objects(), .file_bytes = file.bytes()};
}

Status verify_prefix(PrefixFileReader& file) {
  file.rewind();
  std::vector<std::byte> bytes;
  for (;;) {
    HITIDE_ASSIGN_OR_RETURN(const auto record, file.next(bytes));
    if (!record) return {};
  }
}

// Before anything of the store's is given up for a file that does not fit all the same.
Status check_room(const ObjectStore& store, const PrefixFileHead& head) {
  const std::uint64_t limit = store.stats().bytes_limit;
  if (limit == 0 || head.file_bytes <= limit) return {};
  return Status(StatusCode::resource_exhausted,
                fmt::format("the file has {} bytes and the store's limit is {}: raise max_size",
                            head.file_bytes, limit));
}

Result<PrefixImport> import_into(ObjectStore& store, PrefixFileReader& file) {
  HITIDE_RETURN_IF_ERROR(check_room(store, file.head()));
  PageStore pages(store, file.head().model);
  HITIDE_RETURN_IF_ERROR(Importer(pages, file).run());
  const PageStoreStats stats = pages.stats();
  return PrefixImport{.pages = file.head().keys.size(),
                      .objects_written = stats.stores + stats.markers,
                      .objects_present = stats.stores_present + stats.markers_present};
}

Result<PrefixExport> export_prefix(const StorageOptions& storage, const ModelSpec& model,
                                   std::span<const PageKey> keys, const std::string& path) {
  HITIDE_RETURN_IF_ERROR(check_backend(storage));
  HITIDE_RETURN_IF_ERROR(validate(model));
  const std::string directory = rank_directory(storage.path, model.ranks);
  if (file_store_directories(directory).empty()) {
    return Status(StatusCode::not_found, directory + ": there is no file store");
  }
  FileFollowerOptions options{.path = directory, .refresh_interval_ms = 0};
  HITIDE_ASSIGN_OR_RETURN(const auto store, FileFollower::open(options));
  HITIDE_RETURN_IF_ERROR(store->refresh());
  return export_from(*store, model, keys, path);
}

Result<PrefixFileHead> read_prefix_head(const std::string& path) {
  HITIDE_ASSIGN_OR_RETURN(const PrefixFileReader reader, PrefixFileReader::open(path));
  return reader.head();
}

Result<PrefixImport> import_prefix(const std::string& path, const StorageOptions& storage) {
  HITIDE_RETURN_IF_ERROR(check_backend(storage));
  HITIDE_ASSIGN_OR_RETURN(PrefixFileReader file, PrefixFileReader::open(path));
  HITIDE_RETURN_IF_ERROR(verify_prefix(file));  // before a store is made for it
  HITIDE_ASSIGN_OR_RETURN(const auto store, open_object_store(storage, file.head().model.ranks));
  Result<PrefixImport> imported = import_into(*store, file);
  const Status closed = store->close(in(kCloseTime));
  if (imported.ok() && !closed.ok()) return closed;
  return imported;
}

}  // namespace hitide
