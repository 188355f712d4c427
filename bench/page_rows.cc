// Handing out pages, taking them back, and evicting them, against a stack of page indices.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "bench/cases.h"
#include "bench/core_driver.h"
#include "pool/page_allocator.h"
#include "prefix/page_hasher.h"
#include "prefix/radix_tree.h"

namespace hitide::bench {
namespace {

constexpr std::uint32_t kPageSize = 64;
constexpr std::uint32_t kBatch = 64;  // pages
constexpr std::uint32_t kBatches = 1'024;
constexpr std::uint32_t kPages = kBatch * kBatches;
constexpr std::uint32_t kNodeTokens = kBatch * kPageSize;
constexpr double kNanosPerPage = 1e9 / kPages;
constexpr std::uint32_t kNodes = 64;  // evicted in one measurement, a batch of pages each
constexpr std::uint32_t kEvicted = kNodes * kBatch;
constexpr double kNanosPerEviction = 1e9 / kEvicted;

// Free indices in an array. One index at a time, as its user gets it: the compiler may not turn a
// row of pushes or pops into one copy.
class IndexStack {
 public:
  explicit IndexStack(std::uint32_t capacity) : items_(capacity) {
    std::iota(items_.begin(), items_.end(), 0u);
  }
  std::uint32_t pop() {
    std::uint32_t index = items_.back();
    items_.pop_back();
    asm volatile("" : "+r"(index));
    return index;
  }
  void push(std::uint32_t index) {
    asm volatile("" : "+r"(index));
    items_.push_back(index);
  }

