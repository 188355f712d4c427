// A Cache over a checked device, with a thread that carries the device's commands out.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <hitide/cache.h>

#include "base/hash.h"
#include "tests/support/fake_device.h"

namespace hitide {

using Tokens = std::vector<TokenId>;
inline constexpr std::uint32_t kPageSize = 4;
inline constexpr std::uint64_t kPageBytes = 64;
inline constexpr Duration kPatience = std::chrono::seconds(20);

inline TimePoint soon() { return std::chrono::steady_clock::now() + kPatience; }

inline Tokens sequence_of(std::uint32_t count, TokenId start = 0) {
  Tokens tokens(count);
  for (std::uint32_t i = 0; i < count; ++i) tokens[i] = start + static_cast<TokenId>(i);
  return tokens;
}

inline ModelSpec small_model() {
  ModelSpec model;
  model.weights_digest = "weights";
  PoolSpec pool;
  pool.page_size = kPageSize;
  pool.page_bytes = kPageBytes;
  model.pools = {pool};
  return model;
}

inline CacheOptions small_options() {
  CacheOptions options;
  options.host.bytes = 64 * 4096;
  options.storage.backend = "none";
  options.policy.prefetch_threshold_tokens = 8;
  options.policy.load_back_threshold_tokens = 4;
  options.policy.storage_batch_pages = 4;
  options.policy.prefetch_occupancy_max = 1.0;
  return options;
}

inline std::uint64_t truth(const Tokens& tokens, std::size_t page, const std::string& salt) {
  Checksum64 sum;
  sum.update(std::as_bytes(std::span(salt)));
  sum.update(std::as_bytes(std::span(tokens).first((page + 1) * kPageSize)));
  return sum.finish();
}

// A device, a thread that carries its commands out, and a cache above.
class Rig {
 public:
  explicit Rig(const CacheOptions& options, std::unique_ptr<ObjectStore> store = nullptr,
               DeviceGeometry geometry = {64, kPageSize, kPageBytes, 16})
      : device_(geometry) {
    const auto notify = [this] {
      const std::lock_guard lock(mutex_);
      ++notices_;
      changed_.notify_all();
    };
    Result<std::unique_ptr<Cache>> made =
        store ? Cache::open(options, small_model(), device_, std::move(store), notify)
              : Cache::open(options, small_model(), device_, notify);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) cache_ = std::move(made).value();
    worker_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        device_.run();
        device_.wait_until_queued(1,
                                  std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
      }
    });
  }
  ~Rig() {
    if (cache_) {
      cache_->close(soon()).ignore();
    }
    EXPECT_TRUE(device_.violations().empty()) << device_.violations().front();
  }

  Cache& cache() { return *cache_; }
  FakeDevice& device() { return device_; }

  // Waits until the handle has left `state`.
  bool wait_while(const PrefixHandle& handle, PrefixState state) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, soon(), [&] { return handle.state() != state; });
  }

  // Tries again at each notice: there is room once backups and other requests have let go.
  bool admit_in_time(PrefixHandle& handle) {
    const TimePoint deadline = soon();
    while (std::chrono::steady_clock::now() < deadline) {
      std::unique_lock lock(mutex_);
      const int seen = notices_;
      lock.unlock();
      const Result<Admission> admission = handle.admit();
      if (admission.ok()) return true;
      EXPECT_EQ(admission.status().code(), StatusCode::resource_exhausted);
      lock.lock();
      changed_.wait_until(lock, deadline, [&] { return notices_ != seen; });
    }
    return false;
  }

  // Opens, admits, verifies what is cached, computes the rest and finishes.
  Explanation run(const Tokens& prompt, const std::string& salt = "") {
    Result<PrefixHandle> handle = open(prompt, salt);
    if (!handle.ok()) {
      ADD_FAILURE() << handle.status().to_string();
      return {};
    }
    EXPECT_TRUE(wait_while(*handle, PrefixState::waiting));
    const Result<Admission> admission = handle->admit();
    if (!admission.ok()) {
      ADD_FAILURE() << admission.status().to_string();
      return {};
    }
    EXPECT_TRUE(wait_while(*handle, PrefixState::loading));
    verify_and_compute(*handle, prompt, salt);
    const std::string id = handle->explanation_id();
    const Status status = handle->finish(prompt);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(handle->state(), PrefixState::closed);
    return cache_->explain(id).value();
  }

  Result<PrefixHandle> open(const Tokens& prompt, const std::string& salt = "") {
    PrefixRequest request;
    request.tokens = prompt;
    if (!salt.empty()) request.cache_salt = salt;
    return cache_->open_prefix(request);
  }

  void verify_and_compute(PrefixHandle& handle, const Tokens& prompt, const std::string& salt) {
    ASSERT_EQ(handle.state(), PrefixState::running);
    settle_device();
    const std::vector<PageId> pages = handle.pages();
    const std::uint32_t cached = handle.cached_tokens();
    ASSERT_LT(cached, prompt.size());
    for (std::uint32_t page = 0; page < prompt.size() / kPageSize; ++page) {
      const std::uint64_t content = truth(prompt, page, salt);
      if (page < cached / kPageSize) {
        ASSERT_EQ(device_.bytes(pages[page]), page_content(content, kPageBytes))
            << "page " << page << " of " << prompt.size() << " tokens";
      } else {
        device_.fill(pages[page], content);
      }
    }
  }

  // Until no operation of the core is under way.
  void settle() {
    const TimePoint deadline = soon();
    while (std::chrono::steady_clock::now() < deadline) {
      settle_device();
      const CacheStats stats = cache_->stats();
      if (stats.host.pages_in_flight == 0 && stats.host.pages_pinned == 0) return;
      std::this_thread::yield();
    }
    ADD_FAILURE() << "the cache did not come to rest";
  }

 private:
  void settle_device() {
    const TimePoint deadline = soon();
    while (device_.queued() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }

  FakeDevice device_;
  std::unique_ptr<Cache> cache_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int notices_ = 0;
  std::jthread worker_;
};

}  // namespace hitide
