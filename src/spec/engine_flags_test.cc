#include "spec/engine_flags.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "spec/nearest_name.h"
#include "spec/option_table.h"

namespace hitide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> taken(std::vector<std::string> arguments) {
  const auto flags = take_engine_flags(arguments);
  EXPECT_TRUE(flags.ok()) << flags.status().to_string();
  return flags.ok() ? *flags : std::vector<std::string>();
}

std::string refusal(std::vector<std::string> arguments) {
  const Status status = take_engine_flags(arguments).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  return std::string(status.message());
}

TEST(EngineFlags, AreTakenWithTheirValues) {
  EXPECT_THAT(taken({}), ElementsAre());
  EXPECT_THAT(taken({"--trust-remote-code", "--mem-fraction-static", "0.8", "--moe-runner-backend",
                     "marlin", "--dist-init-addr", "0.0.0.0:29500"}),
              ElementsAre("--trust-remote-code", "--mem-fraction-static", "--moe-runner-backend",
                          "--dist-init-addr"));
  EXPECT_THAT(taken({"--mem-fraction-static=0.8", "--random-seed", "-1"}),
              ElementsAre("--mem-fraction-static", "--random-seed"));
  EXPECT_THAT(taken({"--cuda-graph-bs", "1", "2", "4", "--trust-remote-code", "--cuda-graph-bs"}),
              ElementsAre("--cuda-graph-bs", "--trust-remote-code"));
}

TEST(EngineFlags, WhatIsWrongIsNamed) {
  EXPECT_THAT(refusal({"surplus"}), HasSubstr("'surplus'"));
  EXPECT_THAT(refusal({""}), HasSubstr("not expected"));
  EXPECT_THAT(refusal({"-"}), HasSubstr("'-'"));
  EXPECT_THAT(refusal({"--trust-remote-code", "yes"}), HasSubstr("'yes'"));
  EXPECT_THAT(refusal({"--trust-remote-code=yes"}), HasSubstr("--trust-remote-code: takes no"));
  EXPECT_THAT(refusal({"--mem-fraction-static"}), HasSubstr("--mem-fraction-static: a value"));
  EXPECT_THAT(refusal({"--mem-fraction-static", "--trust-remote-code"}), HasSubstr("a value"));
  EXPECT_THAT(refusal({"--mem-fraction-static", "1", "2"}), HasSubstr("'2'"));
}

TEST(EngineFlags, AMisspeltFlagIsAnErrorWithTheNearestName) {
  EXPECT_THAT(refusal({"--trust-remote-cod"}), HasSubstr("did you mean --trust-remote-code?"));
  EXPECT_THAT(refusal({"--mem_fraction_static", "1"}), HasSubstr("--mem-fraction-static?"));
  EXPECT_THAT(refusal({"--hicache-rato=2"}), HasSubstr("--hicache-rato: no such option"));
  EXPECT_THAT(refusal({"--hicache-rato=2"}), HasSubstr("did you mean --hicache-ratio?"));
  const std::string far = refusal({"--completely-different"});
  EXPECT_THAT(far, HasSubstr("no such option"));
  EXPECT_EQ(far.find("did you mean"), std::string::npos);
}

// What would leave the server less safe, or with other answers, is not passed over.
TEST(EngineFlags, SomeAreRefused) {
  for (const char* name :
       {"--ssl-keyfile", "--lora-paths", "--chat-template", "--disaggregation-mode"}) {
    EXPECT_THAT(refusal({name, "x"}), HasSubstr("no such option here"));
  }
}

TEST(EngineFlags, EachNameStandsInOnePlace) {
  std::set<std::string_view> seen;
  for (const auto& names : {accepted_engine_flags(), refused_engine_flags()}) {
    for (const std::string_view name : names) {
      EXPECT_TRUE(name.starts_with("--") && name.size() > 3) << name;
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_EQ(find_option(option_table(), name), nullptr) << name;
    }
  }
  EXPECT_GT(seen.size(), 400u);
}

TEST(AcceptedOptions, OneLineEach) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  ServeOptions options;
  log_accepted_options(options);
  EXPECT_TRUE(lines.empty());
  options.mem_layout = "page_first";
  options.io_backend = "kernel";
  options.tensor_parallel_size = 4;
  options.engine_flags = {"--trust-remote-code", "--mem-fraction-static"};
  log_accepted_options(options);
  set_log_sink({});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("page_first, kernel"));
  EXPECT_THAT(lines[0], HasSubstr("stored as page_packed"));
  EXPECT_THAT(lines[1], HasSubstr("one rank"));
  EXPECT_THAT(lines[2], HasSubstr("--trust-remote-code, --mem-fraction-static"));
}

TEST(NearestName, CountsSlips) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
  EXPECT_EQ(edit_distance("MAX-size", "max_size"), 0u);
  const std::string_view names[] = {"path", "max_size", "threads"};
  EXPECT_EQ(nearest_name("pth", names), "path");
  EXPECT_EQ(nearest_name("maxsize", names), "max_size");
  EXPECT_EQ(nearest_name("bread", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(5000, 'x'), names), "");
}

}  // namespace
}  // namespace hitide
