// LlamaDevice alone, driven by a small hand-written core: whatever the order of commands, copies
// and compactions, the logits are those of a fresh context, bit for bit.
#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <optional>

#include "engine/llama/llama_device.h"
#include "tests/integration/engine_support.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

class Inbox final : public CompletionSink {
 public:
  void post(CopyCompletion completion) override { posted.push_back(std::move(completion)); }
  std::vector<CopyCompletion> posted;
};

struct Rig {
  explicit Rig(KvType type, std::uint32_t page_count, std::uint32_t slack,
               std::uint32_t run_tokens_max = 0) {
    LlamaDeviceOptions options;
    options.geometry = {
        .page_count = page_count, .page_size = 16, .page_bytes = 1, .sequence_count = 24};
    options.cells = page_count * 16 + slack;
    options.batch = 256;
    options.physical_count = 32;
    options.run_tokens_max = run_tokens_max;
    const ContextPlan plan{.cells = options.cells,
                           .batch = 256,
                           .micro_batch = 32,
                           .sequences = 32,
                           .threads = 1,
                           .kv_type = type};
    // The size of a page, from a context of the same kind.
    {
      auto made =
          LlamaDevice::create(make_llama_context(test::shared_model(), plan).value(), options, {});
      LlamaDevice& probe = *made.value();
      probe.submit({.kind = SequenceCommand::Kind::extend,
                    .sequence = {0},
                    .position = 0,
                    .pages = {{0, 1}}});
      probe.run_commands(1s);
      const std::vector<TokenId> tokens = test::some_tokens(16, 1);
      std::vector<ComputeRun> runs{{.sequence = {0}, .tokens = tokens}};
      EXPECT_TRUE(probe.compute(runs).ok());
      options.geometry.page_bytes = probe.measure_page_bytes({0}).value();
    }
    device =
        LlamaDevice::create(make_llama_context(test::shared_model(), plan).value(), options, {})
            .value();
    EXPECT_TRUE(device->attach(&inbox).ok());
  }
  ~Rig() { device->detach(); }

  void command(SequenceCommand::Kind kind, int sequence, std::uint32_t position,
               std::vector<PageId> pages = {}) {
    device->submit(
        {.kind = kind, .sequence = {sequence}, .position = position, .pages = std::move(pages)});
  }
  void drain() {
    while (device->run_commands(1s)) {
    }
  }

  Inbox inbox;
  std::unique_ptr<LlamaDevice> device;
};

// The accounting half of a cache over tokens: paths with pages, a store of saved pages, least
// recently used eviction from the tail.
class TinyCore {
 public:
  static constexpr std::uint32_t kPage = 16;
  struct Path {
    int sequence = 0;
    std::vector<TokenId> tokens;
    std::vector<PageId> pages;
    std::uint64_t used = 0;
    bool busy = false;
  };

  TinyCore(Rig& rig, std::uint32_t page_count) : rig_(rig) {
    for (std::uint32_t i = page_count; i > 0; --i) free_pages_.push_back({i - 1, 0});
    for (int i = 23; i >= 0; --i) free_sequences_.push_back(i);
  }

  // A new path for `prompt`: shares what the device holds, loads what was saved, and makes pages
  // for the rest. Loads are executed.
  Path& admit(const std::vector<TokenId>& prompt) {
    const std::uint32_t whole = (static_cast<std::uint32_t>(prompt.size()) - 1) / kPage;
    Path* best = nullptr;
    std::uint32_t hit = 0;
    for (Path& path : paths_) {
      std::uint32_t k = 0;
      while (k < whole && k < path.pages.size() && (k + 1) * kPage <= path.tokens.size() &&
             std::equal(prompt.begin() + k * kPage, prompt.begin() + (k + 1) * kPage,
                        path.tokens.begin() + k * kPage)) {
        ++k;
      }
      if (k > hit) {
        hit = k;
        best = &path;
      }
    }
    const bool was_busy = best != nullptr && best->busy;
    if (best != nullptr) best->busy = true;
    const std::uint32_t total = static_cast<std::uint32_t>(prompt.size() + kPage - 1) / kPage;
    const std::vector<PageId> fresh = take_pages(total - hit);
    Path path{
        .sequence = take_sequence(), .tokens = prompt, .pages = {}, .used = ++clock_, .busy = true};
    if (best != nullptr) {
      path.pages.assign(best->pages.begin(), best->pages.begin() + hit);
      rig_.command(SequenceCommand::Kind::bind, path.sequence, 0, path.pages);
      best->busy = was_busy;
      best->used = ++clock_;
    }
    path.pages.insert(path.pages.end(), fresh.begin(), fresh.end());
    rig_.command(SequenceCommand::Kind::extend, path.sequence, hit, fresh);
    load(path, hit, whole);
    hit_pages += hit;
    return paths_.emplace_back(std::move(path));
  }

