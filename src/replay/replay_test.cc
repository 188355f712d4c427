#include "replay/replay.h"

#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace hitide {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kBlock = 4;

Trace blocks_trace(const std::vector<std::vector<std::uint64_t>>& prompts) {
  Trace trace;
  trace.block_tokens = kBlock;
  for (const std::vector<std::uint64_t>& blocks : prompts) {
    TraceRequest request;
    request.at = std::chrono::seconds(trace.requests.size());
    request.tokens = static_cast<std::uint32_t>(blocks.size()) * kBlock;
    request.blocks = blocks;
    trace.requests.push_back(std::move(request));
  }
  return trace;
}

ReplayOptions small(std::uint64_t device, std::uint64_t host = 0, std::uint64_t storage = 0) {
  ReplayOptions options;
  options.page_size = kBlock;
  options.device_pages = device;
  options.host_pages = host;
  options.storage_pages = storage;
  options.policy.prefetch_threshold_tokens = 1;
  options.policy.load_back_threshold_tokens = 1;
  return options;
}

ReplayReport must(const Result<ReplayReport>& report) {
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  return report.ok() ? *report : ReplayReport{};
}

std::uint64_t served(const ReplayReport& report, Tier tier) {
  return report.served_tokens[static_cast<std::size_t>(tier)];
}

void expect_sums(const ReplayReport& report) {
  std::uint64_t sum = 0;
  for (const std::uint64_t tokens : report.served_tokens) sum += tokens;
  EXPECT_EQ(sum, report.all.served_tokens);
  for (const std::uint64_t tokens : report.missed_tokens) sum += tokens;
  EXPECT_EQ(sum, report.all.prompt_tokens);
  EXPECT_LE(report.all.served_tokens, report.all.ceiling_tokens);
}

// The definition itself: blocks in a tree, the leaf used longest ago goes, a prompt's own path
// stays. Slow and plain.
class LeafLru {
 public:
  explicit LeafLru(std::size_t capacity) : capacity_(capacity) {}

  std::uint64_t serve(const std::vector<std::uint64_t>& blocks) {
    ++clock_;
    std::size_t hits = 0;
    while (hits < blocks.size() && used_.count(blocks[hits]) != 0) used_[blocks[hits++]] = clock_;
    const std::set<std::uint64_t> own(blocks.begin(), blocks.end());
    for (std::size_t i = hits; i < blocks.size(); ++i) {
      if (used_.size() >= capacity_) evict(own);
      used_[blocks[i]] = clock_;
      if (i > 0) parent_[blocks[i]] = blocks[i - 1];
    }
    return hits;
  }
  std::uint64_t evicted() const { return evicted_; }

 private:
  void evict(const std::set<std::uint64_t>& own) {
    std::set<std::uint64_t> inner;
    for (const auto& [block, parent] : parent_) inner.insert(parent);
    std::uint64_t victim = 0;
    std::uint64_t oldest = UINT64_MAX;
    for (const auto& [block, used] : used_) {
      if (used >= oldest || inner.count(block) != 0 || own.count(block) != 0) continue;
      victim = block;
      oldest = used;
    }
    used_.erase(victim);
    parent_.erase(victim);
    ++evicted_;
  }

  std::size_t capacity_;
  std::uint64_t clock_ = 0;
  std::uint64_t evicted_ = 0;
  std::map<std::uint64_t, std::uint64_t> used_;
  std::map<std::uint64_t, std::uint64_t> parent_;
};

// Prompts that go on from, and leave, one another at any block.
std::vector<std::vector<std::uint64_t>> random_prompts(Random& random, std::size_t count) {
  std::vector<std::vector<std::uint64_t>> prompts;
  std::uint64_t next = 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::uint64_t> blocks;
    if (!prompts.empty() && random.chance(0.8)) {
      blocks = prompts[random.below(prompts.size())];
      blocks.resize(1 + random.below(blocks.size()));
    }
    const std::uint64_t fresh = random.below(6);
    for (std::uint64_t k = 0; k < fresh || blocks.empty(); ++k) blocks.push_back(next++);
    if (blocks.size() > 12) blocks.resize(12);
    prompts.push_back(std::move(blocks));
  }
  return prompts;
}

TEST(Replay, LeafIsTheDefinitionItself) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    const auto prompts = random_prompts(random, 200);
    const std::size_t capacity = 12 + random.below(40);
    ReplayOptions options = small(capacity);
    options.definition = LruDefinition::leaf;
    const ReplayReport report = must(replay(blocks_trace(prompts), options));
    LeafLru reference(capacity);
    std::uint64_t hits = 0;
    for (const auto& blocks : prompts) hits += reference.serve(blocks);
    EXPECT_EQ(served(report, Tier::device), hits * kBlock);
    EXPECT_EQ(report.evicted_pages[0], reference.evicted());
    expect_sums(report);
  }
}

