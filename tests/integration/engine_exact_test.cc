// Exactness: greedy tokens and logits with the cache equal those without it, bit for bit, whichever
// tier the prefix came from and whatever else happens.
#include <filesystem>
#include <fstream>

#include "base/metrics.h"
#include "tests/integration/engine_harness.h"

namespace hitide {
namespace {

using test::expect_same;
using test::generate;

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void wait_for_backups(Engine& engine, std::uint64_t pages) {
  test::wait_for("backups to the host",
                 [&] { return engine.cache_stats().backed_up_pages_host >= pages; });
}

void expect_tiers(const GenerationResult& result, std::uint32_t device, std::uint32_t host,
                  std::uint32_t storage) {
  EXPECT_EQ(result.cached_device, device);
  EXPECT_EQ(result.cached_host, host);
  EXPECT_EQ(result.cached_storage, storage);
  EXPECT_EQ(result.cached_tokens, device + host + storage);
}

TEST(EngineExact, DeviceHit) {
  test::TestOptions options;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->info().exact) << engine->info().exact_detail;
  EXPECT_TRUE(engine->info().cache_on);
  test::Uncached uncached(options);
  const std::vector<TokenId> prompt = test::some_tokens(101, 1);
  const GenerationResult cold = generate(*engine, prompt, 8);
  expect_tiers(cold, 0, 0, 0);
  const GenerationResult warm = generate(*engine, prompt, 8);
  expect_tiers(warm, 96, 0, 0);
  const GenerationResult reference = uncached.generate(prompt, 8);
  expect_same(cold, reference, "cold");
  expect_same(warm, reference, "warm");
  // A next turn goes on behind the answer, and another one branches off.
  const std::vector<TokenId> turn = joined(joined(prompt, warm.tokens), test::some_tokens(20, 2));
  const std::vector<TokenId> branch =
      joined({prompt.begin(), prompt.begin() + 70}, test::some_tokens(30, 3));
  const GenerationResult turned = generate(*engine, turn, 6);
  EXPECT_EQ(turned.cached_device, 96u);
  expect_same(turned, uncached.generate(turn, 6), "next turn");
  const GenerationResult branched = generate(*engine, branch, 6);
  EXPECT_EQ(branched.cached_device, 64u);
  expect_same(branched, uncached.generate(branch, 6), "branch");
}

void run_host_hit(const std::string& kv_type) {
  test::TestOptions options;
  options.engine.kv_cache_dtype = kv_type;
  options.engine.context_length = 160;
  options.engine.device_tokens = 160;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  test::Uncached uncached(options);
  const std::vector<TokenId> first = test::some_tokens(101, 11);
  const std::vector<TokenId> second = test::some_tokens(120, 12);
  generate(*engine, first, 4);
  wait_for_backups(*engine, 6);
  generate(*engine, second, 4);  // the device holds ten pages: the first prompt has to go
  const GenerationResult warm = generate(*engine, first, 8);
  EXPECT_GT(warm.cached_host, 0u);
  EXPECT_EQ(warm.cached_tokens, 96u);
  expect_same(warm, uncached.generate(first, 8), "from the host");
}

TEST(EngineExact, HostHitAfterEvictionFromTheDeviceQ8) { run_host_hit("q8_0"); }
TEST(EngineExact, HostHitAfterEvictionFromTheDeviceF16) { run_host_hit("f16"); }

// Prompts that come back from the host each time leave dead cells behind, which go while another
// request computes.
TEST(EngineExact, NothingStaysIdleAndCompactionsDisturbNobody) {
  test::TestOptions options;
  options.cache.policy.device_idle_tokens = 0;
  options.engine.device_tokens = 4096;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  test::Uncached uncached(options);
  const std::vector<TokenId> prompts[] = {test::some_tokens(101, 31), test::some_tokens(120, 32)};
  const GenerationResult references[] = {uncached.generate(prompts[0], 2),
                                         uncached.generate(prompts[1], 2)};
  for (const std::vector<TokenId>& prompt : prompts) generate(*engine, prompt, 2);
  test::wait_for("everything to have left the device", [&] {
    const PoolStats device = engine->cache_stats().device;
    return device.pages_free == device.pages_total;
  });
  const auto compacted = [&] {
    MetricsText text;
    engine->append_metrics(text);
    return std::move(text).text().find("hitide_engine_compaction_seconds_count 0\n") ==
           std::string::npos;
  };
  const std::vector<TokenId> long_prompt = test::some_tokens(40, 33);
  test::WaitingSink sink;
  ASSERT_TRUE(engine->submit(test::greedy_request(long_prompt, 160), &sink).ok());
  sink.wait_admitted();
  ASSERT_FALSE(compacted());
  for (int i = 0; i < 24; ++i) {
    const GenerationResult warm = generate(*engine, prompts[i % 2], 2);
    expect_tiers(warm, 0, i % 2 == 0 ? 96 : 112, 0);
    expect_same(warm, references[i % 2], "from the host");
  }
  EXPECT_TRUE(compacted());
  expect_same(sink.wait(), uncached.generate(long_prompt, 160), "beside them");
}

TEST(EngineExact, StorageHitAfterRestart) {
  const TempDirectory folder;
  test::TestOptions options;
  options.cache.storage.backend = "file";
  options.cache.storage.path = folder.path();
  options.cache.storage.segment_bytes = 16u << 20;
  const std::vector<TokenId> prompt = test::some_tokens(150, 21);
  {
    const auto engine = options.open();
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->info().storage_backend, "file");
    generate(*engine, prompt, 4);
    test::wait_for("backups to the store",
                   [&] { return engine->cache_stats().backed_up_pages_storage >= 9; });
    EXPECT_TRUE(engine->close(std::chrono::steady_clock::now() + std::chrono::seconds(5)).ok());
  }
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  const GenerationResult warm = generate(*engine, prompt, 8);
  expect_tiers(warm, 0, 0, 144);
  test::Uncached uncached(options);
  expect_same(warm, uncached.generate(prompt, 8), "from the store");
}