  void grow(Path& path) {
    const std::vector<PageId> fresh = take_pages(1);
    rig_.command(SequenceCommand::Kind::extend, path.sequence,
                 static_cast<std::uint32_t>(path.pages.size()), fresh);
    path.pages.push_back(fresh[0]);
  }

  // The request has ended with `tokens` in place; whole pages stay.
  void finish(Path& path, std::vector<TokenId> tokens) {
    path.busy = false;
    path.tokens = std::move(tokens);
    const auto keep = static_cast<std::uint32_t>(path.tokens.size() / kPage);
    path.tokens.resize(keep * kPage);
    cut(path, keep);
  }

  void save(const Path& path, std::uint32_t position) {
    const std::vector<TokenId> key(path.tokens.begin(),
                                   path.tokens.begin() + (position + 1) * kPage);
    std::vector<std::byte>& bytes = saved_[key];
    bytes.resize(rig_.device->geometry().page_bytes);
    CopyBatch batch{
        .op_id = ++op_,
        .direction = CopyDirection::to_host,
        .sequence = {},
        .pages = {{.page = path.pages[position], .position = position, .payload = bytes}}};
    rig_.device->submit(std::move(batch));
  }

  std::list<Path>& paths() { return paths_; }
  std::uint64_t hit_pages = 0, loaded_pages = 0;

 private:
  void load(Path& path, std::uint32_t from, std::uint32_t to) {
    CopyBatch batch{.op_id = ++op_,
                    .direction = CopyDirection::to_device,
                    .sequence = {path.sequence},
                    .pages = {}};
    for (std::uint32_t i = from; i < to; ++i) {
      const auto found = saved_.find({path.tokens.begin(), path.tokens.begin() + (i + 1) * kPage});
      if (found == saved_.end()) break;
      batch.pages.push_back({.page = path.pages[i], .position = i, .payload = found->second});
    }
    if (batch.pages.empty()) return;
    loaded_pages += batch.pages.size();
    rig_.device->submit(std::move(batch));
  }

  int take_sequence() {
    while (free_sequences_.empty()) evict_one();
    const int id = free_sequences_.back();
    free_sequences_.pop_back();
    return id;
  }

  std::vector<PageId> take_pages(std::uint32_t count) {
    while (free_pages_.size() < count) evict_one();
    std::vector<PageId> out;
    for (std::uint32_t i = 0; i < count; ++i) {
      PageId page = free_pages_.back();
      free_pages_.pop_back();
      ++page.generation;
      out.push_back(page);
    }
    return out;
  }

  // Cuts the last page of the path that was used least recently.
  void evict_one() {
    Path* victim = nullptr;
    for (Path& path : paths_) {
      if (!path.busy && (victim == nullptr || path.used < victim->used)) victim = &path;
    }
    ASSERT_NE(victim, nullptr);
    cut(*victim, victim->pages.empty() ? 0 : static_cast<std::uint32_t>(victim->pages.size()) - 1);
    victim->tokens.resize(victim->pages.size() * kPage);
    if (victim->pages.empty()) {
      free_sequences_.push_back(victim->sequence);
      paths_.remove_if([&](const Path& path) { return &path == victim; });
    }
  }

  void cut(Path& path, std::uint32_t keep) {
    const std::vector<PageId> gone(path.pages.begin() + keep, path.pages.end());
    path.pages.resize(keep);
    rig_.command(SequenceCommand::Kind::trim, path.sequence, keep);
    for (const PageId page : gone) {
      const bool listed = std::any_of(paths_.begin(), paths_.end(), [&](const Path& other) {
        return std::find(other.pages.begin(), other.pages.end(), page) != other.pages.end();
      });
      if (!listed) free_pages_.push_back(page);
    }
  }

  Rig& rig_;
  std::list<Path> paths_;
  std::vector<PageId> free_pages_;
  std::vector<int> free_sequences_;
  std::map<std::vector<TokenId>, std::vector<std::byte>> saved_;
  std::uint64_t clock_ = 0, op_ = 0;
};

// One request of the random test: computes its prompt in uneven steps, then some tokens.
struct Running {
  TinyCore::Path* path;
  std::vector<TokenId> tokens;
  std::uint32_t to_decode = 0;
  std::vector<float> last;
  bool done() const { return to_decode == 0; }
};