TEST(Replay, LeafCountsPartOfAPageAsFarAsThePromptGoes) {
  Trace trace = blocks_trace({{1, 2}, {1, 2}});
  for (TraceRequest& request : trace.requests) request.tokens = 7;
  ReplayOptions options = small(8);
  options.definition = LruDefinition::leaf;
  EXPECT_EQ(must(replay(trace, options)).all.served_tokens, 7u);
  options.definition = LruDefinition::core;
  const ReplayReport core = must(replay(trace, options));
  EXPECT_EQ(core.all.served_tokens, 4u);
  EXPECT_EQ(core.missed_tokens[static_cast<std::size_t>(MissReason::partial_page)] +
                core.missed_tokens[static_cast<std::size_t>(MissReason::last_token)],
            6u);
}

TEST(Replay, APromptThatLeavesARunOfPagesDoesNotKeepTheRestOfIt) {
  // 4 and 5 are older than 9 once the third prompt has left their run behind 3.
  const Trace trace = blocks_trace({{1, 2, 3, 4, 5}, {9}, {1, 2, 3, 7}, {10, 11}, {9}});
  ReplayOptions options = small(9);
  options.definition = LruDefinition::leaf;
  EXPECT_EQ(must(replay(trace, options)).all.served_tokens, (3 + 1) * kBlock);
}

TEST(Replay, WhatOneTierEvictsTheNextServes) {
  // Two prompts of 4 pages; the device holds one of them and the page that is computed.
  const Trace trace = blocks_trace({{1, 2, 3, 4}, {5, 6, 7, 8}, {1, 2, 3, 4}, {5, 6, 7, 8}});
  const ReplayReport none = must(replay(trace, small(4)));
  EXPECT_EQ(none.all.served_tokens, 0u);
  EXPECT_GT(none.evicted_pages[0], 0u);
  const ReplayReport host = must(replay(trace, small(4, 16)));
  EXPECT_EQ(served(host, Tier::host), 2 * 3 * kBlock);
  const ReplayReport storage = must(replay(trace, small(4, 4, 16)));
  EXPECT_EQ(served(storage, Tier::storage), 2 * 3 * kBlock);
  for (const ReplayReport& report : {none, host, storage}) {
    EXPECT_EQ(report.all.ceiling_tokens, 2 * 3 * kBlock);
    expect_sums(report);
  }
}

TEST(Replay, StorageLosesWhatWasWrittenFirst) {
  const Trace trace =
      blocks_trace({{1, 2, 3, 4}, {5, 6, 7, 8}, {11, 12, 13, 14}, {5, 6, 7, 8}, {1, 2, 3, 4}});
  const ReplayReport report = must(replay(trace, small(4, 4, 8)));
  EXPECT_EQ(served(report, Tier::storage), 3 * kBlock);
  EXPECT_EQ(report.evicted_pages[2], 4u + 4u);
}

TEST(Replay, AWaitForSlowStorageEndsAsThePolicySays) {
  Trace trace = blocks_trace({{1, 2, 3, 4}, {5, 6, 7, 8}, {1, 2, 3, 4}});
  // Each write is done before the next prompt, and does not hold its host pages any more.
  for (std::size_t i = 0; i < 3; ++i) trace.requests[i].at = std::chrono::seconds(1000 * i);
  ReplayOptions options = small(4, 4, 16);
  options.storage_speed.latency = std::chrono::seconds(60);
  options.policy.prefetch_policy = PrefetchPolicy::timeout;
  const ReplayReport late = must(replay(trace, options));
  EXPECT_EQ(late.all.served_tokens, 0u);
  EXPECT_GT(late.missed_tokens[static_cast<std::size_t>(MissReason::deadline)], 0u);
  options.storage_speed.latency = std::chrono::milliseconds(10);
  const ReplayReport in_time = must(replay(trace, options));
  EXPECT_EQ(served(in_time, Tier::storage), 3 * kBlock);
  EXPECT_GE(in_time.storage_wait, std::chrono::milliseconds(20));
  options.policy.prefetch_policy = PrefetchPolicy::best_effort;
  EXPECT_EQ(must(replay(trace, options)).all.served_tokens, 0u);
  expect_sums(late);
}

