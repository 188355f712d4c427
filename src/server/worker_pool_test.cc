#include "server/worker_pool.h"

#include <atomic>
#include <latch>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/log.h"

namespace hitide {
namespace {

TEST(WorkerPool, RunsEveryJobEvenAfterStop) {
  std::atomic<int> ran{0};
  WorkerPool pool(3, 1000);
  for (int i = 0; i < 200; ++i) pool.submit([&] { ran.fetch_add(1); });
  pool.stop();
  EXPECT_EQ(ran.load(), 200);
  pool.stop();
}

TEST(WorkerPool, GrowsToItsLimitAndNoFurther) {
  constexpr int kThreads = 4;
  std::latch all_busy(kThreads);
  std::latch release(1);
  std::atomic<int> busy{0};
  std::atomic<int> most{0};
  WorkerPool pool(kThreads, 1000);
  for (int i = 0; i < 2 * kThreads; ++i) {
    pool.submit([&, i] {
      most.store(std::max(most.load(), busy.fetch_add(1) + 1));
      if (i < kThreads) all_busy.count_down();
      release.wait();
      busy.fetch_sub(1);
    });
  }
  all_busy.wait();
  release.count_down();
  pool.stop();
  EXPECT_EQ(most.load(), kThreads);
}

TEST(WorkerPool, AJobThatThrowsKillsNoThread) {
  set_log_sink([](LogLevel, std::string_view) {});
  std::atomic<int> ran{0};
  WorkerPool pool(1, 100);
  for (int i = 0; i < 10; ++i) {
    pool.submit([&] {
      ran.fetch_add(1);
      throw std::runtime_error("on purpose");  // tidy: allow-throw what the pool must survive
    });
  }
  pool.submit([&] { ran.fetch_add(1); });
  pool.stop();
  EXPECT_EQ(ran.load(), 11);
  set_log_sink({});
}

TEST(WorkerPool, AFullQueueRefusesAndKeepsTheJob) {
  std::latch release(1);
  std::latch running(1);
  std::atomic<int> ran{0};
  WorkerPool pool(1, 2);
  ASSERT_TRUE(pool.submit([&] {
    running.count_down();
    release.wait();
  }));
  running.wait();
  std::function<void()> job = [&] { ran.fetch_add(1); };
  EXPECT_TRUE(pool.submit([&] { ran.fetch_add(1); }));
  EXPECT_TRUE(pool.submit([&] { ran.fetch_add(1); }));
  EXPECT_FALSE(pool.submit(std::move(job)));
  ASSERT_TRUE(job) << "the caller still has it";
  release.count_down();
  pool.stop();
  EXPECT_EQ(ran.load(), 2);
  EXPECT_FALSE(pool.submit(std::move(job))) << "it has stopped";
}

}  // namespace
}  // namespace hitide
