// Finding a prompt in the tree, and hashing its pages.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "bench/cases.h"
#include "bench/core_driver.h"
#include "prefix/page_hasher.h"
#include "prefix/radix_tree.h"

namespace hitide::bench {
namespace {

constexpr std::uint32_t kPageSize = 64;
constexpr std::uint32_t kTokens = 131'072;
constexpr std::uint32_t kPages = kTokens / kPageSize;
constexpr std::uint32_t kTurnTokens = 1'024;
constexpr double kMicro = 1e6;

struct PathShape {
  std::size_t node_tokens = 0;
  bool siblings = false;  // every node has one, so that it must be looked up
};

// A tree that holds `tokens` in nodes one below the other.
std::unique_ptr<RadixTree> make_path(std::span<const TokenId> tokens, const PathShape& shape) {
  auto tree = std::make_unique<RadixTree>(kPageSize, 2 * kPages, 1);
  const std::size_t node_tokens = shape.node_tokens;
  std::uint32_t sibling_page = kPages;
  std::vector<PageKey> keys;
  PageHasher(kPageSize).extend(nullptr, tokens, keys);
  const std::size_t node_pages = node_tokens / kPageSize;
  NodeIndex parent = tree->root({});
  for (std::size_t page = 0; page < keys.size(); page += node_pages) {
    std::vector<PageId> ids;
    for (std::size_t i = page; i < page + node_pages; ++i) {
      ids.push_back(PageId{static_cast<std::uint32_t>(i), 1});
    }
    if (shape.siblings) {
      const PageId id{sibling_page++, 1};
      tree->add_child(parent, make_tokens(kPageSize, sibling_page), std::span(keys).first(1),
                      Tier::device, std::span(&id, 1));
    }
    parent = tree->add_child(parent, tokens.subspan(page * kPageSize, node_tokens),
                             std::span(keys).subspan(page, node_pages), Tier::device, ids);
  }
  return tree;
}

// memcmp over a copy of the prompt, once.
double compare_once(const std::vector<TokenId>& prompt, const std::vector<TokenId>& copy) {
  const Stopwatch watch;
  int difference = std::memcmp(prompt.data(), copy.data(), prompt.size() * sizeof(TokenId));
  keep(difference);
  return watch.seconds() * kMicro;
}

std::string tail_note(const Pairs& pairs) {
  return fmt::format("p99.9 {:.1f} us, reference {:.1f} us", quantile(pairs.ours, 0.999),
                     quantile(pairs.reference, 0.999));
}

Status match_in_tree(const std::string& name, const PathShape& shape, Report& report) {
  const std::vector<TokenId> prompt = make_tokens(kTokens, 1);
  const std::vector<TokenId> copy = prompt;
  const std::unique_ptr<RadixTree> tree = make_path(prompt, shape);
  const NodeIndex root = tree->root({});
  std::uint32_t found_pages = 0;
  const auto find_once = [&] {
    const Stopwatch watch;
    FindResult found = tree->find(root, prompt);
    keep(found);
    const double time = watch.seconds() * kMicro;
    found_pages = found.device.pages;
    return time;
  };
  Row row{.name = name, .unit = "us", .target = at_most(1.5)};
  row.pairs = measure(100, 5'000, find_once, [&] { return compare_once(prompt, copy); });
  row.note = tail_note(row.pairs);
  if (found_pages != kPages) return Status(StatusCode::internal, "the prompt was not found");
  report.add(row);
  return ok_status();
}

// The whole of open_prefix in the core: checks and copies the prompt, takes keys from the tree,
// matches, and makes a request of it.
Status open_in_core(Report& report) {
  const std::vector<TokenId> prompt = make_tokens(kTokens, 1);
  const std::vector<TokenId> copy = prompt;
  CoreDriver driver(core_config(kPageSize, 2 * kPages, 2 * kPages));
  HITIDE_RETURN_IF_ERROR(driver.add(prompt));
  Status failure;
  const auto open_once = [&](std::span<const TokenId> tokens) {
    const Stopwatch watch;
    Result<RequestId> id = driver.open(tokens);
    keep(id);
    const double time = watch.seconds() * kMicro;
    if (!id.ok()) {
      failure = id.status();
      return time;
    }
    // The last token is computed always, so the last page of an equal prompt is not served.
    if (driver.core().cached_tokens(*id) < kTokens - kPageSize) {
      failure = Status(StatusCode::internal, "the prompt was not found");
    }
    driver.release(*id);
    return time;
  };
  Row open{.name = "match.open_prefix", .unit = "us"};
  open.pairs = measure(
      20, 1'000, [&] { return open_once(prompt); }, [&] { return compare_once(prompt, copy); });
  open.note = tail_note(open.pairs);
  report.add(open);

  // A next turn against the same prompt without it, plus hashing of what is new in it.
  std::vector<TokenId> turn = prompt;
  const std::vector<TokenId> fresh = make_tokens(kTurnTokens, 2);
  turn.insert(turn.end(), fresh.begin(), fresh.end());
  PageHasher hasher(kPageSize);
  std::vector<PageKey> keys;
  const auto open_and_hash = [&] {
    const double opened = open_once(prompt);
    const PageKey parent{};
    keys.clear();
    const Stopwatch watch;
    hasher.extend(&parent, fresh, keys);
    keep(keys);
    return opened + watch.seconds() * kMicro;
  };
  Row next{.name = "match.next_turn", .unit = "us"};
  next.pairs = measure(
      20, 1'000, [&] { return open_once(turn); }, open_and_hash);
  next.note = tail_note(next.pairs);
  report.add(next);
  return failure;
}

struct DigestFree {
  void operator()(EVP_MD* digest) const { EVP_MD_free(digest); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// The same messages, ready in memory: parent key, then the page's ids, in one piece. Each digest
// goes straight to where the next message begins.
class ReadyMessages {
 public:
  explicit ReadyMessages(std::span<const TokenId> tokens)
      : digest_(EVP_MD_fetch(nullptr, "SHA256", nullptr)),
        context_(EVP_MD_CTX_new()),
        bytes_((tokens.size() / kPageSize + 1) * kMessageBytes) {
    for (std::size_t page = 0; page < tokens.size() / kPageSize; ++page) {
      std::memcpy(bytes_.data() + page * kMessageBytes + kKeyBytes,
                  tokens.data() + page * kPageSize, kPageSize * sizeof(TokenId));
    }
  }

  // Returns the last key; `parent` is that of the first page.
  PageKey hash(const PageKey& parent) {
    std::memcpy(bytes_.data(), parent.bytes.data(), kKeyBytes);
    for (std::size_t at = 0; at + kMessageBytes < bytes_.size(); at += kMessageBytes) {
      unsigned length = 0;
      EVP_DigestInit_ex2(context_.get(), digest_.get(), nullptr);
      EVP_DigestUpdate(context_.get(), bytes_.data() + at, kMessageBytes);
      EVP_DigestFinal_ex(context_.get(), bytes_.data() + at + kMessageBytes, &length);
    }
    PageKey last;
    std::memcpy(last.bytes.data(), bytes_.data() + bytes_.size() - kMessageBytes, kKeyBytes);
    return last;
  }

 private:
  static constexpr std::size_t kKeyBytes = 32;
  static constexpr std::size_t kMessageBytes = kKeyBytes + kPageSize * sizeof(TokenId);
  std::unique_ptr<EVP_MD, DigestFree> digest_;
  std::unique_ptr<EVP_MD_CTX, DigestFree> context_;
  std::vector<std::uint8_t> bytes_;
};

Status hash_pages(Report& report) {
  const std::vector<TokenId> tokens = make_tokens(kTokens, 3);
  const PageKey parent{};
  PageHasher hasher(kPageSize);
  ReadyMessages messages(tokens);
  std::vector<PageKey> keys;
  PageKey last;
  const double megabytes = static_cast<double>(tokens.size() * sizeof(TokenId)) / 1e6;
  Row row{.name = "hash.new_tokens", .unit = "MB/s", .target = at_least(0.9)};
  row.pairs = measure(
      3, 200,
      [&] {
        keys.clear();
        const Stopwatch watch;
        hasher.extend(&parent, tokens, keys);
        return megabytes / watch.seconds();
      },
      [&] {
        const Stopwatch watch;
        last = messages.hash(parent);
        return megabytes / watch.seconds();
      });
  if (keys.size() != kPages || keys.back() != last) {
    return Status(StatusCode::internal, "the two sides made different keys");
  }
  report.add(row);
  return ok_status();
}

Case match_case(const std::string& name, const PathShape& shape) {
  return {.rows = {name}, .run = [name, shape](const Settings&, Report& report) {
            return match_in_tree(name, shape, report);
          }};
}

}  // namespace

std::vector<Case> prefix_cases() {
  return {
      match_case("match.one_node", {.node_tokens = kTokens}),
      match_case("match.turns", {.node_tokens = kTurnTokens}),
      match_case("match.branches", {.node_tokens = kTurnTokens, .siblings = true}),
      {.rows = {"match.open_prefix", "match.next_turn"},
       .run = [](const Settings&, Report& report) { return open_in_core(report); }},
      {.rows = {"hash.new_tokens"},
       .run = [](const Settings&, Report& report) { return hash_pages(report); }},
  };
}

}  // namespace hitide::bench
