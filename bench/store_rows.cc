// The file store against plain calls that move the same bytes to and from one file, and how fast a
// store is there again after a restart.
//
// Both sides are buffered: what is timed is the way into and out of the page cache. Only the
// `synced` row has the time to disk in it, on both sides: close() against fdatasync().
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "bench/cases.h"
#include "spec/layout.h"
#include "storage/file/directory.h"
#include "storage/file/file_store.h"
#include "storage/file/record.h"
#include "storage/page_store.h"

namespace hitide::bench {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kSmolPageBytes = 392'808;  // 32 tokens of SmolLM2-135M, q8_0
constexpr std::size_t kBatch = 32;
constexpr int kReadPasses = 4;  // in one round

// Objects of one size, their keys, and memory to read them back into.
struct Objects {
  Objects(std::size_t count, std::uint64_t object_bytes)
      : bytes(object_bytes), data(count * object_bytes), target(kBatch * object_bytes) {
    Random random(11);
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= data.size(); i += 512) {
      const std::uint64_t value = random.next();
      std::copy_n(reinterpret_cast<const std::byte*>(&value), sizeof value, data.data() + i);
    }
    for (std::size_t i = 0; i < count; ++i) keys.push_back(fmt::format("object-{:08}", i));
  }
  std::size_t count() const { return keys.size(); }
  double megabytes() const { return static_cast<double>(data.size()) / 1e6; }
  std::span<const std::byte> object(std::size_t i) const {
    return std::span(data).subspan(i * bytes, bytes);
  }
  std::span<std::byte> place(std::size_t i) {
    return std::span(target).subspan(i % kBatch * bytes, bytes);
  }

  std::uint64_t bytes;
  std::vector<std::byte> data;
  std::vector<std::byte> target;
  std::vector<std::string> keys;
};

Result<std::unique_ptr<FileStore>> open_store(const Settings& settings) {
  FileStoreOptions options;
  options.path = settings.scratch + "/store";
  options.bytes_max = 16u * 1024 * kMiB;
  options.sync_interval_ms = 0;  // at close only
  return FileStore::open(options);
}

void remove_files(const Settings& settings) {
  std::error_code error;
  std::filesystem::remove_all(settings.scratch + "/store", error);
  std::filesystem::remove(settings.scratch + "/plain", error);
}

Status first_failure(const CallOutcome& outcome, std::span<const ItemResult> results) {
  HITIDE_RETURN_IF_ERROR(outcome.status);
  for (const ItemResult& result : results) {
    if (result.code != StatusCode::ok) return Status(result.code, "an item of the batch failed");
  }
  return ok_status();
}

Status put_all(ObjectStore& store, const Objects& objects) {
  for (std::size_t first = 0; first < objects.count(); first += kBatch) {
    const std::size_t count = std::min(kBatch, objects.count() - first);
    std::vector<std::span<const std::byte>> buffers(count);
    std::vector<PutItem> items(count);
    for (std::size_t i = 0; i < count; ++i) {
      buffers[i] = objects.object(first + i);
      items[i] = {.key = objects.keys[first + i], .buffers = std::span(&buffers[i], 1)};
    }
    std::vector<ItemResult> results(count);
    HITIDE_RETURN_IF_ERROR(first_failure(store.put(items, results, {}), results));
  }
  return ok_status();
}

Status get_all(ObjectStore& store, Objects& objects) {
  for (std::size_t first = 0; first < objects.count(); first += kBatch) {
    const std::size_t count = std::min(kBatch, objects.count() - first);
    std::vector<std::span<std::byte>> buffers(count);
    std::vector<GetItem> items(count);
    for (std::size_t i = 0; i < count; ++i) {
      buffers[i] = objects.place(first + i);
      items[i] = {.key = objects.keys[first + i], .buffers = std::span(&buffers[i], 1)};
    }
    std::vector<ItemResult> results(count);
    HITIDE_RETURN_IF_ERROR(first_failure(store.get(items, results, {}), results));
  }
  return ok_status();
}