void run_random(KvType type, std::uint32_t seed, int rounds, std::uint32_t run_tokens_max) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::uint32_t kPages = 18;
  Rig rig(type, kPages, 32, run_tokens_max);
  TinyCore core(rig, kPages);
  test::Reference reference(type);
  std::mt19937 random(seed);
  std::uint32_t text_seed = seed * 1000;
  std::vector<Running> running;
  std::vector<std::vector<TokenId>> history;  // what has been computed once, evicted or not

  const auto start_one = [&] {
    std::vector<TokenId> prompt;
    if (!history.empty() && random() % 4 != 0) {
      const std::vector<TokenId>& old = history[random() % history.size()];
      const std::size_t pages = old.size() / TinyCore::kPage - random() % 2;
      prompt.assign(old.begin(),
                    old.begin() + static_cast<std::ptrdiff_t>(pages * TinyCore::kPage));
    }
    if (prompt.size() > 80) prompt.resize(80);
    const std::vector<TokenId> fresh =
        test::some_tokens((prompt.empty() ? 50 : 6) + random() % 16, ++text_seed);
    prompt.insert(prompt.end(), fresh.begin(), fresh.end());
    TinyCore::Path& path = core.admit(prompt);
    running.push_back(
        {.path = &path, .tokens = prompt, .to_decode = 2 + (unsigned)random() % 20, .last = {}});
  };

  int started = 0;
  while (started < rounds || !running.empty()) {
    if (started < rounds && (running.empty() || (running.size() < 2 && random() % 4 == 0))) {
      start_one();
      ++started;
    }
    rig.drain();
    std::vector<ComputeRun> runs;
    std::vector<std::size_t> whole;
    for (Running& r : running) {
      const std::uint32_t have = rig.device->filled({r.path->sequence});
      ASSERT_LT(have, r.tokens.size());
      const std::size_t left = r.tokens.size() - have;
      const std::size_t step = std::min<std::size_t>(left, 1 + random() % 24);
      if (have + step > r.path->pages.size() * TinyCore::kPage) core.grow(*r.path);
      runs.push_back({.sequence = {r.path->sequence},
                      .tokens = std::span(r.tokens).subspan(have, step),
                      .want_logits = step == left});
    }
    ASSERT_TRUE(rig.device->compute(runs).ok());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].logits == nullptr) continue;
      Running& r = running[i];
      r.last.assign(runs[i].logits, runs[i].logits + test::vocabulary_size());
      if (--r.to_decode > 0) r.tokens.push_back(test::greedy(runs[i].logits));
    }
    if (random() % 8 == 0) {
      ASSERT_TRUE(rig.device->compact().ok());
    }
    ASSERT_EQ(rig.device->check().to_string(), "ok");
    for (std::size_t i = 0; i < running.size();) {
      if (!running[i].done()) {
        ++i;
        continue;
      }
      Running r = std::move(running[i]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_TRUE(test::same_bits(r.last.data(), reference.logits(r.tokens).data()))
          << "round " << started << ", " << r.tokens.size() << " tokens";
      core.finish(*r.path, r.tokens);
      if (!r.path->tokens.empty()) history.push_back(r.path->tokens);
      for (std::uint32_t p = 0; p < r.path->pages.size(); ++p) {
        if (random() % 4 != 0) core.save(*r.path, p);
      }
    }
  }
  rig.drain();
  for (const CopyCompletion& completion : rig.inbox.posted) {
    for (const StatusCode code : completion.pages) EXPECT_EQ(code, StatusCode::ok);
  }
  const LlamaDeviceMetrics& metrics = rig.device->metrics();
  EXPECT_EQ(metrics.protocol_errors.value(), 0u);
  EXPECT_GT(metrics.compactions.value(), 0u);
  EXPECT_GT(core.hit_pages, 0u);
  EXPECT_GT(core.loaded_pages, 0u);
  std::printf("seed %u: %llu compactions, longest %.1f ms, %llu pages hit, %llu loaded\n", seed,
              static_cast<unsigned long long>(metrics.compactions.value()),
              static_cast<double>(metrics.compaction_ns_max.load()) * 1e-6,
              static_cast<unsigned long long>(core.hit_pages),
              static_cast<unsigned long long>(core.loaded_pages));
}

TEST(LlamaDevice, RandomCommandsKeepLogitsQ8) { run_random(KvType::q8_0, 1, 18, 0); }
TEST(LlamaDevice, RandomCommandsKeepLogitsF16InPieces) { run_random(KvType::f16, 1, 18, 16); }

