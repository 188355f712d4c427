// Single faults of a real store while a cache works with it: no call is longer than its limit, no
// storm of restarts, and service comes back in bounded time after the fault is over. Each test
// prints its times; docs/design/mooncake_agent.md has them as a table.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "storage/mooncake/mooncake_store.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kObject = 256 << 10;

TimePoint now() { return SystemClock::instance().now(); }

struct Outage {
  const char* name;
  MooncakeStack::Mode mode;
  const char* begin;  // commands of mooncake_stack.py
  const char* end;
  // After the end, until calls of every kind are answered well again.
  Duration back_within;
  std::uint64_t agent_ends_max;
  friend std::ostream& operator<<(std::ostream& out, const Outage& outage) {
    return out << outage.name;
  }
};

// Calls of one kind, one after the other, as long as this lives.
class Caller {
 public:
  explicit Caller(std::function<StatusCode(int round)> call)
      : call_(std::move(call)), thread_([this] { run(); }) {}
  ~Caller() {
    stop_ = true;
    thread_.join();
  }
  // The longest call so far, in seconds.
  double longest() const { return longest_; }
  // Calls that were answered as refused within a hundredth of a second.
  int refused_at_once() const { return refused_at_once_; }
  bool ever_wrong() const { return wrong_; }
  // True: a call that began after now ended well, by the deadline.
  bool good_again(TimePoint deadline) {
    const int after = begun_;
    std::unique_lock lock(mutex_);
    return ended_.wait_until(lock, deadline, [&] { return last_good_ > after; });
  }

 private:
  void run() {
    for (int round = 1; !stop_; ++round) {
      begun_ = round;
      const TimePoint start = now();
      const StatusCode code = call_(round);
      const double seconds = to_seconds(now() - start);
      longest_ = std::max(longest_.load(), seconds);
      if (code == StatusCode::unavailable && seconds < 0.01) ++refused_at_once_;
      if (code == StatusCode::data_loss || code == StatusCode::internal) wrong_ = true;
      if (code == StatusCode::ok) {
        const std::lock_guard lock(mutex_);
        last_good_ = round;
      }
      ended_.notify_all();
      // Refusals cost nothing: without a pause they would take the whole machine.
      std::unique_lock lock(mutex_);
      ended_.wait_for(lock, 1ms, [this] { return stop_.load(); });
    }
  }

  const std::function<StatusCode(int)> call_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> begun_ = 0;
  std::atomic<int> refused_at_once_ = 0;
  std::atomic<double> longest_ = 0;
  std::atomic<bool> wrong_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  int last_good_ = 0;  // guarded by mutex_
  std::thread thread_;
};

class MooncakeOutageTest : public testing::TestWithParam<Outage> {
 protected:
  MooncakeOutageTest() : stack_(mooncake_stack().python(), 128, GetParam().mode) {}

  // A put of a new object, and a get of it into the same memory.
  StatusCode put_and_get(const std::string& key) {
    const auto buffer = memory_.subspan(0, kObject);
    const auto bytes = bytes_of(key, kObject);
    std::copy(bytes.begin(), bytes.end(), buffer.begin());
    StatusCode code = put_object(*store_, key, buffer);
    if (code != StatusCode::ok) return code;
    std::fill(buffer.begin(), buffer.end(), std::byte{0});
    const GetItem item{.key = key, .buffers = std::span(&buffer, 1)};
    ItemResult result;
    store_->get({&item, 1}, {&result, 1}, {}).status.ignore();
    if (result.code != StatusCode::ok) return result.code;
    return std::equal(bytes.begin(), bytes.end(), buffer.begin()) ? StatusCode::ok
                                                                  : StatusCode::data_loss;
  }
  StatusCode ask(const std::string& key) {
    const StatusCode code = exists_object(*store_, key);
    return code == StatusCode::not_found ? StatusCode::ok : code;  // answered is what counts
  }

