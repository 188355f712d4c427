// Pages out of llama.cpp and back into it: the device's copies against the bare state calls for the
// same ranges, on two contexts of the same shape that hold the same tokens.
#include <algorithm>
#include <memory>
#include <numeric>

#include <fmt/format.h>
#include <llama.h>

#include "base/clock.h"
#include "bench/cases.h"
#include "bench/core_driver.h"
#include "engine/llama/engine_setup.h"
#include "engine/llama/llama_device.h"

namespace hitide::bench {
namespace {

constexpr std::uint32_t kPageSize = 32;
constexpr std::uint32_t kPageCount = 16;
constexpr std::uint32_t kTokenCount = kPageSize * kPageCount;
constexpr SequenceId kSource{0};
constexpr SequenceId kTarget{1};

class LastCompletion final : public CompletionSink {
 public:
  void post(CopyCompletion completion) override { last_ = std::move(completion); }
  bool all_ok() const {
    return last_.pages.size() == kPageCount &&
           std::all_of(last_.pages.begin(), last_.pages.end(),
                       [](StatusCode code) { return code == StatusCode::ok; });
  }

 private:
  CopyCompletion last_;
};

std::vector<PageId> page_ids(std::uint32_t first) {
  std::vector<PageId> ids;
  for (std::uint32_t i = 0; i < kPageCount; ++i) ids.push_back(PageId{first + i, 1});
  return ids;
}

// One run of pages in host memory.
struct HostPages {
  explicit HostPages(std::uint64_t bytes_per_page)
      : page_bytes(bytes_per_page), bytes(kPageCount * bytes_per_page) {}
  std::span<std::byte> page(std::uint32_t i) {
    return std::span(bytes).subspan(i * page_bytes, page_bytes);
  }
  double megabytes() const { return static_cast<double>(bytes.size()) / 1e6; }
  std::uint64_t page_bytes;
  std::vector<std::byte> bytes;
};

// What HiTide does: command queue, table of sequences, one range at a time.
class OurSide {
 public:
  Status open(EngineSetup& setup) {
    vocabulary_ =
        static_cast<std::uint64_t>(llama_vocab_n_tokens(llama_model_get_vocab(setup.model.get())));
    batch_ = setup.device.batch;
    HITIDE_ASSIGN_OR_RETURN(device_,
                            LlamaDevice::create(std::move(setup.context), setup.device, [] {}));
    return device_->attach(&sink_);
  }
  // Computes the tokens that all pages are about.
  Status fill() {
    extend(kSource, page_ids(0));
    drain();
    std::vector<TokenId> tokens = make_tokens(kTokenCount, 5);
    for (TokenId& token : tokens) token = static_cast<TokenId>(token % vocabulary_);
    const std::uint32_t chunk = std::min(batch_, 128u);
    for (std::uint32_t at = 0; at < kTokenCount; at += chunk) {
      ComputeRun run;
      run.sequence = kSource;
      run.tokens = std::span(tokens).subspan(at, std::min(chunk, kTokenCount - at));
      HITIDE_RETURN_IF_ERROR(device_->compute(std::span(&run, 1)));
    }
    return ok_status();
  }
  Status save(HostPages& pages, double& megabytes_per_s) {
    const Stopwatch watch;
    submit_copy(CopyDirection::to_host, SequenceId{}, 0, pages);
    drain();
    megabytes_per_s = pages.megabytes() / watch.seconds();
    return sink_.all_ok() ? ok_status() : Status(StatusCode::internal, "a page was not saved");
  }
  Status load(HostPages& pages, double& megabytes_per_s) {
    extend(kTarget, page_ids(kPageCount));
    drain();
    const Stopwatch watch;
    submit_copy(CopyDirection::to_device, kTarget, kPageCount, pages);
    drain();
    megabytes_per_s = pages.megabytes() / watch.seconds();
    SequenceCommand trim;
    trim.sequence = kTarget;
    device_->submit(trim);
    drain();
    if (!sink_.all_ok()) return Status(StatusCode::internal, "a page was not loaded");
    return device_->compact();
  }

 private:
  void drain() {
    while (device_->run_commands(std::chrono::seconds(1))) {
    }
  }
  void extend(SequenceId sequence, std::vector<PageId> pages) {
    SequenceCommand command;
    command.kind = SequenceCommand::Kind::extend;
    command.sequence = sequence;
    command.pages = std::move(pages);
    device_->submit(std::move(command));
  }
  void submit_copy(CopyDirection direction, SequenceId sequence, std::uint32_t first_id,
                   HostPages& pages) {
    CopyBatch batch;
    batch.op_id = 1;
    batch.direction = direction;
    batch.sequence = sequence;
    for (std::uint32_t i = 0; i < kPageCount; ++i) {
      batch.pages.push_back(
          {.page = PageId{first_id + i, 1}, .position = i, .payload = pages.page(i)});
    }
    device_->submit(std::move(batch));
  }

  LastCompletion sink_;
  std::unique_ptr<LlamaDevice> device_;
  std::uint64_t vocabulary_ = 1;
  std::uint32_t batch_ = 0;
};

// The calls of llama.h and nothing else: copy the range to a scratch id, read or write that, clear
// it.
class BareSide {
 public:
  explicit BareSide(EngineSetup& setup)
      : context_(std::move(setup.context)),
        memory_(llama_get_memory(context_.get())),
        scratch_(static_cast<llama_seq_id>(setup.device.physical_count) - 1) {}

