#include <thread>

#include <gtest/gtest.h>

#include <hitide/result.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/queue.h"

namespace hitide {
namespace {

TEST(Status, KeepsCodeMessageAndContext) {
  const Status failure(StatusCode::not_found, "no page 7");
  EXPECT_FALSE(failure.ok());
  EXPECT_EQ(failure.with_context("load").to_string(), "not_found: load: no page 7");
  const Status copy = failure;
  EXPECT_EQ(copy.code(), StatusCode::not_found);
  EXPECT_TRUE(ok_status().with_context("x").ok());
}

Result<int> half(int n) {
  if (n % 2 != 0) return Status(StatusCode::invalid_argument, "odd");
  return n / 2;
}
Result<int> quarter(int n) {
  HITIDE_ASSIGN_OR_RETURN(const int h, half(n));
  return half(h);
}

TEST(Result, PassesFailuresOn) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(quarter(6).value_or(-1), -1);
}

TEST(Sha256, KnownAnswers) {
  Sha256 sha;
  std::array<std::uint8_t, 32> out;
  sha.update("abc");
  sha.finish(out);
  EXPECT_EQ(to_hex(out), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  sha.reset();
  sha.finish(out);
  EXPECT_EQ(to_hex(out), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Hex, RefusesBadText) {
  std::array<std::uint8_t, 2> out{};
  EXPECT_TRUE(from_hex("0aFf", out));
  EXPECT_EQ(out[1], 0xff);
  EXPECT_FALSE(from_hex("0af", out));
  EXPECT_FALSE(from_hex("0agg", out));
}

TEST(Checksum64, PiecesEqualWhole) {
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7);
  Checksum64 pieces;
  pieces.update(std::span(bytes).first(333));
  pieces.update(std::span(bytes).subspan(333));
  EXPECT_EQ(pieces.finish(), checksum64(bytes));
}

TEST(Log, QuotesValuesAndCountsSuppressedLines) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  log_info("event", {{"a", 1}, {"b", "two words"}, {"c", "q\"\n"}});
  for (int i = 0; i < 3; ++i) {
    log_limited(LogLevel::warning, "limited_test", std::chrono::hours(1), {{"i", i}});
  }
  set_log_sink({});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "event a=1 b=\"two words\" c=\"q\\\"\\n\"");
  EXPECT_EQ(lines[1], "limited_test i=0");
}

TEST(Metrics, HistogramTextIsCumulative) {
  static constexpr double kBounds[] = {1, 2};
  Histogram histogram(kBounds);
  histogram.observe(0.5);
  histogram.observe(2);
  histogram.observe(9);
  MetricsText text;
  text.histogram("h", "help", histogram);
  text.counter("c", "help", 2, MetricsText::label("k", "a\"b"));
  const std::string out = std::move(text).text();
  EXPECT_NE(out.find("h_bucket{le=\"1\"} 1\nh_bucket{le=\"2\"} 2\nh_bucket{le=\"+Inf\"} 3\n"),
            std::string::npos);
  EXPECT_NE(out.find("h_sum 11.5\nh_count 3\n"), std::string::npos);
  EXPECT_NE(out.find("c{k=\"a\\\"b\"} 2\n"), std::string::npos);
}

TEST(BoundedQueue, HandsOutTheRestAfterClose) {
  BoundedQueue<int> queue(2);
  int a = 1, b = 2, c = 3;
  EXPECT_TRUE(queue.try_push(a));
  EXPECT_TRUE(queue.try_push(b));
  EXPECT_FALSE(queue.try_push(c));
  queue.close();
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, WakesAWaiter) {
  BoundedQueue<int> queue(1);
  std::jthread pusher([&] {
    int value = 5;
    EXPECT_TRUE(queue.try_push(value));
  });
  EXPECT_EQ(queue.pop(), 5);
}

}  // namespace
}  // namespace hitide