  MooncakeStack stack_;
  std::unique_ptr<MooncakeStore> store_;
  std::span<std::byte> memory_;
};

TEST_P(MooncakeOutageTest, CallsAreBoundedAndServiceComesBack) {
  const Outage& outage = GetParam();
  ASSERT_TRUE(stack_.ready());
  const MooncakeOptions options = stack_.options();
  auto opened = MooncakeStore::open(options);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  store_ = std::move(*opened);
  ASSERT_TRUE(store_->wait_until_ready(now() + 60s).ok());
  const auto region = store_->allocate_memory("kv", 4 << 20);
  ASSERT_TRUE(region.ok());
  ASSERT_TRUE(store_->register_memory(*region).ok());
  memory_ = region->bytes;
  ASSERT_EQ(put_and_get("first"), StatusCode::ok);
  const std::uint64_t agents = store_->counts().agent_starts;

  Caller asker([&](int round) { return ask("key/" + std::to_string(round % 8)); });
  Caller mover([&](int round) { return put_and_get("new/" + std::to_string(round)); });
  ASSERT_TRUE(asker.good_again(now() + 20s));
  ASSERT_TRUE(mover.good_again(now() + 20s));
  stack_.tell(outage.begin);
  // Long enough that a call which was in flight has met its limit, and the next ones too.
  std::mutex mutex;
  std::condition_variable never;
  {
    std::unique_lock lock(mutex);
    never.wait_for(lock, 9s, [] { return false; });
  }
  const std::uint64_t agents_during = store_->counts().agent_starts;
  stack_.tell(outage.end);
  const TimePoint over = now();
  const bool asked = asker.good_again(over + outage.back_within);
  const double asked_after = to_seconds(now() - over);
  const bool moved = mover.good_again(over + outage.back_within);
  const double moved_after = to_seconds(now() - over);
  std::printf(
      "outage %-28s back after %.2f s (queries %.2f s), longest call %.2f s (query %.2f s), "
      "refused at once %d, agents started %d\n",
      outage.name, moved_after, asked_after, mover.longest(), asker.longest(),
      asker.refused_at_once(), static_cast<int>(store_->counts().agent_starts - agents));
  EXPECT_TRUE(asked);
  EXPECT_TRUE(moved);
  const double slack = 1.0;  // two busy cores
  // A round of the mover is two calls.
  EXPECT_LE(mover.longest(), 2 * (to_seconds(options.call_limit) + slack));
  EXPECT_LE(asker.longest(), to_seconds(options.call_limit) + slack);
  EXPECT_LE(store_->counts().agent_starts - agents, outage.agent_ends_max);
  EXPECT_LE(agents_during - agents, outage.agent_ends_max);
  EXPECT_FALSE(asker.ever_wrong());
  EXPECT_FALSE(mover.ever_wrong());
}

using Mode = MooncakeStack::Mode;
INSTANTIATE_TEST_SUITE_P(
    Mooncake, MooncakeOutageTest,
    testing::Values(
        Outage{"embedded_master_killed", Mode::embedded, "kill-master", "start-master", 10s, 1},
        Outage{"embedded_master_stopped", Mode::embedded, "stop-master", "continue-master", 10s, 1},
        Outage{"embedded_owner_killed", Mode::embedded, "kill-owner", "start-owner", 10s, 1},
        Outage{"embedded_owner_stopped", Mode::embedded, "stop-owner", "continue-owner", 10s, 3},
        Outage{"standalone_master_killed", Mode::standalone, "kill-master", "start-master", 10s, 1},
        Outage{"standalone_master_stopped", Mode::standalone, "stop-master", "continue-master", 10s,
               1},
        Outage{"standalone_daemon_killed", Mode::standalone, "kill-owner", "start-owner", 15s, 1},
        Outage{"standalone_daemon_stopped", Mode::standalone, "stop-owner", "continue-owner", 15s,
               2}),
    [](const auto& outage) { return outage.param.name; });

}  // namespace
}  // namespace hitide