// One file, its blocks reserved beforehand, the objects one behind the other.
class PlainFile {
 public:
  Status create(const Settings& settings, std::uint64_t bytes) {
    path_ = settings.scratch + "/plain";
    fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd_.valid()) return errno_status(errno, "create", path_);
    const int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes));
    return error == 0 ? ok_status() : errno_status(error, "reserve", path_);
  }
  Status write_all(const Objects& objects) {
    for (std::size_t i = 0; i < objects.count(); ++i) {
      const auto bytes = objects.object(i);
      std::size_t done = 0;
      while (done < bytes.size()) {
        const ssize_t got = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                                     static_cast<off_t>(i * objects.bytes + done));
        if (got <= 0) return errno_status(errno, "write", path_);
        done += static_cast<std::size_t>(got);
      }
    }
    return ok_status();
  }
  Status read_all(Objects& objects) {
    for (std::size_t i = 0; i < objects.count(); ++i) {
      const auto bytes = objects.place(i);
      std::size_t done = 0;
      while (done < bytes.size()) {
        const ssize_t got = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                    static_cast<off_t>(i * objects.bytes + done));
        if (got <= 0) return errno_status(errno, "read", path_);
        done += static_cast<std::size_t>(got);
      }
    }
    return ok_status();
  }
  Status sync() {
    return ::fdatasync(fd_.get()) == 0 ? ok_status() : errno_status(errno, "sync", path_);
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

// Writes and reads that the rows of one size compare. New files every round: a store always writes
// where nothing is cached yet.
struct FileRows {
  Row write, read, synced;
};

// Times two calls, the second one first where `swapped`: whoever writes first finds other memory
// free than who comes second.
Status time_both(bool swapped, const std::function<Status()>& ours,
                 const std::function<Status()>& reference, double& ours_s, double& reference_s) {
  for (const bool first : {true, false}) {
    const bool is_ours = first != swapped;
    const Stopwatch watch;
    const Status status = is_ours ? ours() : reference();
    (is_ours ? ours_s : reference_s) = watch.seconds();
    HITIDE_RETURN_IF_ERROR(status);
  }
  return ok_status();
}

Status file_round(const Settings& settings, Objects& objects, int round, FileRows& rows) {
  const double megabytes = objects.megabytes();
  const auto note = [round](Row& row, double ours, double reference) {
    if (round < 0) return;
    row.pairs.ours.push_back(ours);
    row.pairs.reference.push_back(reference);
  };
  HITIDE_ASSIGN_OR_RETURN(const std::unique_ptr<FileStore> store, open_store(settings));
  PlainFile plain;
  HITIDE_RETURN_IF_ERROR(plain.create(settings, objects.data.size()));
  const bool swapped = round % 2 != 0;

  double put_s = 0.0;
  double write_s = 0.0;
  HITIDE_RETURN_IF_ERROR(time_both(
      swapped, [&] { return put_all(*store, objects); }, [&] { return plain.write_all(objects); },
      put_s, write_s));
  note(rows.write, megabytes / put_s, megabytes / write_s);

  for (int pass = 0; pass < kReadPasses; ++pass) {
    double get_s = 0.0;
    double read_s = 0.0;
    HITIDE_RETURN_IF_ERROR(time_both(
        pass % 2 != 0, [&] { return get_all(*store, objects); },
        [&] { return plain.read_all(objects); }, get_s, read_s));
    note(rows.read, megabytes / get_s, megabytes / read_s);
  }

  double close_s = 0.0;
  double sync_s = 0.0;
  HITIDE_RETURN_IF_ERROR(time_both(
      swapped, [&] { return store->close(kNoDeadline); }, [&] { return plain.sync(); }, close_s,
      sync_s));
  note(rows.synced, megabytes / (put_s + close_s), megabytes / (write_s + sync_s));
  remove_files(settings);
  return ok_status();
}

Status file_store(const Settings& settings, const std::string& size, std::uint64_t object_bytes,
                  Report& report) {
  Objects objects(64 * kMiB / object_bytes, object_bytes);
  FileRows rows;
  rows.write = {.name = "file.write_" + size, .unit = "MB/s", .target = at_least(0.9)};
  rows.read = {.name = "file.read_" + size, .unit = "MB/s", .target = at_least(0.9)};
  rows.synced = {.name = "file.write_synced_" + size, .unit = "MB/s", .target = at_least(0.9)};
  for (int round = -2; round < 30; ++round) {
    HITIDE_RETURN_IF_ERROR(file_round(settings, objects, round, rows));
  }
  for (const Row* row : {&rows.write, &rows.read, &rows.synced}) report.add(*row);
  return ok_status();
}

ModelSpec model_of(std::uint64_t page_bytes) {
  ModelSpec model;
  model.model_name = "bench";
  model.weights_digest = std::string(64, 'b');
  PoolSpec pool;
  pool.page_bytes = page_bytes;
  model.pools.push_back(pool);
  return model;
}

// Pages through PageStore: keys, existence, envelope and checksum on top of the file store.
Status page_store(const Settings& settings, Report& report) {
  const ModelSpec model = model_of(kMiB - kEnvelopeBytes);
  Objects objects(64, kMiB);
  Objects slots(64, kMiB);
  std::vector<PageSlot> pages(objects.count());
  std::vector<PageSlot> back(objects.count());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i].key.bytes[0] = static_cast<std::uint8_t>(i);
    pages[i].slot = std::span(slots.data).subspan(i * kMiB, kMiB);
    back[i] = {.key = pages[i].key, .slot = objects.place(i)};
  }
  Row store_row{.name = "pages.store_1m", .unit = "MB/s"};
  Row load_row{.name = "pages.load_1m", .unit = "MB/s"};
  const auto all_ok = [](const CallOutcome& outcome, std::span<const StatusCode> codes) -> Status {
    HITIDE_RETURN_IF_ERROR(outcome.status);
    const bool good = std::all_of(codes.begin(), codes.end(),
                                  [](StatusCode code) { return code == StatusCode::ok; });
    return good ? ok_status() : Status(StatusCode::internal, "a page failed");
  };
  const double megabytes = objects.megabytes();
  std::vector<StatusCode> codes(pages.size());
  for (int round = -2; round < 30; ++round) {
    HITIDE_ASSIGN_OR_RETURN(const std::unique_ptr<FileStore> files, open_store(settings));
    PageStore store(*files, model);
    PlainFile plain;
    HITIDE_RETURN_IF_ERROR(plain.create(settings, objects.data.size()));
    double put_s = 0.0;
    double write_s = 0.0;
    HITIDE_RETURN_IF_ERROR(time_both(
        round % 2 != 0, [&] { return all_ok(store.store(pages, codes, {}), codes); },
        [&] { return plain.write_all(objects); }, put_s, write_s));
    const auto load_all = [&]() -> Status {
      for (std::size_t first = 0; first < back.size(); first += kBatch) {
        const auto some = std::span(codes).subspan(first, kBatch);
        HITIDE_RETURN_IF_ERROR(
            all_ok(store.load(std::span(back).subspan(first, kBatch), some, {}), some));
      }
      return ok_status();
    };
    double get_s = 0.0;
    double read_s = 0.0;
    HITIDE_RETURN_IF_ERROR(time_both(
        round % 2 != 0, load_all, [&] { return plain.read_all(objects); }, get_s, read_s));
    HITIDE_RETURN_IF_ERROR(files->close(kNoDeadline));
    remove_files(settings);
    if (round < 0) continue;
    store_row.pairs.ours.push_back(megabytes / put_s);
    store_row.pairs.reference.push_back(megabytes / write_s);
    load_row.pairs.ours.push_back(megabytes / get_s);
    load_row.pairs.reference.push_back(megabytes / read_s);
  }
  report.add(store_row);
  report.add(load_row);
  return ok_status();
}