TEST(LlamaDevice, SavedPagesAreEqualWhereverTheirCellsLie) {
  Rig rig(KvType::q8_0, 16, 64);
  TinyCore core(rig, 16);
  const std::vector<TokenId> tokens = test::some_tokens(32, 5);
  std::vector<std::vector<std::byte>> bytes(
      2, std::vector<std::byte>(rig.device->geometry().page_bytes));
  for (int s = 0; s < 2; ++s) {
    rig.command(
        SequenceCommand::Kind::extend, s, 0,
        {{static_cast<std::uint32_t>(2 * s), 1}, {static_cast<std::uint32_t>(2 * s + 1), 1}});
  }
  rig.drain();
  // The second sequence token by token, between the first one's: cells of the two alternate.
  for (std::size_t i = 0; i < 32; ++i) {
    std::vector<ComputeRun> runs;
    for (int s = 0; s < 2; ++s) {
      runs.push_back({.sequence = {s}, .tokens = std::span(tokens).subspan(i, 1)});
    }
    ASSERT_TRUE(rig.device->compute(runs).ok());
  }
  for (int s = 0; s < 2; ++s) {
    rig.device->submit(CopyBatch{.op_id = 1,
                                 .direction = CopyDirection::to_host,
                                 .sequence = {},
                                 .pages = {{.page = {static_cast<std::uint32_t>(2 * s + 1), 1},
                                            .position = 1,
                                            .payload = bytes[static_cast<std::size_t>(s)]}}});
  }
  rig.drain();
  EXPECT_EQ(bytes[0], bytes[1]);
  ASSERT_EQ(rig.inbox.posted.size(), 2u);
}

TEST(LlamaDevice, ReplacedPagesShareCellsAfterCompaction) {
  Rig rig(KvType::q8_0, 16, 64);
  const std::vector<TokenId> common = test::some_tokens(32, 11);
  std::vector<std::vector<TokenId>> prompts(2, common);
  for (std::uint32_t s = 0; s < 2; ++s) {
    const std::vector<TokenId> own = test::some_tokens(5, 20 + s);
    prompts[s].insert(prompts[s].end(), own.begin(), own.end());
    rig.command(SequenceCommand::Kind::extend, static_cast<int>(s), 0,
                {{3 * s, 1}, {3 * s + 1, 1}, {3 * s + 2, 1}});
  }
  rig.drain();
  for (int s = 0; s < 2; ++s) {
    std::vector<ComputeRun> runs{{.sequence = {s}, .tokens = common}};
    ASSERT_TRUE(rig.device->compute(runs).ok());
  }
  rig.command(SequenceCommand::Kind::replace, 1, 0, {{0, 1}, {1, 1}});
  rig.drain();
  EXPECT_EQ(rig.device->cells_used(), 64u);
  EXPECT_EQ(rig.device->cells_dead(), 32u);
  ASSERT_TRUE(rig.device->compact().ok());
  EXPECT_EQ(rig.device->cells_used(), 32u);
  EXPECT_EQ(rig.device->check().to_string(), "ok");
  rig.command(SequenceCommand::Kind::trim, 0, 2);
  rig.drain();
  test::Reference reference(KvType::q8_0);
  for (std::size_t s = 0; s < 2; ++s) {
    std::vector<ComputeRun> runs{{.sequence = {static_cast<int>(s)},
                                  .tokens = std::span(prompts[s]).subspan(32),
                                  .want_logits = true}};
    ASSERT_TRUE(rig.device->compute(runs).ok());
    EXPECT_TRUE(test::same_bits(runs[0].logits, reference.logits(prompts[s]).data())) << s;
  }
}

