#include "server/admin.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/fake_engine.h"

namespace hitide {
namespace {

using Json = nlohmann::json;

TEST(ExplanationJson, SpansAndMissesSumToThePrompt) {
  testing::FakeEngine engine;
  const Json json = Json::parse(explanation_json(engine.explain("ex-1").value()));
  EXPECT_EQ(json["id"], "ex-1");
  EXPECT_EQ(json["complete"], true);
  int tokens = 0;
  for (const char* list : {"spans", "misses"}) {
    for (const Json& span : json[list]) {
      tokens += span["end"].get<int>() - span["begin"].get<int>();
    }
  }
  EXPECT_EQ(tokens, json["prompt_tokens"]);
  EXPECT_EQ(json["served_tokens"], Json({{"device", 32}, {"host", 0}, {"storage", 32}}));
  EXPECT_EQ(json["spans"][1]["tier"], "storage");
  EXPECT_EQ(json["misses"][0]["reason"], "never_seen");
  EXPECT_EQ(json["misses"][0]["meaning"], meaning(MissReason::never_seen));
  EXPECT_EQ(json["storage_wait_ms"], 5.0);
}

}  // namespace
}  // namespace hitide