// Takes the store's files out of the page cache, as a restart of the machine would.
Status forget_cached(const Settings& settings) {
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(settings.scratch + "/store")) {
    if (!entry.is_regular_file()) continue;
    const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return errno_status(errno, "open", entry.path().string());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  return ok_status();
}

std::string restart_key(std::size_t i) { return fmt::format("restart-{:08}", i); }

// Of every twentieth object: how many can be read again.
Result<double> share_read(ObjectStore& store, std::span<const std::string_view> names,
                          Objects& objects) {
  int asked = 0;
  int read = 0;
  for (std::size_t i = 0; i < names.size(); i += 20) {
    const std::span<std::byte> buffer = objects.place(0);
    const GetItem item{.key = names[i], .buffers = std::span(&buffer, 1)};
    ItemResult result;
    HITIDE_RETURN_IF_ERROR(store.get(std::span(&item, 1), std::span(&result, 1), {}).status);
    ++asked;
    read += result.code == StatusCode::ok ? 1 : 0;
  }
  return static_cast<double>(read) / asked;
}

// A store as one that has been filled leaves it, made without writing its payloads: they are holes,
// which read as zeros, and their checksums are those of zeros.
class SparseStore {
 public:
  SparseStore(const Settings& settings, std::uint64_t payload_bytes)
      : path_(settings.scratch + "/store"),
        payload_bytes_(payload_bytes),
        checksum_(checksum64(std::vector<std::byte>(payload_bytes))) {}

