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

TEST(ExplanationText, ListsEverySpanInOrder) {
  testing::FakeEngine engine;
  const auto text = explanation_text(explanation_json(engine.explain("ex-1").value()));
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  std::size_t at = 0;
  for (const char* part : {"ex-1", "100 prompt tokens", "device", "storage", "never_seen",
                           "partial_page", "saved 400.0 ms"}) {
    at = text->find(part, at);
    ASSERT_NE(at, std::string::npos) << part << " in\n" << *text;
  }
}

TEST(ExplanationText, RefusesWhatIsNone) {
  for (const char* bad : {"", "[]", "{}", R"({"spans":5})"}) {
    EXPECT_EQ(explanation_text(bad).status().code(), StatusCode::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace hitide
