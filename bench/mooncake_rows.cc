// The Mooncake backend against the store's own client, called in a Python process beside it
// (mooncake_bare.py): both over one real store that this starts, with a real client over TCP and
// with a thin client of a daemon.
//
// What is timed is the call: ours from the cache's process through the agent, the reference inside
// its process. Objects are new in every round, and removed between rounds, untimed.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "bench/cases.h"
#include "storage/envelope.h"
#include "storage/marker.h"
#include "storage/mooncake/child_process.h"
#include "storage/mooncake/mooncake_store.h"
#include "storage/mooncake/private_store.h"
#include "storage/page_store.h"

namespace hitide::bench {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kMemory = 64 * kMiB;  // that one measurement moves
constexpr std::uint64_t kSegment = 512 * kMiB;
constexpr int kWarmUp = 1;
constexpr int kPairs = 9;
constexpr std::array<std::uint64_t, 2> kSizes = {256u << 10, kMiB};
constexpr std::array<std::size_t, 2> kBatches = {16, 64};

TimePoint in(Duration time) { return SystemClock::instance().now() + time; }

// How the objects travel: from the cache's machine to the owner.
struct Way {
  const char* name;
  bool standalone;
  double pages_target;  // of what goes through PageStore
};
constexpr std::array<Way, 2> kWays = {Way{"tcp", false, 0.85}, Way{"daemon", true, 0.75}};

std::string size_name(std::uint64_t bytes) {
  return bytes >= kMiB ? fmt::format("{}m", bytes / kMiB) : fmt::format("{}k", bytes >> 10);
}

// The reference: one process, one client, its own memory.
class Bare {
 public:
  static Result<std::unique_ptr<Bare>> start(const MooncakeOptions& options) {
    const std::string daemon = options.standalone_storage ? options.client_server_address : "-";
    const ChildCommand command{
        .program = options.python,
        .arguments = {HITIDE_SOURCE_DIR "/bench/mooncake_bare.py", options.master_server_address,
                      daemon, std::to_string(kMemory)},
        .environment = {{"MC_LOG_LEVEL", "ERROR"}, {"MC_TCP_ENABLE_CONNECTION_POOL", "1"}}};
    HITIDE_ASSIGN_OR_RETURN(auto process, ChildProcess::start(command));
    std::unique_ptr<Bare> bare(new Bare(std::move(process)));
    HITIDE_ASSIGN_OR_RETURN(const std::string line, bare->read_line());
    if (line == "ready") return bare;
    return Status(StatusCode::unavailable, "the reference's client: " + line);
  }

  // Seconds of the client's calls.
  Result<double> call(const std::string& command) {
    const std::string line = command + "\n";
    if (::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(line.size())) {
      return errno_status(errno, "write to", "the reference's process");
    }
    HITIDE_ASSIGN_OR_RETURN(const std::string answer, read_line());
    double seconds = 0;
    const char* const end = answer.data() + answer.size();
    if (answer.starts_with("ok ") &&
        std::from_chars(answer.data() + 3, end, seconds).ec == std::errc()) {
      return seconds;
    }
    return Status(StatusCode::internal, command + ": " + answer);
  }

 private:
  explicit Bare(std::unique_ptr<ChildProcess> process)
      : process_(std::move(process)), socket_(process_->take_socket()) {}