TEST(LlamaDevice, BadBytesAndWrongPositionsAreRefusedAndChangeNothing) {
  Rig rig(KvType::q8_0, 16, 64);
  const std::vector<TokenId> tokens = test::some_tokens(40, 6);
  rig.command(SequenceCommand::Kind::extend, 0, 0, {{0, 1}, {1, 1}, {2, 1}});
  rig.drain();
  std::vector<ComputeRun> runs{{.sequence = {0}, .tokens = std::span(tokens).first(32)}};
  ASSERT_TRUE(rig.device->compute(runs).ok());
  std::vector<std::byte> page(rig.device->geometry().page_bytes);
  const auto copy = [&](CopyDirection direction, int sequence, PageId id, std::uint32_t position,
                        std::span<std::byte> payload) {
    rig.device->submit(
        CopyBatch{.op_id = 9,
                  .direction = direction,
                  .sequence = {sequence},
                  .pages = {{.page = id, .position = position, .payload = payload}}});
    rig.drain();
    const StatusCode code = rig.inbox.posted.back().pages.at(0);
    EXPECT_EQ(rig.device->check().to_string(), "ok");
    return code;
  };
  ASSERT_EQ(copy(CopyDirection::to_host, -1, {0, 1}, 0, page), StatusCode::ok);

  rig.command(SequenceCommand::Kind::extend, 1, 0, {{3, 1}, {4, 1}});
  const std::uint32_t used = rig.device->cells_used();
  std::vector<std::byte> damaged = page;
  damaged[0] ^= std::byte{1};  // the magic
  EXPECT_EQ(copy(CopyDirection::to_device, 1, {3, 1}, 0, damaged), StatusCode::data_loss);
  std::vector<std::byte> half(page.begin(),
                              page.begin() + static_cast<std::ptrdiff_t>(page.size() / 2));
  EXPECT_EQ(copy(CopyDirection::to_device, 1, {3, 1}, 0, half), StatusCode::invalid_argument);
  EXPECT_EQ(copy(CopyDirection::to_device, 1, {4, 1}, 1, page), StatusCode::internal);
  EXPECT_EQ(rig.device->cells_used(), used);
  EXPECT_EQ(rig.device->filled({1}), 0u);
  // The right bytes still go in; the same bytes at the next position do not.
  EXPECT_EQ(copy(CopyDirection::to_device, 1, {3, 1}, 0, page), StatusCode::ok);
  EXPECT_EQ(copy(CopyDirection::to_device, 1, {4, 1}, 1, page), StatusCode::data_loss);
  EXPECT_EQ(rig.device->filled({1}), 16u);
  // Nothing of this has touched the first sequence.
  test::Reference reference(KvType::q8_0);
  std::vector<ComputeRun> more{
      {.sequence = {0}, .tokens = std::span(tokens).subspan(32), .want_logits = true}};
  ASSERT_TRUE(rig.device->compute(more).ok());
  EXPECT_TRUE(test::same_bits(more[0].logits, reference.logits(tokens).data()));
}

TEST(LlamaDevice, DetachAnswersWhatIsLeftAsCancelled) {
  Rig rig(KvType::q8_0, 16, 64);
  std::vector<std::byte> page(rig.device->geometry().page_bytes);
  for (std::uint64_t op = 1; op <= 3; ++op) {
    rig.device->submit(CopyBatch{.op_id = op,
                                 .direction = CopyDirection::to_host,
                                 .sequence = {},
                                 .pages = {{.page = {0, 1}, .position = 0, .payload = page},
                                           {.page = {1, 1}, .position = 1, .payload = page}}});
  }
  rig.device->run_commands(0s);  // one page of the first batch: refused, nobody holds it
  rig.device->detach();
  ASSERT_EQ(rig.inbox.posted.size(), 3u);
  EXPECT_EQ(rig.inbox.posted[0].pages, (std::vector{StatusCode::internal, StatusCode::cancelled}));
  EXPECT_EQ(rig.inbox.posted[2].pages, (std::vector{StatusCode::cancelled, StatusCode::cancelled}));
  EXPECT_EQ(rig.device->executed(), rig.device->submitted());
  EXPECT_TRUE(rig.device->attach(&rig.inbox).ok());
}

TEST(LlamaDevice, RunsOutOfIdsOnlyWhenAllAreAlive) {
  Rig rig(KvType::q8_0, 16, 64);
  const std::vector<TokenId> tokens = test::some_tokens(2, 8);
  // Many more short sequences than there are ids: dead ids come back by compaction.
  for (int i = 0; i < 80; ++i) {
    rig.command(SequenceCommand::Kind::extend, i % 24, 0,
                {{static_cast<std::uint32_t>(i % 16), static_cast<std::uint32_t>(i + 1)}});
    rig.drain();
    std::vector<ComputeRun> runs{{.sequence = {i % 24}, .tokens = std::span(tokens).first(1)}};
    ASSERT_TRUE(rig.device->compute(runs).ok()) << i;
    rig.command(SequenceCommand::Kind::trim, i % 24, 0);
    rig.drain();
  }
  EXPECT_GT(rig.device->metrics().compactions.value(), 0u);
  EXPECT_EQ(rig.device->check().to_string(), "ok");
}

}  // namespace
}  // namespace hitide