  Status save(HostPages& pages, double& megabytes_per_s) {
    bool good = true;
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < kPageCount; ++i) {
      good = read(i * kPageSize, (i + 1) * kPageSize, pages.page(i)) && good;
    }
    megabytes_per_s = pages.megabytes() / watch.seconds();
    return good ? ok_status() : Status(StatusCode::internal, "bare state calls could not save");
  }
  // All pages in one piece. The bytes are a few fewer: one header instead of sixteen.
  Status save_whole(HostPages& pages, double& megabytes_per_s) {
    const Stopwatch watch;
    const bool good = read(0, kTokenCount, pages.bytes);
    megabytes_per_s = pages.megabytes() / watch.seconds();
    return good ? ok_status() : Status(StatusCode::internal, "bare state calls could not save");
  }
  // Appends the pages to `sequence`.
  Status load(SequenceId sequence, HostPages& pages, double& megabytes_per_s) {
    bool good = true;
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < kPageCount; ++i) {
      const auto bytes = pages.page(i);
      good = llama_state_seq_set_data(context_.get(),
                                      reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                      bytes.size(), scratch_) == bytes.size() &&
             good;
      llama_memory_seq_cp(memory_, scratch_, sequence.value, position(i), position(i + 1));
      llama_memory_seq_rm(memory_, scratch_, -1, -1);
    }
    megabytes_per_s = pages.megabytes() / watch.seconds();
    return good ? ok_status() : Status(StatusCode::internal, "bare state calls could not load");
  }
  void drop(SequenceId sequence) { llama_memory_seq_rm(memory_, sequence.value, -1, -1); }

 private:
  static llama_pos position(std::uint32_t page) { return static_cast<llama_pos>(page * kPageSize); }
  bool read(std::uint32_t begin, std::uint32_t end, std::span<std::byte> out) {
    llama_memory_seq_cp(memory_, kSource.value, scratch_, static_cast<llama_pos>(begin),
                        static_cast<llama_pos>(end));
    const std::size_t written = llama_state_seq_get_data(
        context_.get(), reinterpret_cast<std::uint8_t*>(out.data()), out.size(), scratch_);
    llama_memory_seq_rm(memory_, scratch_, -1, -1);
    return written > 0;
  }

  LlamaContextPtr context_;
  llama_memory_t memory_;
  llama_seq_id scratch_;
};

Result<EngineSetup> set_up(const Settings& settings) {
  EngineOptions options;
  options.model_path = settings.model_path;
  options.page_size = kPageSize;
  options.context_length = kTokenCount;
  options.device_tokens = 3 * kTokenCount;
  return set_up_engine(options, CacheOptions());
}

Status copy_pages(const Settings& settings, Report& report) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  HITIDE_ASSIGN_OR_RETURN(EngineSetup setup, set_up(settings));
  HITIDE_ASSIGN_OR_RETURN(EngineSetup bare_setup, set_up(settings));
  if (!setup.info.cache_on) return Status(StatusCode::unimplemented, setup.info.cache_detail);
  HostPages pages(setup.device.geometry.page_bytes);
  HostPages copy(setup.device.geometry.page_bytes);
  BareSide bare(bare_setup);
  OurSide ours;
  HITIDE_RETURN_IF_ERROR(ours.open(setup));
  HITIDE_RETURN_IF_ERROR(ours.fill());
  double unused = 0.0;
  HITIDE_RETURN_IF_ERROR(ours.save(pages, unused));
  HITIDE_RETURN_IF_ERROR(bare.load(kSource, pages, unused));

  Row save{.name = "llama.save", .unit = "MB/s", .target = at_least(0.9)};
  HITIDE_RETURN_IF_ERROR(measure_checked(
      5, 200, [&](double& value) { return ours.save(pages, value); },
      [&](double& value) { return bare.save(copy, value); }, save.pairs));
  if (pages.bytes != copy.bytes) {
    return Status(StatusCode::internal, "the two sides saved different bytes");
  }
  save.note = fmt::format("pages of {} tokens, {} bytes", kPageSize, pages.page_bytes);
  report.add(save);

  Row load{.name = "llama.load", .unit = "MB/s", .target = at_least(0.9)};
  const auto bare_load = [&](double& value) -> Status {
    const Status status = bare.load(kTarget, pages, value);
    bare.drop(kTarget);
    return status;
  };
  HITIDE_RETURN_IF_ERROR(measure_checked(
      5, 200, [&](double& value) { return ours.load(pages, value); }, bare_load, load.pairs));
  report.add(load);

  Row whole{.name = "llama.save_whole", .unit = "MB/s"};
  HITIDE_RETURN_IF_ERROR(measure_checked(
      5, 200, [&](double& value) { return ours.save(pages, value); },
      [&](double& value) { return bare.save_whole(copy, value); }, whole.pairs));
  whole.note = fmt::format("against one call for all {} tokens", kTokenCount);
  report.add(whole);
  return ok_status();
}

}  // namespace

std::vector<Case> llama_cases() {
  return {{.rows = {"llama.save", "llama.load", "llama.save_whole"},
           .needs_model = true,
           .run = copy_pages}};
}

}  // namespace hitide::bench