  Result<std::string> read_line() {
    for (;;) {
      const std::size_t end = text_.find('\n');
      if (end != std::string::npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      pollfd at{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      std::array<char, 512> buffer{};
      if (::poll(&at, 1, 60'000) <= 0) {
        return Status(StatusCode::deadline_exceeded, "the reference did not answer");
      }
      const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got == 0) {
        process_->drain_errors();
        return Status(StatusCode::unavailable, "the reference ended: " + process_->error_tail());
      }
      if (got > 0) text_.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }

  const std::unique_ptr<ChildProcess> process_;
  const UniqueFd socket_;
  std::string text_;
};

// A store, our client of it and the reference's.
class Bed {
 public:
  static Result<std::unique_ptr<Bed>> start(const Settings& settings, const Way& way) {
    MooncakeOptions options;
    options.python = settings.mooncake_python;
    options.standalone_storage = way.standalone;
    std::unique_ptr<Bed> bed(new Bed);
    HITIDE_ASSIGN_OR_RETURN(bed->servers_,
                            PrivateStore::start(options, kSegment, in(std::chrono::seconds(60))));
    options = bed->servers_->options();
    // On a busy machine a limit would end a measurement, and nothing else.
    options.call_limit = std::chrono::seconds(30);
    HITIDE_ASSIGN_OR_RETURN(bed->store_, MooncakeStore::open(options));
    HITIDE_RETURN_IF_ERROR(bed->store_->wait_until_ready(in(std::chrono::seconds(60))));
    HITIDE_ASSIGN_OR_RETURN(const MemoryRegion region,
                            bed->store_->allocate_memory("bench", kMemory));
    HITIDE_RETURN_IF_ERROR(bed->store_->register_memory(region));
    bed->memory_ = region.bytes;
    Random random(11);
    for (std::size_t at = 0; at < kMemory; at += sizeof(std::uint64_t)) {
      const std::uint64_t value = random.next();
      std::copy_n(reinterpret_cast<const std::byte*>(&value), sizeof value,
                  bed->memory_.data() + at);
    }
    HITIDE_ASSIGN_OR_RETURN(bed->bare_, Bare::start(options));
    return bed;
  }

  MooncakeStore& store() { return *store_; }
  std::span<std::byte> memory() { return memory_; }
  Bare& bare() { return *bare_; }
  // New names for the objects of the next round.
  int next_round() { return ++round_; }

 private:
  Bed() = default;
  std::unique_ptr<PrivateStore> servers_;
  std::unique_ptr<MooncakeStore> store_;
  std::span<std::byte> memory_;
  std::unique_ptr<Bare> bare_;
  int round_ = 0;
};

// Objects of one size in some memory, with all that a call needs made beforehand.
struct Batches {
  Batches(std::span<std::byte> memory, std::uint64_t size, std::size_t batch, int round)
      : bytes(memory.size()), batch_items(batch) {
    const std::size_t count = memory.size() / size;
    for (std::size_t i = 0; i < count; ++i) {
      keys.push_back(fmt::format("ours/{}/{:06}", round, i));
      targets.push_back(memory.subspan(i * size, size));
      sources.emplace_back(targets.back());
    }
    for (std::size_t i = 0; i < count; ++i) {
      puts.push_back({.key = keys[i], .buffers = std::span(&sources[i], 1)});
      gets.push_back({.key = keys[i], .buffers = std::span(&targets[i], 1)});
    }
  }

  template <typename Item, typename Call>
  Result<double> run(std::span<const Item> items, const Call& call) const {
    std::vector<ItemResult> results(batch_items);
    double seconds = 0;
    for (std::size_t at = 0; at < items.size(); at += batch_items) {
      const Stopwatch watch;
      const CallOutcome outcome = call(items.subspan(at, batch_items), results);
      seconds += watch.seconds();
      HITIDE_RETURN_IF_ERROR(outcome.status);
      for (const ItemResult& result : results) {
        if (result.code != StatusCode::ok) return Status(result.code, "an item failed");
      }
    }
    return seconds;
  }
  Result<double> put(ObjectStore& store) const {
    return run<PutItem>(puts, [&](auto items, std::span<ItemResult> results) {
      return store.put(items, results, {.keys_absent = true});
    });
  }
  Result<double> get(ObjectStore& store) const {
    return run<GetItem>(gets, [&](auto items, std::span<ItemResult> results) {
      return store.get(items, results, {});
    });
  }

  std::uint64_t bytes;
  std::size_t batch_items;
  std::vector<std::string> keys;
  std::vector<std::span<std::byte>> targets;
  std::vector<std::span<const std::byte>> sources;
  std::vector<PutItem> puts;
  std::vector<GetItem> gets;
};

using Timed = std::function<Result<double>()>;

// Two measurements of the same bytes, the second one first in every other round.
Status time_pair(int round, std::uint64_t bytes, const Timed& ours, const Timed& reference,
                 Row& row) {
  std::array<double, 2> seconds{};
  for (const std::size_t turn : {0u, 1u}) {
    const std::size_t side = (turn + static_cast<std::size_t>(round)) % 2;
    HITIDE_ASSIGN_OR_RETURN(seconds[side], side == 0 ? ours() : reference());
  }
  if (round < kWarmUp) return ok_status();
  const double megabytes = static_cast<double>(bytes) / 1e6;
  row.pairs.ours.push_back(megabytes / seconds[0]);
  row.pairs.reference.push_back(megabytes / seconds[1]);
  return ok_status();
}

std::string bare_move(const char* call, int round, std::uint64_t size, std::size_t batch) {
  return fmt::format("{} {} {} {} {}", call, round, kMemory / size, size, batch);
}

double ratio_of(const Row& row) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < row.pairs.ours.size(); ++i) {
    ratios.push_back(row.pairs.ours[i] / row.pairs.reference[i]);
  }
  return median(std::move(ratios));
}

struct MoveRows {
  Row put, get;
};

MoveRows rows_of(const char* put, const char* get, const Way& way, std::uint64_t size,
                 std::size_t batch, double target) {
  const std::string rest = fmt::format("_{}_{}_{}", way.name, size_name(size), batch);
  return {.put = {.name = "mooncake." + (put + rest), .unit = "MB/s", .target = at_least(target)},
          .get = {.name = "mooncake." + (get + rest), .unit = "MB/s", .target = at_least(target)}};
}

// ---- get and put --------------------------------------------------------------------------------

Status move_rows(Bed& bed, const Way& way, std::uint64_t size, std::size_t batch, Report& report,
                 std::vector<double>& ratios) {
  MoveRows rows = rows_of("put", "get", way, size, batch, 0.80);
  for (int i = 0; i < kWarmUp + kPairs; ++i) {
    const int round = bed.next_round();
    const Batches ours(bed.memory(), size, batch, round);
    HITIDE_RETURN_IF_ERROR(time_pair(
        i, ours.bytes, [&] { return ours.put(bed.store()); },
        [&] { return bed.bare().call(bare_move("put", round, size, batch)); }, rows.put));
    HITIDE_RETURN_IF_ERROR(time_pair(
        i, ours.bytes, [&] { return ours.get(bed.store()); },
        [&] { return bed.bare().call(bare_move("get", round, size, batch)); }, rows.get));
    HITIDE_RETURN_IF_ERROR(bed.bare().call("clear").status());
  }
  for (const Row* row : {&rows.put, &rows.get}) {
    report.add(*row);
    ratios.push_back(ratio_of(*row));
  }
  return ok_status();
}

// One line of what is the least and the middle of all cases.
void summarise(std::vector<double> ratios, Report& report) {
  Row middle{.name = "mooncake.cases_median", .unit = "x", .target = at_least(0.90)};
  middle.pairs = {.ours = {median(ratios)}, .reference = {1.0}};
  report.add(middle);
  Row least{.name = "mooncake.cases_least", .unit = "x", .target = at_least(0.80)};
  least.pairs = {.ours = {*std::min_element(ratios.begin(), ratios.end())}, .reference = {1.0}};
  report.add(least);
}

// ---- pages --------------------------------------------------------------------------------------

ModelSpec model_of(std::uint64_t object_bytes) {
  ModelSpec model;
  model.model_name = "bench";
  model.weights_digest = std::string(64, 'b');
  PoolSpec pool;
  pool.page_bytes = object_bytes - kEnvelopeBytes;
  model.pools.push_back(pool);
  return model;
}

// Keys, envelope and checksum on top; verified on the way back. A page is stored after its request
// has asked for it, as in the cache; the question is the request's, and not timed. The reference
// puts with groups, too, which the store asks a price for.
Status page_rows(Bed& bed, const Way& way, std::uint64_t size, std::size_t batch, Report& report) {
  MoveRows rows = rows_of("store", "load", way, size, batch, way.pages_target);
  PageStore pages(bed.store(), model_of(size));
  std::vector<PageSlot> slots(kMemory / size);
  std::vector<StatusCode> codes(batch);
  for (int i = 0; i < kWarmUp + kPairs; ++i) {
    const int round = bed.next_round();
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const std::array<std::uint64_t, 2> name = {static_cast<std::uint64_t>(round), s};
      std::copy_n(reinterpret_cast<const std::uint8_t*>(name.data()), sizeof name,
                  slots[s].key.bytes.begin());
      slots[s].slot = bed.memory().subspan(s * size, size);
    }
    std::vector<PageKey> keys;
    for (const PageSlot& slot : slots) keys.push_back(slot.key);
    PrefixStops stops;
    HITIDE_RETURN_IF_ERROR(pages.exists_prefix(keys, stops, {}).status);
    if (stops.longest() != 0) return Status(StatusCode::internal, "a new page is there already");
    const auto run = [&](const auto& call) -> Result<double> {
      const Stopwatch watch;
      for (std::size_t at = 0; at < slots.size(); at += batch) {
        HITIDE_RETURN_IF_ERROR(call(std::span<const PageSlot>(slots).subspan(at, batch)).status);
        const bool good = std::all_of(codes.begin(), codes.end(),
                                      [](StatusCode code) { return code == StatusCode::ok; });
        if (!good) return Status(StatusCode::internal, "a page failed");
      }
      return watch.seconds();
    };
    HITIDE_RETURN_IF_ERROR(time_pair(
        i, kMemory, [&] { return run([&](auto some) { return pages.store(some, codes, {}); }); },
        [&] { return bed.bare().call(bare_move("put_grouped", round, size, batch)); }, rows.put));
    HITIDE_RETURN_IF_ERROR(time_pair(
        i, kMemory, [&] { return run([&](auto some) { return pages.load(some, codes, {}); }); },
        [&] { return bed.bare().call(bare_move("get", round, size, batch)); }, rows.get));
    HITIDE_RETURN_IF_ERROR(bed.bare().call("clear").status());
  }
  report.add(rows.put);
  report.add(rows.get);
  return ok_status();
}

// ---- what a call costs --------------------------------------------------------------------------

Status call_row(Bed& bed, const Way& way, Report& report) {
  constexpr int kCalls = 500;
  Row row{.name = fmt::format("mooncake.exists_{}", way.name), .unit = "us"};
  const std::string_view key = "ours/none";
  ItemResult result;
  const Status status = measure_checked(
      kWarmUp, kPairs,
      [&](double& value) {
        const Stopwatch watch;
        for (int i = 0; i < kCalls; ++i) {
          HITIDE_RETURN_IF_ERROR(bed.store().exists({&key, 1}, {&result, 1}, {}).status);
        }
        value = watch.seconds() / kCalls * 1e6;
        return ok_status();
      },
      [&](double& value) -> Status {
        HITIDE_ASSIGN_OR_RETURN(const double seconds,
                                bed.bare().call(fmt::format("exists {}", kCalls)));
        value = seconds / kCalls * 1e6;
        return ok_status();
      },
      row.pairs);
  HITIDE_RETURN_IF_ERROR(status);
  row.note = fmt::format("the agent costs {:.0f} us a call",
                         median(row.pairs.ours) - median(row.pairs.reference));
  report.add(row);
  return ok_status();
}

// A logical pool's pages: small records out of private memory, all in one put.
Status marker_row(Bed& bed, const Way& way, Report& report) {
  constexpr std::size_t kMarkers = 1024;
  Row row{.name = fmt::format("mooncake.markers_{}", way.name), .unit = "ms"};
  std::vector<std::byte> records(kMarkers * kMarkerBytes, std::byte{7});
  const std::uint64_t calls_before = bed.store().counts().put_calls;
  for (int i = 0; i < kWarmUp + kPairs; ++i) {
    const int round = bed.next_round();
    const Batches ours(records, kMarkerBytes, kMarkers, round);
    HITIDE_ASSIGN_OR_RETURN(const double seconds, ours.put(bed.store()));
    HITIDE_ASSIGN_OR_RETURN(
        const double reference,
        bed.bare().call(fmt::format("put {} {} {} {}", round, kMarkers, kMarkerBytes, kMarkers)));
    HITIDE_RETURN_IF_ERROR(bed.bare().call("clear").status());
    if (i < kWarmUp) continue;
    row.pairs.ours.push_back(seconds * 1e3);
    row.pairs.reference.push_back(reference * 1e3);
  }
  const double calls = static_cast<double>(bed.store().counts().put_calls - calls_before);
  row.note = fmt::format("1,024 of them, {:.0f} call", calls / (kWarmUp + kPairs));
  report.add(row);
  return ok_status();
}

// Private memory, through bounce memory, against the same bytes where the agent sees them.
Status staged_rows(Bed& bed, const Way& way, Report& report) {
  std::vector<std::byte> own(bed.memory().begin(), bed.memory().end());
  MoveRows rows = rows_of("staged_put", "staged_get", way, kMiB, 16, 0);
  rows.put.target = rows.get.target = std::nullopt;
  for (int i = 0; i < kWarmUp + kPairs; ++i) {
    const Batches staged(own, kMiB, 16, bed.next_round());
    const Batches direct(bed.memory(), kMiB, 16, bed.next_round());
    HITIDE_RETURN_IF_ERROR(time_pair(
        i, kMemory, [&] { return staged.put(bed.store()); },
        [&] { return direct.put(bed.store()); }, rows.put));
    HITIDE_RETURN_IF_ERROR(time_pair(
        i, kMemory, [&] { return staged.get(bed.store()); },
        [&] { return direct.get(bed.store()); }, rows.get));
    HITIDE_RETURN_IF_ERROR(bed.bare().call("clear").status());
  }
  report.add(rows.put);
  report.add(rows.get);
  return ok_status();
}

// Taking over memory of ours, against memory that the client hands out.
Status adoption_row(Bed& bed, Report& report) {
  constexpr std::uint64_t kBytes = 256 * kMiB;
  constexpr double kGib = static_cast<double>(kBytes) / (1u << 30);
  Row row{.name = "mooncake.adopt", .unit = "s/GiB", .note = "against memory of the client's"};
  const UniqueFd file(::memfd_create("bench", MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), kBytes) != 0) {
    return errno_status(errno, "make", "a memory file");
  }
  void* base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return errno_status(errno, "map", "a memory file");
  const MemoryRegion ours{.bytes = {static_cast<std::byte*>(base), kBytes}, .fd = file.get()};
  std::fill(ours.bytes.begin(), ours.bytes.end(), std::byte{1});
  const Status status = measure_checked(
      0, 5,
      [&](double& value) -> Status {
        const Stopwatch watch;
        HITIDE_RETURN_IF_ERROR(bed.store().register_memory(ours));
        value = watch.seconds() / kGib;
        return bed.store().unregister_memory(ours.bytes);
      },
      [&](double& value) -> Status {
        const Stopwatch watch;
        HITIDE_ASSIGN_OR_RETURN(const MemoryRegion theirs,
                                bed.store().allocate_memory("bench", kBytes));
        HITIDE_RETURN_IF_ERROR(bed.store().register_memory(theirs));
        value = watch.seconds() / kGib;
        HITIDE_RETURN_IF_ERROR(bed.store().unregister_memory(theirs.bytes));
        bed.store().release_memory(theirs.bytes);
        return ok_status();
      },
      row.pairs);
  ::munmap(base, kBytes);
  HITIDE_RETURN_IF_ERROR(status);
  report.add(row);
  return ok_status();
}