TEST(Replay, APromptLongerThanTheDeviceIsRefusedAndCounted) {
  const ReplayReport report = must(replay(blocks_trace({{1, 2, 3}, {4}}), small(2)));
  EXPECT_EQ(report.refused_requests, 1u);
  EXPECT_EQ(report.missed_tokens[static_cast<std::size_t>(MissReason::pool_full)], 3 * kBlock);
  expect_sums(report);
}

TEST(Replay, OneRunIsLikeTheOther) {
  Random random(7);
  const Trace trace = blocks_trace(random_prompts(random, 300));
  for (const EvictionPolicy policy :
       {EvictionPolicy::lru, EvictionPolicy::lfu, EvictionPolicy::slru, EvictionPolicy::fifo,
        EvictionPolicy::mru, EvictionPolicy::filo, EvictionPolicy::priority}) {
    ReplayOptions options = small(16, 24, 48);
    options.policy.eviction_policy = policy;
    const ReplayReport one = must(replay(trace, options));
    const ReplayReport other = must(replay(trace, options));
    EXPECT_EQ(one.served_tokens, other.served_tokens);
    EXPECT_EQ(one.evicted_pages, other.evicted_pages);
    expect_sums(one);
  }
}

TEST(Trace, BlocksAndTexts) {
  const Result<Trace> blocks = parse_trace(
      "{\"timestamp\": 20, \"input_length\": 600, \"hash_ids\": [7, 8], \"output_length\": 3}\n\n"
      "{\"timestamp\": 10, \"input_length\": 512, \"hash_ids\": [7]}",
      512);
  ASSERT_TRUE(blocks.ok()) << blocks.status().to_string();
  ASSERT_EQ(blocks->requests.size(), 2u);
  EXPECT_EQ(blocks->requests[0].tokens, 512u);
  EXPECT_EQ(blocks->requests[1].at, std::chrono::milliseconds(10));
  std::vector<TokenId> first;
  std::vector<TokenId> second;
  prompt_tokens(*blocks, blocks->requests[0], first);
  prompt_tokens(*blocks, blocks->requests[1], second);
  ASSERT_EQ(second.size(), 600u);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));

  const Result<Trace> text =
      parse_trace("{\"timestamp\": 1760428635884722, \"input\": \"abcdefghi\"}\n", 512);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(text->block_tokens, 0u);
  prompt_tokens(*text, text->requests[0], first);
  EXPECT_THAT(first, ::testing::ElementsAre(0x61626364, 0x65666768, 0x69));
}

TEST(Trace, SaysWhatIsWrongWithWhichLine) {
  const std::map<std::string, std::string> wrong = {
      {"", "no request"},
      {"nonsense", "line 1: not a JSON object"},
      {"[1]", "line 1: not a JSON object"},
      {"{}", "line 1: neither 'hash_ids' nor 'input'"},
      {R"({"hash_ids": [1], "input_length": 5})", "'timestamp'"},
      {R"({"timestamp": -1, "hash_ids": [1], "input_length": 5})", "'timestamp' -1"},
      {R"({"timestamp": 1e300, "hash_ids": [1], "input_length": 5})", "'timestamp'"},
      {R"({"timestamp": 0, "hash_ids": [1]})", "'input_length'"},
      {R"({"timestamp": 0, "hash_ids": [1], "input_length": 0})", "'input_length' 0"},
      {R"({"timestamp": 0, "hash_ids": [1], "input_length": 99999999})", "'input_length' 99999999"},
      {R"({"timestamp": 0, "hash_ids": [1, 2], "input_length": 5})", "--block-tokens"},
      {R"({"timestamp": 0, "hash_ids": 1, "input_length": 5})", "'hash_ids' is not a list"},
      {R"({"timestamp": 0, "hash_ids": ["a"], "input_length": 5})", "'hash_ids'"},
      {R"({"timestamp": 0, "input": 3})", "'input' is not a text"},
      {R"({"timestamp": 0, "input": ""})", "'input' has 0 bytes"},
  };
  for (const auto& [line, part] : wrong) {
    const Result<Trace> trace = parse_trace(line, 512);
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_EQ(trace.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(part)) << line;
  }
  const Result<Trace> mixed = parse_trace(
      "{\"timestamp\": 0, \"input\": \"x\"}\n"
      "{\"timestamp\": 0, \"hash_ids\": [1], \"input_length\": 5}",
      512);
  ASSERT_FALSE(mixed.ok());
  EXPECT_THAT(std::string(mixed.status().message()), HasSubstr("line 2"));
}

}  // namespace
}  // namespace hitide
