// A tiny engine: match, load back, compute, insert, backup and evict, on a device in host memory.
//
// It has no model: the "KV" of a page follows from all tokens up to its end, so that what the cache
// gives back can be checked. docs/engine_authors.md explains each step.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <hitide/cache.h>
#include <hitide/emulated_device.h>

namespace {

using Tokens = std::vector<hitide::TokenId>;

constexpr std::uint32_t kPageSize = 16;  // tokens
constexpr std::uint64_t kPageBytes = 256;

// Wakes whoever waits for the cache: a prefetch or a load is done, or room may be there.
class Notice {
 public:
  void give() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  template <typename Condition>
  bool wait_until(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      std::unique_lock lock(mutex_);
      const int seen = count_;
      lock.unlock();
      if (condition()) return true;  // asked without the lock: it calls the cache
      lock.lock();
      if (!changed_.wait_until(lock, deadline, [&] { return count_ != seen; })) return false;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "tiny_engine: %s\n", what.c_str());
  std::exit(1);
}

// What a model would compute for the page that ends with the last of these tokens.
std::vector<std::byte> compute_page(std::span<const hitide::TokenId> tokens) {
  std::uint64_t value = 1;
  for (const hitide::TokenId token : tokens) value = value * 1099511628211u + std::uint64_t(token);
  std::vector<std::byte> bytes(kPageBytes);
  for (std::size_t i = 0; i < kPageBytes; i += 8) std::memcpy(&bytes[i], &++value, 8);
  return bytes;
}

struct Engine {
  hitide::EmulatedDevice& device;
  hitide::Cache& cache;
  Notice& notice;

  void serve(const char* name, const Tokens& prompt) {
    // Match: which prefix is cached, in which tier; storage is asked for more of it.
    auto handle = cache.open_prefix({.tokens = prompt, .label = name});
    if (!handle.ok()) fail(handle.status().to_string());
    notice.wait_until([&] { return handle->state() != hitide::PrefixState::waiting; });
    // Admit: room for the whole prompt, by evicting others; loads from the host begin.
    hitide::Status status;
    const bool admitted = notice.wait_until([&] {
      status = handle->admit().status();
      return status.code() != hitide::StatusCode::resource_exhausted;  // else: no room yet
    });
    if (!admitted || !status.ok()) fail("not admitted: " + status.to_string());
    notice.wait_until([&] { return handle->state() != hitide::PrefixState::loading; });

    // Compute what is not cached, into the pages that the handle names now.
    const std::vector<hitide::PageId> pages = handle->pages();
    const std::uint32_t cached = handle->cached_tokens();
    for (std::uint32_t page = 0; page < prompt.size() / kPageSize; ++page) {
      const auto bytes = compute_page(std::span(prompt).first((page + 1) * kPageSize));
      if (page >= cached / kPageSize) {
        device.write(pages[page], bytes);
      } else if (device.bytes(pages[page]) != bytes) {
        fail("the cache gave back other bytes than were computed");
      }
    }
    // Insert: whole pages become findable and are backed up to the host; the handle lets go.
    const std::string explanation_id = handle->explanation_id();
    status = handle->finish(prompt);
    if (!status.ok()) fail(status.to_string());
    report(name, explanation_id, static_cast<std::uint32_t>(prompt.size()));
  }

  void report(const char* name, const std::string& explanation_id, std::uint32_t tokens) {
    const auto why = cache.explain(explanation_id);
    if (!why.ok()) fail(why.status().to_string());
    std::printf("%-12s %3u tokens: %3u from the device, %3u from the host, %3u computed\n", name,
                tokens, why->served_tokens(hitide::Tier::device),
                why->served_tokens(hitide::Tier::host), tokens - why->served_tokens());
  }
};

Tokens tokens_from(hitide::TokenId first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + hitide::TokenId(i);
  return tokens;
}

}  // namespace

int main() {
  // 16 pages without sequences: a page id is an address, as on a GPU.
  auto device = hitide::EmulatedDevice::create(
      {.geometry = {.page_count = 16, .page_size = kPageSize, .page_bytes = kPageBytes}});
  if (!device.ok()) fail(device.status().to_string());

  hitide::ModelSpec model;  // whatever changes a stored byte must be in it
  model.weights_digest = "tiny";
  model.pools = {{.name = "kv", .page_size = kPageSize, .page_bytes = kPageBytes}};

  hitide::CacheOptions options;
  options.host.bytes = 1 << 20;
  options.storage.backend = "memory";

  Notice notice;
  auto cache = hitide::Cache::open(options, model, **device, [&] { notice.give(); });
  if (!cache.ok()) fail(cache.status().to_string());

  Engine engine{**device, **cache, notice};
  engine.serve("first", tokens_from(0, 200));       // nothing is cached: 12 pages are computed
  engine.serve("next turn", tokens_from(0, 240));   // 12 pages are on the device
  engine.serve("other", tokens_from(5000, 250));    // room for it: the first one is evicted
  engine.serve("back again", tokens_from(0, 240));  // and loaded back from the host

  const hitide::CacheStats stats = (*cache)->stats();
  std::printf("backed up %lu pages, evicted %lu from the device, loaded back %lu\n",
              static_cast<unsigned long>(stats.backed_up_pages_host),
              static_cast<unsigned long>(stats.evicted_pages[std::size_t(hitide::Tier::device)]),
              static_cast<unsigned long>(stats.loaded_back_pages));
  for (const hitide::DeviceFault& fault : (*device)->faults()) fail(fault.text);
  if (stats.loaded_back_pages != 14) fail("not all was loaded back");
  if (!(*cache)->check().ok()) fail((*cache)->check().to_string());
}