  // Objects restart-00000000, restart-00000001, ...
  Status make(std::size_t count) {
    std::error_code error;
    std::filesystem::create_directories(segments_directory(path_), error);
    if (error) return errno_status(error.value(), "create", path_);
    std::size_t made = 0;
    for (std::uint64_t number = 1; made < count; ++number) {
      HITIDE_RETURN_IF_ERROR(make_segment(number, count, made));
    }
    return ok_status();
  }

 private:
  Status make_segment(std::uint64_t number, std::size_t count, std::size_t& made) {
    const std::string path = segment_path(path_, number);
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid()) return errno_status(errno, "create", path);
    const std::uint64_t id = 1000 + number;
    HITIDE_RETURN_IF_ERROR(write(fd, path, encode_segment({.number = number, .id = id}), 0));
    std::uint64_t end = kBlockBytes;
    for (; made < count && end + record_bytes(payload_bytes_) <= kSegmentBytes; ++made) {
      const std::string key = restart_key(made);
      HITIDE_RETURN_IF_ERROR(write(fd, path,
                                   encode_record({.payload_bytes = payload_bytes_,
                                                  .payload_checksum = checksum_,
                                                  .sequence = made + 1,
                                                  .segment_id = id,
                                                  .offset = end,
                                                  .written_s = 1'700'000'000,
                                                  .key = key}),
                                   end));
      end += record_bytes(payload_bytes_);
    }
    // The last payload ends with its last byte.
    const std::uint64_t size = end - round_up_to_block(payload_bytes_) + payload_bytes_;
    const bool sized = ::ftruncate(fd.get(), static_cast<off_t>(size)) == 0;
    if (!sized || ::fdatasync(fd.get()) != 0) return errno_status(errno, "write", path);
    return ok_status();
  }
  static Status write(const UniqueFd& fd, const std::string& path, const Block& block,
                      std::uint64_t offset) {
    const ssize_t done = ::pwrite(fd.get(), block.data(), block.size(), static_cast<off_t>(offset));
    return done == static_cast<ssize_t>(block.size()) ? ok_status()
                                                      : errno_status(errno, "write", path);
  }

  static constexpr std::uint64_t kSegmentBytes = 256 * kMiB;
  const std::string path_;
  const std::uint64_t payload_bytes_;
  const std::uint64_t checksum_;
};