// ---- cases --------------------------------------------------------------------------------------

// failed_precondition: no interpreter, or no package in it.
Status find_package(const Settings& settings) {
  MooncakeOptions options;
  options.python = settings.mooncake_python;
  options.protocol = "tcp";
  options.global_segment_size = 0;
  options.master_server_address = "127.0.0.1:1";  // nobody: the package is asked for before
  return MooncakeStore::open(options).status();
}

// Runs over a bed for each way. Without the package: one line, and no failure.
Status over_ways(const Settings& settings, const char* what,
                 const std::function<Status(Bed& bed, const Way& way)>& run) {
  set_log_level(LogLevel::error);  // nobody at the address that find_package() names
  const Status found = find_package(settings);
  set_log_level(LogLevel::warning);
  if (found.code() == StatusCode::failed_precondition) {
    fmt::print("skipped, {}: {}\n", found.message(), what);
    return ok_status();
  }
  for (const Way& way : kWays) {
    HITIDE_ASSIGN_OR_RETURN(const std::unique_ptr<Bed> bed, Bed::start(settings, way));
    HITIDE_RETURN_IF_ERROR(run(*bed, way));
  }
  return ok_status();
}

std::vector<std::string> names_of(std::initializer_list<const char*> calls) {
  std::vector<std::string> names;
  for (const Way& way : kWays) {
    for (const std::uint64_t size : kSizes) {
      for (const std::size_t batch : kBatches) {
        for (const char* call : calls) {
          names.push_back(
              fmt::format("mooncake.{}_{}_{}_{}", call, way.name, size_name(size), batch));
        }
      }
    }
  }
  return names;
}

