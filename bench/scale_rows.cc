// How tree and core behave as the cache grows: the same work with 10^4 to 10^6 pages against 10^3;
// and what one long prompt costs to insert and to split.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "bench/cases.h"
#include "bench/core_driver.h"
#include "prefix/page_hasher.h"
#include "prefix/radix_tree.h"

namespace hitide::bench {
namespace {

constexpr std::uint32_t kPageSize = 16;
constexpr std::uint32_t kPromptPages = 50;
constexpr std::uint32_t kPromptTokens = kPromptPages * kPageSize;
constexpr std::uint32_t kSmall = 1'000;  // pages
constexpr std::array<std::uint32_t, 3> kSizes = {10'000, 100'000, 1'000'000};
constexpr std::uint32_t kOperations = 200;  // in one measurement
constexpr int kWarmUp = 2;
constexpr int kPairs = 21;

std::vector<TokenId> prompt_of(std::uint64_t seed) { return make_tokens(kPromptTokens, seed); }

// A core whose device is full of prompts of 50 pages: the newest of all that were ever added.
class FullCore {
 public:
  static Result<std::unique_ptr<FullCore>> create(std::uint32_t pages) {
    std::unique_ptr<FullCore> core(new FullCore(pages));
    for (std::uint32_t i = 0; i < core->prompts_; ++i) HITIDE_RETURN_IF_ERROR(core->add_next());
    return core;
  }

  // Finds prompts that are there, in no order. us a prompt.
  Status match(double& value) {
    std::vector<std::vector<TokenId>> chosen;
    for (std::uint32_t i = 0; i < kOperations; ++i) {
      chosen.push_back(prompt_of(next_ - 1 - random_.below(prompts_ - 1)));
    }
    std::vector<RequestId> requests;
    requests.reserve(kOperations);
    const Stopwatch watch;
    for (const std::vector<TokenId>& tokens : chosen) {
      HITIDE_ASSIGN_OR_RETURN(const RequestId id, driver_.open(tokens));
      requests.push_back(id);
    }
    value = watch.seconds() / kOperations * 1e6;
    for (const RequestId id : requests) {
      if (driver_.core().cached_tokens(id) < kPromptTokens - kPageSize) {
        return Status(StatusCode::internal, "a prompt that was just added is not there");
      }
      driver_.release(id);
    }
    return driver_.core().tripped();
  }

  // Adds new prompts: each evicts the oldest one. us a prompt.
  Status turn_over(double& value) {
    std::vector<std::vector<TokenId>> fresh;
    for (std::uint32_t i = 0; i < kOperations; ++i) fresh.push_back(prompt_of(next_ + i));
    next_ += kOperations;
    const Stopwatch watch;
    for (const std::vector<TokenId>& tokens : fresh) HITIDE_RETURN_IF_ERROR(driver_.add(tokens));
    value = watch.seconds() / kOperations * 1e6;
    return driver_.core().tripped();
  }

 private:
  explicit FullCore(std::uint32_t pages)
      : driver_(core_config(kPageSize, pages + kPromptPages, 0)), prompts_(pages / kPromptPages) {}
  Status add_next() { return driver_.add(prompt_of(next_++)); }

  CoreDriver driver_;
  const std::uint32_t prompts_;  // that fit
  std::uint64_t next_ = 1;       // seed of the next new prompt
  Random random_{5};
};

// The targets say "logarithmic": a factor for the larger tables no longer being in the processor's
// caches, not one for ten times the pages.
Status grow(std::uint32_t pages, Report& report) {
  HITIDE_ASSIGN_OR_RETURN(const auto small, FullCore::create(kSmall));
  HITIDE_ASSIGN_OR_RETURN(const auto large, FullCore::create(pages));
  Row match{.name = fmt::format("scale.match_{}", pages), .unit = "us", .target = at_most(4)};
  HITIDE_RETURN_IF_ERROR(measure_checked(
      kWarmUp, kPairs, [&](double& value) { return large->match(value); },
      [&](double& value) { return small->match(value); }, match.pairs));
  report.add(match);
  Row turn{.name = fmt::format("scale.insert_evict_{}", pages), .unit = "us", .target = at_most(4)};
  HITIDE_RETURN_IF_ERROR(measure_checked(
      kWarmUp, kPairs, [&](double& value) { return large->turn_over(value); },
      [&](double& value) { return small->turn_over(value); }, turn.pairs));
  report.add(turn);
  return ok_status();
}

// ---- one long prompt ----------------------------------------------------------------------------

constexpr std::uint32_t kLongPageSize = 64;
constexpr std::uint32_t kLongPages = 2'048;

// What a node holds of a run of pages, copied into new memory.
struct Copied {
  std::vector<TokenId> tokens;
  std::vector<PageKey> keys;
  std::vector<PageId> pages;
};

Status insert_and_split(Report& report) {
  const std::vector<TokenId> tokens = make_tokens(kLongPages * kLongPageSize, 1);
  std::vector<PageKey> keys;
  PageHasher(kLongPageSize).extend(nullptr, tokens, keys);
  std::vector<PageId> pages;
  for (std::uint32_t i = 0; i < kLongPages; ++i) pages.push_back(PageId{i, 1});
  RadixTree tree(kLongPageSize, kLongPages, 1);
  Row insert{.name = "insert.one_node", .unit = "us", .target = at_most(2)};
  Row split{.name = "split.half", .unit = "us", .target = at_most(2)};
  for (int i = 0; i < 510; ++i) {
    const Stopwatch inserting;
    const NodeIndex node = tree.add_child(tree.root({}), tokens, keys, Tier::device, pages);
    const double inserted = inserting.seconds() * 1e6;
    const Stopwatch splitting;
    const NodeIndex upper = tree.split(node, kLongPages / 2);
    const double divided = splitting.seconds() * 1e6;
    tree.detach(node, Tier::device);
    tree.detach(upper, Tier::device);

    const Stopwatch copying;
    Copied whole{.tokens = tokens, .keys = keys, .pages = pages};
    keep(whole);
    const double copied = copying.seconds() * 1e6;
    const Stopwatch halving;
    Copied half{.tokens = {tokens.begin(), tokens.begin() + tokens.size() / 2},
                .keys = {keys.begin(), keys.begin() + kLongPages / 2},
                .pages = {pages.begin(), pages.begin() + kLongPages / 2}};
    Copied rest{.tokens = {tokens.begin() + tokens.size() / 2, tokens.end()},
                .keys = {keys.begin() + kLongPages / 2, keys.end()},
                .pages = {pages.begin() + kLongPages / 2, pages.end()}};
    keep(half);
    keep(rest);
    const double halved = halving.seconds() * 1e6;
    if (i < 10) continue;
    insert.pairs.ours.push_back(inserted);
    insert.pairs.reference.push_back(copied);
    split.pairs.ours.push_back(divided);
    split.pairs.reference.push_back(halved);
  }
  report.add(insert);
  report.add(split);
  return ok_status();
}

}  // namespace

std::vector<Case> scale_cases() {
  std::vector<Case> cases = {
      {.rows = {"insert.one_node", "split.half"},
       .run = [](const Settings&, Report& report) { return insert_and_split(report); }}};
  for (const std::uint32_t pages : kSizes) {
    cases.push_back(
        {.rows = {fmt::format("scale.match_{}", pages),
                  fmt::format("scale.insert_evict_{}", pages)},
         .run = [pages](const Settings&, Report& report) { return grow(pages, report); }});
  }
  return cases;
}

}  // namespace hitide::bench