struct RestartRows {
  Row ready, hits, memory;
};

// Opens the store with nothing of it in the page cache, and asks for all objects.
Status restart_once(const Settings& settings, std::span<const std::string_view> names,
                    Objects& objects, RestartRows& rows) {
  std::vector<ItemResult> found(names.size());
  HITIDE_RETURN_IF_ERROR(forget_cached(settings));
  const Stopwatch watch;
  HITIDE_ASSIGN_OR_RETURN(const std::unique_ptr<FileStore> store, open_store(settings));
  HITIDE_RETURN_IF_ERROR(store->exists(names, found, {}).status);
  rows.ready.pairs.ours.push_back(watch.seconds());
  rows.ready.pairs.reference.push_back(2.0);
  HITIDE_ASSIGN_OR_RETURN(const double share, share_read(*store, names, objects));
  rows.hits.pairs.ours.push_back(100.0 * share);
  rows.hits.pairs.reference.push_back(95.0);
  const StoreStats stats = store->stats();
  rows.memory.pairs.ours.push_back(static_cast<double>(stats.index_bytes) /
                                   static_cast<double>(names.size()));
  rows.memory.pairs.reference.push_back(64.0);
  return store->close(kNoDeadline);
}

// The references are what was promised: with 8 GB, 2 s until every object is known again, 95 of 100
// of them, and 64 bytes of memory for each. `scan`: without checkpoints, as after their loss.
Status restart(const Settings& settings, Report& report) {
  constexpr std::uint64_t kTotal = 8'000'000'000;
  const std::size_t count = kTotal / kSmolPageBytes;
  Objects objects(1, kSmolPageBytes);
  HITIDE_RETURN_IF_ERROR(SparseStore(settings, kSmolPageBytes).make(count));
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(restart_key(i));
  const std::vector<std::string_view> names(keys.begin(), keys.end());
  RestartRows scan;
  RestartRows rows;
  rows.ready = {.name = "restart.ready", .unit = "s", .target = at_most(1.0)};
  rows.hits = {.name = "restart.hits", .unit = "%", .target = at_least(1.0)};
  rows.memory = {.name = "restart.memory", .unit = "B/page", .target = at_most(1.0)};
  scan.ready = {.name = "restart.scan", .unit = "s", .target = at_most(1.0)};
  const std::string note = fmt::format("{} objects, {:.1f} GB, not in the page cache", count,
                                       static_cast<double>(count * kSmolPageBytes) / 1e9);
  rows.ready.note = note;
  scan.ready.note = note + ", no checkpoints";
  for (int round = 0; round < 6; ++round) {
    for (std::uint64_t number = 1; round < 3 && number <= 64; ++number) {
      std::filesystem::remove(
          std::filesystem::path(segment_path(settings.scratch + "/store", number))
              .replace_extension(".idx"));
    }
    HITIDE_RETURN_IF_ERROR(restart_once(settings, names, objects, round < 3 ? scan : rows));
  }
  remove_files(settings);
  for (const Row* row : {&rows.ready, &rows.hits, &rows.memory, &scan.ready}) report.add(*row);
  return ok_status();
}

}  // namespace

std::vector<Case> store_cases() {
  return {
      {.rows = {"file.write_1m", "file.read_1m", "file.write_synced_1m"},
       .run = [](const Settings& settings,
                 Report& report) { return file_store(settings, "1m", kMiB, report); }},
      {.rows = {"file.write_384k", "file.read_384k", "file.write_synced_384k"},
       .run =
           [](const Settings& settings, Report& report) {
             return file_store(settings, "384k", kSmolPageBytes + kEnvelopeBytes, report);
           }},
      {.rows = {"pages.store_1m", "pages.load_1m"}, .run = page_store},
      {.rows = {"restart.ready", "restart.hits", "restart.memory", "restart.scan"}, .run = restart},
  };
}

}  // namespace hitide::bench