Status moves(const Settings& settings, Report& report) {
  std::vector<double> ratios;
  const Status status =
      over_ways(settings, "mooncake.put_* mooncake.get_*", [&](Bed& bed, const Way& way) -> Status {
        for (const std::uint64_t size : kSizes) {
          for (const std::size_t batch : kBatches) {
            HITIDE_RETURN_IF_ERROR(move_rows(bed, way, size, batch, report, ratios));
          }
        }
        return ok_status();
      });
  if (status.ok() && !ratios.empty()) summarise(std::move(ratios), report);
  return status;
}

Status pages(const Settings& settings, Report& report) {
  return over_ways(settings, "mooncake.store_* mooncake.load_*",
                   [&](Bed& bed, const Way& way) -> Status {
                     for (const std::uint64_t size : kSizes) {
                       for (const std::size_t batch : kBatches) {
                         HITIDE_RETURN_IF_ERROR(page_rows(bed, way, size, batch, report));
                       }
                     }
                     return ok_status();
                   });
}

Status costs(const Settings& settings, Report& report) {
  return over_ways(settings, "mooncake.exists_* mooncake.markers_* mooncake.staged_* adopt",
                   [&](Bed& bed, const Way& way) -> Status {
                     HITIDE_RETURN_IF_ERROR(call_row(bed, way, report));
                     HITIDE_RETURN_IF_ERROR(marker_row(bed, way, report));
                     HITIDE_RETURN_IF_ERROR(staged_rows(bed, way, report));
                     return way.standalone ? adoption_row(bed, report) : ok_status();
                   });
}

}  // namespace

std::vector<Case> mooncake_cases() {
  std::vector<std::string> move_names = names_of({"put", "get"});
  move_names.insert(move_names.end(), {"mooncake.cases_median", "mooncake.cases_least"});
  std::vector<std::string> cost_names;
  for (const Way& way : kWays) {
    for (const char* row : {"exists", "markers"}) {
      cost_names.push_back(fmt::format("mooncake.{}_{}", row, way.name));
    }
    for (const char* row : {"staged_put", "staged_get"}) {
      cost_names.push_back(fmt::format("mooncake.{}_{}_1m_16", row, way.name));
    }
  }
  cost_names.emplace_back("mooncake.adopt");
  return {{.rows = std::move(move_names), .run = moves},
          {.rows = names_of({"store", "load"}), .run = pages},
          {.rows = std::move(cost_names), .run = costs}};
}

}  // namespace hitide::bench