// One bit of a stored page flips between two runs: the page is a miss, and nothing else changes.
TEST(EngineExact, ADamagedStoredPageIsComputedAgain) {
  const TempDirectory folder;
  test::TestOptions options;
  options.cache.storage.backend = "file";
  options.cache.storage.path = folder.path();
  const std::vector<TokenId> prompt = test::some_tokens(150, 25);
  {
    const auto engine = options.open();
    ASSERT_NE(engine, nullptr);
    generate(*engine, prompt, 2);
    test::wait_for("backups to the store",
                   [&] { return engine->cache_stats().backed_up_pages_storage >= 9; });
    EXPECT_TRUE(engine->close(std::chrono::steady_clock::now() + std::chrono::seconds(5)).ok());
  }
  std::filesystem::path largest;
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file() && entry.file_size() > bytes) {
      largest = entry.path();
      bytes = entry.file_size();
    }
  }
  ASSERT_GT(bytes, 9 * 100'000u);
  {
    // In the fifth of nine pages, far from its ends.
    std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(9 * 205'000 / 2);
    char byte = 0;
    file.seekg(at);
    file.get(byte);
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 4));
  }
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  const GenerationResult warm = generate(*engine, prompt, 8);
  EXPECT_EQ(warm.cached_storage, 64u);
  EXPECT_EQ(engine->cache_stats().verification_failures, 1u);
  test::Uncached uncached(options);
  expect_same(warm, uncached.generate(prompt, 8), "with a damaged page");
}

TEST(EngineExact, ConcurrentRequests) {
  test::TestOptions options;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  test::Uncached uncached(options);
  const std::vector<TokenId> shared = test::some_tokens(64, 31);
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t i = 0; i < 5; ++i) {
    prompts.push_back(joined(shared, test::some_tokens(10 + 13 * i, 32 + i)));
  }
  prompts.push_back(prompts[0]);  // the same one twice at once
  std::vector<test::WaitingSink> sinks(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(engine->submit(test::greedy_request(prompts[i], 10), &sinks[i]).ok());
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    expect_same(sinks[i].wait(), uncached.generate(prompts[i], 10), "request " + std::to_string(i));
  }
}

TEST(EngineExact, CancelledInPrefillThenAskedAgain) {
  test::TestOptions options;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  test::Uncached uncached(options);
  const std::vector<TokenId> prompt = test::some_tokens(300, 41);
  test::WaitingSink sink;
  const auto id = engine->submit(test::greedy_request(prompt, 8), &sink);
  ASSERT_TRUE(id.ok());
  sink.wait_admitted();
  engine->cancel(id.value());
  const GenerationResult cancelled = sink.wait();
  EXPECT_EQ(cancelled.finish, FinishReason::cancelled);
  EXPECT_TRUE(cancelled.tokens.empty());
  const GenerationResult again = generate(*engine, prompt, 8);
  EXPECT_GT(again.cached_tokens, 0u);  // what had been computed is not lost
  EXPECT_LT(again.cached_tokens, 288u);
  expect_same(again, uncached.generate(prompt, 8), "after the cancellation");
}

