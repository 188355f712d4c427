#include "runtime/pool_trial.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/random.h"
#include "pool/registrability.h"
#include "storage/page_store.h"

namespace hitide {
namespace {

TimePoint now() { return SystemClock::instance().now(); }

// Keys that no other trial uses, also one that runs elsewhere at this time.
std::vector<PageKey> fresh_keys(std::size_t count) {
  Random random(static_cast<std::uint64_t>(now().time_since_epoch().count()) ^
                (static_cast<std::uint64_t>(::getpid()) << 40));
  std::vector<PageKey> keys(count);
  for (PageKey& key : keys) {
    for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random.next());
  }
  return keys;
}

void write_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  Random random(seed);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

bool has_pattern(std::span<const std::byte> bytes, std::uint64_t seed) {
  Random random(seed);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at)) != 0) {
      return false;
    }
  }
  return true;
}

class Trial {
 public:
  Trial(ObjectStore& store, const ModelSpec& model, std::span<const std::unique_ptr<HostPool>> host,
        TimePoint deadline)
      : store_(store), model_(model), host_(host), pages_(store, model), options_{deadline} {
    std::uint32_t count = 0;
    for (const auto& pool : host_) count = std::max(count, pool ? pool->page_count() : 0);
    keys_ = fresh_keys(count);
  }
  ~Trial() { remove_all(); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  void run(std::size_t p, PoolRegistration& row);

 private:
  void fill(std::size_t p, bool pattern);
  // "" or what went wrong.
  std::string move(std::size_t p, bool storing, PoolRegistration& row, double& milliseconds);
  void remove_all();
  std::uint64_t seed(std::size_t p, std::size_t page) const { return p * 1'000'003 + page + 1; }

  ObjectStore& store_;
  const ModelSpec& model_;
  const std::span<const std::unique_ptr<HostPool>> host_;
  PageStore pages_;
  const CallOptions options_;
  std::vector<PageKey> keys_;
};

void Trial::fill(std::size_t p, bool pattern) {
  if (!host_[p]) return;
  for (std::uint32_t page = 0; page < host_[p]->page_count(); ++page) {
    const std::span<std::byte> payload = host_[p]->payload(PageId{page, 0});
    write_pattern(payload, pattern ? seed(p, page) : ~seed(p, page));
  }
}

std::string Trial::move(std::size_t p, bool storing, PoolRegistration& row, double& milliseconds) {
  std::vector<std::span<std::byte>> slots;
  for (std::uint32_t page = 0; host_[p] && page < host_[p]->page_count(); ++page) {
    slots.push_back(host_[p]->slot(PageId{page, 0}));
  }
  std::vector<StatusCode> codes(keys_.size(), StatusCode::internal);
  const std::string_view name = model_.pools[p].name;
  const PoolPages view{.pool = name, .keys = keys_, .slots = slots, .out = codes};
  const TimePoint begin = now();
  const CallOutcome outcome =
      storing ? pages_.store({&view, 1}, options_) : pages_.load({&view, 1}, options_);
  milliseconds = to_milliseconds(now() - begin);
  const auto bad = std::find_if(codes.begin(), codes.end(),
                                [](StatusCode code) { return code != StatusCode::ok; });
  if (bad == codes.end()) return {};
  if (*bad == StatusCode::unavailable || *bad == StatusCode::deadline_exceeded) {
    row.verdict = RegistrationVerdict::client_down;
  }
  return fmt::format("{} of page {} of {} when it was tried: {}{}{}", storing ? "put" : "get",
                     bad - codes.begin(), codes.size(), to_string(*bad),
                     outcome.status.ok() ? "" : ": ", outcome.status.message());
}

void Trial::run(std::size_t p, PoolRegistration& row) {
  const auto notify = [&](auto notice) {
    for (std::uint32_t page = 0; host_[p] && page < host_[p]->page_count(); ++page) {
      ((*host_[p]).*notice)(PageId{page, 0});
    }
  };
  notify(&HostPool::on_allocated);
  fill(p, true);
  double put = 0;
  double got = 0;
  std::string wrong = move(p, true, row, put);
  fill(p, false);
  if (wrong.empty()) wrong = move(p, false, row, got);
  for (std::uint32_t page = 0; wrong.empty() && host_[p] && page < host_[p]->page_count(); ++page) {
    if (has_pattern(host_[p]->payload(PageId{page, 0}), seed(p, page))) continue;
    wrong = fmt::format("page {} came back with other bytes when it was tried", page);
  }
  notify(&HostPool::on_freed);
  if (!wrong.empty()) {
    row.path = RegistrationPath::off;
    row.reason += row.reason.empty() ? wrong : "; " + wrong;
    return;
  }
  row.measured += fmt::format("{}{} pages put in {:.1f} ms, got in {:.1f} ms",
                              row.measured.empty() ? "" : "; ", keys_.size(), put, got);
}

void Trial::remove_all() {
  std::vector<std::string> names;
  for (const PoolSpec& pool : model_.pools) {
    for (const PageKey& key : keys_) names.push_back(pages_.keys().object_key(key, pool.name));
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::vector<ItemResult> results(views.size());
  store_.remove(views, results, options_).status.ignore();
}

}  // namespace

void try_pools(ObjectStore& store, const ModelSpec& model,
               std::span<const std::unique_ptr<HostPool>> host, TimePoint deadline,
               std::span<PoolRegistration> rows) {
  Trial trial(store, model, host, deadline);
  // The anchor commits a page, so that it comes last.
  for (std::size_t p = rows.size(); p > 0; --p) {
    PoolRegistration& row = rows[p - 1];
    if (row.on() && row.path != RegistrationPath::none) trial.run(p - 1, row);
  }
  settle_registrations(rows);
}

}  // namespace hitide
