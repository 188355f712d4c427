// What comes out is run by llama.cpp in the tests over the real model; here it is what is taken and
// what is refused, and that a grammar has each rule it names once.
#include "server/json_grammar.h"

#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hitide {
namespace {

using ::testing::HasSubstr;

// Names that are used and defined; literals and sets do not count.
void expect_closed(const std::string& grammar) {
  std::multiset<std::string> defined;
  std::set<std::string> used;
  std::istringstream lines(grammar);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t is = line.find(" ::= ");
    ASSERT_NE(is, std::string::npos) << line;
    defined.insert(line.substr(0, is));
    std::string word;
    char inside = '\0';
    for (std::size_t i = is + 5; i <= line.size(); ++i) {
      const char c = i < line.size() ? line[i] : ' ';
      if (inside != '\0') {
        if (c == '\\') {
          ++i;
        } else if (c == inside) {
          inside = '\0';
        }
        continue;
      }
      if (c == '"' || c == '[' || c == '{') inside = c == '"' ? '"' : c == '[' ? ']' : '}';
      if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9' && !word.empty())) {
        word += c;
        continue;
      }
      if (!word.empty()) used.insert(word);
      word.clear();
    }
  }
  EXPECT_EQ(defined.count("root"), 1u);
  for (const std::string& name : used)
    EXPECT_EQ(defined.count(name), 1u) << name << "\n" << grammar;
}

std::string grammar_of(const std::string& schema) {
  const Result<std::string> grammar = json_schema_grammar(schema, "");
  EXPECT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  if (!grammar.ok()) return {};
  expect_closed(*grammar);
  return *grammar;
}

std::string refusal_of(const std::string& schema) {
  const Result<std::string> grammar = json_schema_grammar(schema, "");
  EXPECT_FALSE(grammar.ok()) << schema;
  return grammar.ok() ? "" : std::string(grammar.status().message());
}

TEST(JsonGrammar, AnyObjectIsClosed) { expect_closed(json_object_grammar()); }

TEST(JsonGrammar, TakesWhatClientsSend) {
  for (const char* schema :
       {"true", "{}", R"({"type":"string"})", R"({"type":["string","null"]})",
        R"({"type":["object","null"],"properties":{"a":{"type":"integer"}},"required":["a"]})",
        R"({"enum":["a","b",1,null,{"c":[]}]})", R"({"const":"x\"y\\"})",
        R"({"type":"string","minLength":1,"maxLength":10,"format":"date"})",
        R"({"type":"array","items":{"type":"number"},"minItems":2,"maxItems":5})",
        R"({"type":"array","items":{"type":"number"},"maxItems":1})",
        R"({"type":"array","maxItems":0})", R"({"type":"array"})",
        R"({"type":"array","prefixItems":[{"type":"string"},{"type":"boolean"}],"items":false})",
        R"({"type":"object"})", R"({"type":"object","additionalProperties":false})",
        R"({"type":"object","additionalProperties":{"type":"integer"}})",
        R"({"anyOf":[{"type":"string"},{"type":"null"}],"title":"T","default":null})",
        R"({"allOf":[{"$ref":"#/$defs/x"}],"$defs":{"x":{"type":"boolean"}}})",
        R"({"properties":{"a":{},"b":{"type":"string"}},"required":["b"]})"}) {
    grammar_of(schema);
  }
}

TEST(JsonGrammar, SchemasThatNameThemselvesEnd) {
  const std::string grammar = grammar_of(
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":
         {"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
         "required":["v","next"]}}})");
  EXPECT_THAT(grammar, HasSubstr(R"("\"next\"")"));
}

TEST(JsonGrammar, PropertiesKeepTheOrderOfTheSchema) {
  const std::string grammar = grammar_of(
      R"({"type":"object","properties":{"zeta":{"type":"string"},"alpha":{"type":"string"}}})");
  EXPECT_LT(grammar.find("zeta"), grammar.find("alpha"));
}

TEST(JsonGrammar, ReadsTheSchemaInADocument) {
  const auto grammar = json_schema_grammar(R"({"a":{"b":{"const":"here"}}})", "/a/b");
  ASSERT_TRUE(grammar.ok());
  EXPECT_THAT(*grammar, HasSubstr(R"("\"here\"")"));
  EXPECT_FALSE(json_schema_grammar(R"({"a":{}})", "/a/b").ok());
}

TEST(JsonGrammar, RefusalsNameThePlaceAndTheKeyword) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"string","pattern":"^a$"})", "#: 'pattern'"},
      {R"({"properties":{"age":{"type":"integer","minimum":0}}})", "#/properties/age: 'minimum'"},
      {R"({"type":"thing"})", "'thing' is no type"},
      {R"({"type":5})", "#/type"},
      {R"({"type":[]})", "#/type"},
      {R"({"enum":[]})", "#/enum"},
      {R"({"anyOf":[]})", "#/anyOf"},
      {R"({"anyOf":[{"not":{}}]})", "#/anyOf/0: 'not'"},
      {R"({"allOf":[{},{}]})", "#/allOf"},
      {R"({"$ref":"#/$defs/none"})", "there is no '#/$defs/none'"},
      {R"({"$ref":"https://example.com/s"})", "within the schema"},
      {R"({"type":"object","properties":{"a":{}},"required":["b"]})", "#/required"},
      {R"({"type":"object","properties":[]})", "#/properties"},
      {R"({"type":"array","items":5})", "#/items"},
      {R"({"type":"array","minItems":5,"maxItems":2})", "more than"},
      {R"({"type":"string","maxLength":100000})", "maxLength"},
      {R"({"type":"string","minLength":-1})", "minLength"},
      {R"({"type":"array","uniqueItems":true})", "'uniqueItems'"},
      {"false", "false allows nothing"},
      {"5", "must be an object"},
      {"{", "no JSON schema"},
  };
  for (const auto& [schema, says] : cases) EXPECT_THAT(refusal_of(schema), HasSubstr(says));
}

TEST(JsonGrammar, SizesAreBounded) {
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 600; ++i) wide += fmt::format("{}\"p{}\":{{}}", i ? "," : "", i);
  EXPECT_THAT(refusal_of(wide + "}}"), HasSubstr("names"));
  std::string many = R"({"anyOf":[)";
  for (int i = 0; i < 5000; ++i) many += fmt::format("{}{{\"const\":{}}}", i ? "," : "", i);
  EXPECT_THAT(refusal_of(many + "]}"), HasSubstr("too many parts"));
}

}  // namespace
}  // namespace hitide