// Random prompts that branch off each other on a device that is always full.
void run_under_pressure(const std::string& kv_type, std::uint32_t seed, int rounds) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  test::TestOptions options;
  options.engine.kv_cache_dtype = kv_type;
  options.engine.context_length = 160;
  options.engine.device_tokens = 400;
  options.engine.sequences_max = 8;
  options.cache.host.bytes = 8u << 20;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->info().exact) << engine->info().exact_detail;
  test::Uncached uncached(options);
  std::mt19937 random(seed);
  std::vector<std::vector<TokenId>> history;
  std::uint64_t cached = 0;
  for (int round = 0; round < rounds; ++round) {
    // Two at a time, so that decode, prefill, loads and evictions meet.
    std::vector<std::vector<TokenId>> prompts(2);
    for (std::vector<TokenId>& prompt : prompts) {
      if (!history.empty() && random() % 4 != 0) {
        const std::vector<TokenId>& old = history[random() % history.size()];
        prompt.assign(old.begin(),
                      old.begin() +
                          static_cast<std::ptrdiff_t>(std::min<std::size_t>(old.size(), 100)) -
                          static_cast<std::ptrdiff_t>(random() % 2 * 7));
      }
      prompt = joined(prompt, test::some_tokens((prompt.empty() ? 50 : 5) + random() % 20,
                                                seed * 1000 + (unsigned)random() % 997));
    }
    std::vector<test::WaitingSink> sinks(prompts.size());
    const std::uint32_t count = 3 + (unsigned)random() % 15;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_TRUE(engine->submit(test::greedy_request(prompts[i], count), &sinks[i]).ok());
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const GenerationResult result = sinks[i].wait();
      EXPECT_TRUE(result.status.ok()) << result.status.to_string();
      cached += result.cached_tokens;
      expect_same(result, uncached.generate(prompts[i], count),
                  "round " + std::to_string(round) + ", request " + std::to_string(i));
      history.push_back(joined(prompts[i], result.tokens));
    }
  }
  const CacheStats stats = engine->cache_stats();
  EXPECT_GT(cached, 0u);
  EXPECT_GT(stats.evicted_pages[0], 0u);
  EXPECT_EQ(stats.bypass_trips, 0u);
  MetricsText text;
  engine->append_metrics(text);
  const std::string metrics = std::move(text).text();
  EXPECT_NE(metrics.find("hitide_engine_protocol_errors_total 0\n"), std::string::npos);
  EXPECT_EQ(metrics.find("hitide_engine_compaction_seconds_count 0\n"), std::string::npos);
  std::printf("seed %u, %s: %llu tokens cached, %llu pages evicted, %llu loaded back\n", seed,
              kv_type.c_str(), static_cast<unsigned long long>(cached),
              static_cast<unsigned long long>(stats.evicted_pages[0]),
              static_cast<unsigned long long>(stats.loaded_back_pages));
}

TEST(EngineExact, EvictionPressureQ8) { run_under_pressure("q8_0", 51, 12); }
TEST(EngineExact, EvictionPressureF16) { run_under_pressure("f16", 52, 8); }

TEST(EngineExact, SeveralRequestsThatDoNotFitAtOnceAreAllServed) {
  test::TestOptions options;
  options.engine.context_length = 160;
  options.engine.device_tokens = 192;  // twelve pages, three requests of up to eight
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  test::Uncached uncached(options);
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t i = 0; i < 3; ++i) prompts.push_back(test::some_tokens(50, 61 + i));
  std::vector<test::WaitingSink> sinks(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(engine->submit(test::greedy_request(prompts[i], 60), &sinks[i]).ok());
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const GenerationResult result = sinks[i].wait();
    EXPECT_EQ(result.finish, FinishReason::length) << result.status.to_string();
    EXPECT_EQ(result.tokens.size(), 60u);
    expect_same(result, uncached.generate(prompts[i], 60), "request " + std::to_string(i));
  }
  MetricsText text;
  engine->append_metrics(text);
  const std::string metrics = std::move(text).text();
  EXPECT_EQ(metrics.find("hitide_engine_preemptions_total 0\n"), std::string::npos);
}

// Prompts that fill more than half of the device each, all waiting when the first is let in: one
// that has just been admitted is nobody's room to take.
TEST(EngineExact, PromptsOfWhichOnlyOneFitsAreServedOneAfterTheOther) {
  test::TestOptions options;
  options.engine.context_length = 160;
  options.engine.device_tokens = 160;
  const auto engine = options.open();
  ASSERT_NE(engine, nullptr);
  test::Uncached uncached(options);
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t i = 0; i < 4; ++i) prompts.push_back(test::some_tokens(110, 71 + i));
  std::vector<test::WaitingSink> sinks(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(engine->submit(test::greedy_request(prompts[i], 4), &sinks[i]).ok());
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const GenerationResult result = sinks[i].wait();
    EXPECT_EQ(result.finish, FinishReason::length) << result.status.to_string();
    expect_same(result, uncached.generate(prompts[i], 4), "request " + std::to_string(i));
  }
}

}  // namespace
}  // namespace hitide