 private:
  std::vector<std::uint32_t> items_;
};

// Batches come back in another order than they went.
std::vector<std::uint32_t> shuffled_batches() {
  std::vector<std::uint32_t> order(kBatches);
  std::iota(order.begin(), order.end(), 0u);
  Random random(7);
  for (std::uint32_t i = kBatches; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

struct RoundTime {
  double out = 0.0;  // ns a page
  double back = 0.0;
};

Result<RoundTime> allocator_round(PageAllocator& pool, std::span<const std::uint32_t> order,
                                  std::vector<PageId>& pages) {
  RoundTime time;
  pages.clear();
  const Stopwatch out;
  for (std::uint32_t i = 0; i < kBatches; ++i) {
    HITIDE_RETURN_IF_ERROR(pool.allocate(kBatch, PageOwner::request, pages));
  }
  time.out = out.seconds() * kNanosPerPage;
  const Stopwatch back;
  for (const std::uint32_t batch : order) {
    HITIDE_RETURN_IF_ERROR(
        pool.free(std::span(pages).subspan(batch * kBatch, kBatch), PageOwner::request));
  }
  time.back = back.seconds() * kNanosPerPage;
  return time;
}

RoundTime stack_round(IndexStack& stack, std::span<const std::uint32_t> order,
                      std::vector<std::uint32_t>& pages) {
  RoundTime time;
  pages.clear();
  const Stopwatch out;
  for (std::uint32_t i = 0; i < kPages; ++i) pages.push_back(stack.pop());
  time.out = out.seconds() * kNanosPerPage;
  const Stopwatch back;
  for (const std::uint32_t batch : order) {
    for (std::uint32_t i = 0; i < kBatch; ++i) stack.push(pages[batch * kBatch + i]);
  }
  time.back = back.seconds() * kNanosPerPage;
  keep(stack);
  return time;
}

Status allocate_and_free(Report& report) {
  const std::vector<std::uint32_t> order = shuffled_batches();
  PageAllocator pool(kPages);
  std::vector<PageId> pages;
  pages.reserve(kPages);
  IndexStack stack(kPages);
  std::vector<std::uint32_t> indices(kPages);
  Row allocate{.name = "pages.allocate", .unit = "ns", .target = at_most(2)};
  Row free{.name = "pages.free", .unit = "ns", .target = at_most(2)};
  for (int i = 0; i < 510; ++i) {
    const Result<RoundTime> ours = allocator_round(pool, order, pages);
    if (!ours.ok()) return ours.status();
    const RoundTime reference = stack_round(stack, order, indices);
    if (i < 10) continue;
    allocate.pairs.ours.push_back(ours.value().out);
    allocate.pairs.reference.push_back(reference.out);
    free.pairs.ours.push_back(ours.value().back);
    free.pairs.reference.push_back(reference.back);
  }
  report.add(allocate);
  report.add(free);
  return ok_status();
}

// What the stack does for an eviction: each page's index is pushed, out of a list of its own.
double push_all(IndexStack& stack, std::span<const std::uint32_t> pages) {
  const Stopwatch watch;
  for (const std::uint32_t page : pages) stack.push(page);
  const double time = watch.seconds() * kNanosPerEviction;
  keep(stack);
  return time;
}

// Tree and allocator alone: the oldest leaf leaves the tree, its pages go to the free list.
Status evict_from_tree(Report& report) {
  RadixTree tree(kPageSize, kEvicted, kEvicted);
  PageAllocator pool(kEvicted);
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t i = 0; i < kNodes; ++i) prompts.push_back(make_tokens(kNodeTokens, 10 + i));
  const std::vector<PageKey> keys(kBatch);
  const auto fill = [&]() -> Status {
    for (const std::vector<TokenId>& prompt : prompts) {
      std::vector<PageId> pages;
      HITIDE_RETURN_IF_ERROR(pool.allocate(kBatch, PageOwner::node, pages));
      tree.add_child(tree.root({}), prompt, keys, Tier::device, pages);
    }
    return ok_status();
  };
  IndexStack stack(kEvicted);
  std::vector<std::uint32_t> indices(kEvicted);
  Row row{.name = "evict.tree", .unit = "ns", .target = at_most(5)};
  const auto evict_all = [&](double& value) -> Status {
    HITIDE_RETURN_IF_ERROR(fill());
    const Stopwatch watch;
    for (NodeIndex node = tree.oldest(Tier::device); node != kNoNode;
         node = tree.oldest(Tier::device)) {
      HITIDE_RETURN_IF_ERROR(pool.free(tree.detach(node, Tier::device), PageOwner::node));
    }
    value = watch.seconds() * kNanosPerEviction;
    return ok_status();
  };
  const auto push = [&](double& value) -> Status {
    for (std::uint32_t& index : indices) index = stack.pop();
    value = push_all(stack, indices);
    return ok_status();
  };
  HITIDE_RETURN_IF_ERROR(measure_checked(10, 500, evict_all, push, row.pairs));
  report.add(row);
  return ok_status();
}

// The core makes room for a growing request: one leaf of 64 pages is evicted, 64 pages are handed
// out, over and over. The reference pushes 64 indices and pops 64.
Status evict_in_core(const std::string& name, bool copies_below, Report& report) {
  CoreDriver driver(core_config(kPageSize, kEvicted + 1, copies_below ? kEvicted + 1 : 0));
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t i = 0; i < kNodes; ++i) prompts.push_back(make_tokens(kNodeTokens, 10 + i));
  const std::vector<TokenId> grower = make_tokens(kPageSize, 1);
  IndexStack stack(kEvicted);
  std::vector<std::uint32_t> indices(kBatch);
  const auto evict_all = [&](double& value) -> Status {
    driver.flush();
    for (const std::vector<TokenId>& prompt : prompts) HITIDE_RETURN_IF_ERROR(driver.add(prompt));
    HITIDE_ASSIGN_OR_RETURN(const RequestId id, driver.start(grower));
    const Stopwatch watch;
    for (std::uint32_t batch = 1; batch <= kNodes; ++batch) {
      Result<std::vector<PageId>> pages = driver.reserve(id, kPageSize + batch * kNodeTokens);
      if (!pages.ok()) return pages.status();
      keep(pages);
    }
    value = watch.seconds() * kNanosPerEviction;
    driver.release(id);
    return driver.core().tripped();
  };
  const auto push_and_pop = [&](double& value) -> Status {
    for (std::uint32_t& index : indices) index = stack.pop();
    const Stopwatch watch;
    for (std::uint32_t batch = 0; batch < kNodes; ++batch) {
      for (const std::uint32_t index : indices) stack.push(index);
      for (std::uint32_t& index : indices) index = stack.pop();
      keep(stack);
    }
    value = watch.seconds() * kNanosPerEviction;
    for (const std::uint32_t index : indices) stack.push(index);
    return ok_status();
  };
  Row row{.name = name, .unit = "ns"};
  if (copies_below) row.target = at_most(5);
  HITIDE_RETURN_IF_ERROR(measure_checked(10, 300, evict_all, push_and_pop, row.pairs));
  report.add(row);
  return ok_status();
}

}  // namespace

std::vector<Case> page_cases() {
  return {
      {.rows = {"pages.allocate", "pages.free"},
       .run = [](const Settings&, Report& report) { return allocate_and_free(report); }},
      {.rows = {"evict.tree"},
       .run = [](const Settings&, Report& report) { return evict_from_tree(report); }},
      {.rows = {"evict.core"},
       .run = [](const Settings&,
                 Report& report) { return evict_in_core("evict.core", true, report); }},
      {.rows = {"evict.core_last_copy"},
       .run = [](const Settings&,
                 Report& report) { return evict_in_core("evict.core_last_copy", false, report); }},
  };
}

}  // namespace hitide::bench
