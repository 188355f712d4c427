#include "spec/config_document.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/random.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

using Kind = ConfigValue::Kind;
constexpr ConfigFormat kFormats[] = {ConfigFormat::json, ConfigFormat::toml, ConfigFormat::yaml};

// Kind and text of each key, in order of the keys' names.
std::string shown(const ConfigValue& value) {
  if (value.kind == Kind::text) return "'" + value.text + "'";
  if (value.kind == Kind::null) return "null";
  if (value.kind != Kind::table && value.kind != Kind::list) return value.text;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const std::string key = value.kind == Kind::table ? value.keys[i] + "=" : "";
    parts.push_back(key + shown(value.items[i]));
  }
  if (value.kind == Kind::table) std::sort(parts.begin(), parts.end());
  std::string out(value.kind == Kind::table ? "{" : "[");
  for (const std::string& part : parts) out += (out.size() == 1 ? "" : ", ") + part;
  return out + (value.kind == Kind::table ? "}" : "]");
}

std::string parsed(std::string_view text, ConfigFormat format) {
  const Result<ConfigValue> value = parse_config(text, format);
  return value.ok() ? shown(*value) : std::string(value.status().message());
}

std::string refusal(std::string_view text, ConfigFormat format) {
  const Result<ConfigValue> value = parse_config(text, format);
  EXPECT_EQ(value.status().code(), StatusCode::invalid_argument)
      << to_string(format) << ": " << text.substr(0, 200);
  return std::string(value.status().message());
}

TEST(ConfigDocument, TheSameValuesInEveryFormat) {
  const std::string_view expected =
      "{a='x y', b=true, c=-5, d=0.25, e='5', list=[1, 'two'], map={0='mlx5_0', k=false}}";
  EXPECT_EQ(parsed(R"({"a": "x y", "b": true, "c": -5, "d": 0.25, "e": "5",
                       "list": [1, "two"], "map": {"0": "mlx5_0", "k": false}})",
                   ConfigFormat::json),
            expected);
  EXPECT_EQ(parsed("a = 'x y'\nb = true\nc = -5\nd = 0.25\ne = '5'\nlist = [1, 'two']\n"
                   "[map]\n0 = 'mlx5_0'\nk = false\n",
                   ConfigFormat::toml),
            expected);
  EXPECT_EQ(parsed("a: x y\nb: true\nc: -5\nd: 0.25\ne: '5'\nlist: [1, two]\n"
                   "map:\n  0: mlx5_0\n  k: False\n",
                   ConfigFormat::yaml),
            expected);
  EXPECT_EQ(parsed("{}", ConfigFormat::json), "{}");
  EXPECT_EQ(parsed("", ConfigFormat::toml), "{}");
  EXPECT_EQ(parsed("{}", ConfigFormat::yaml), "{}");
  EXPECT_EQ(parsed("\xef\xbb\xbf{\"a\": 1}", ConfigFormat::json), "{a=1}");
}

TEST(ConfigDocument, YamlScalarsHaveTheTypesOfTheCoreSchema) {
  const auto typed = [](const std::string& scalar) {
    const std::string whole = parsed("a: " + scalar + "\n", ConfigFormat::yaml);
    return whole.size() > 4 ? whole.substr(3, whole.size() - 4) : whole;
  };
  for (const char* text :
       {"no",         "No",   "off",  "yes",   "y",    "n",     "on", "12:30", "1_000",
        "2026-11-30", "0x",   "0o8",  "1.2.3", "1e",   "+",     ".",  "4gb",   "127.0.0.1:50051",
        ".inf",       ".nan", "tRUE", "1,5",   "0b11", "-0x10", "<<"}) {
    EXPECT_EQ(typed(text), "'" + std::string(text) + "'");
  }
  for (const char* text : {"true", "True", "TRUE"}) EXPECT_EQ(typed(text), "true");
  for (const char* text : {"false", "False", "FALSE"}) EXPECT_EQ(typed(text), "false");
  for (const char* text : {"null", "Null", "NULL", "~", ""}) EXPECT_EQ(typed(text), "null");
  for (const char* text : {"0", "17", "-3", "1.5", "-.5", "5.", "1e9", "1.5E-3", "0123"}) {
    EXPECT_EQ(typed(text), text);
  }
  EXPECT_EQ(typed("+4"), "4");
  EXPECT_EQ(typed("0x10"), "16");
  EXPECT_EQ(typed("0o17"), "15");
  for (const char* text : {"'true'", "\"true\"", "!!str true"}) EXPECT_EQ(typed(text), "'true'");
  EXPECT_EQ(typed("'5'"), "'5'");
  EXPECT_EQ(typed("|\n  two\n  lines"), "'two\nlines\n'");
}

TEST(ConfigDocument, YamlRefusesWhatCouldMeanSomethingElse) {
  const auto refused = [](std::string_view text, std::string_view part) {
    const std::string message = refusal(text, ConfigFormat::yaml);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused("a: &x 1\nb: *x\n", "anchors");
  refused("a: &x {c: 1}\n", "anchors");
  refused("a: *x\n", "not YAML");
  refused("<<: {a: 1}\n", "merge key");
  refused("a: !!int 5\n", "tag");
  refused("a: !thing {b: 1}\n", "tags");
  refused("a: !!binary aGk=\n", "tag");
  refused("a: 1\n---\nb: 2\n", "second document");
  refused("? [a, b]\n: 1\n", "a key that is no text");
  refused("~: 1\n", "an empty key");
  refused("[], 1", "second document");
  refused(",", "second document");
  refused("a: b: c\n", "not YAML");
  refused("a: [1, 2\n", "not YAML");
  refused("\ta: 1\n", "not YAML");
}

TEST(ConfigDocument, TheTopLevelIsATable) {
  for (const char* text : {"[]", "5", "null", "\"x\""}) {
    EXPECT_NE(refusal(text, ConfigFormat::json).find("table"), std::string::npos);
    EXPECT_NE(refusal(text, ConfigFormat::yaml).find("table"), std::string::npos);
  }
  EXPECT_NE(refusal("", ConfigFormat::yaml).find("table"), std::string::npos);
  EXPECT_NE(refusal("", ConfigFormat::json).find("not JSON"), std::string::npos);
}

TEST(ConfigDocument, AKeyTwiceIsRefusedAtEveryLevel) {
  EXPECT_NE(refusal(R"({"a": 1, "a": 2})", ConfigFormat::json).find("'a'"), std::string::npos);
  EXPECT_NE(refusal(R"({"m": {"b": 1, "b": 2}})", ConfigFormat::json).find("'b'"),
            std::string::npos);
  EXPECT_NE(refusal("a: 1\na: 2\n", ConfigFormat::yaml).find("line 2"), std::string::npos);
  EXPECT_NE(refusal("m: {b: 1, b: 2}\n", ConfigFormat::yaml).find("'b'"), std::string::npos);
  EXPECT_NE(refusal("a = 1\na = 2\n", ConfigFormat::toml).find("line 2"), std::string::npos);
}

TEST(ConfigDocument, WhatIsNoneOfTheFormatIsNamedWithItsPlace) {
  EXPECT_NE(refusal("{\"a\": 1,}", ConfigFormat::json).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": 1} {}", ConfigFormat::json).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": NaN}", ConfigFormat::json).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal("a = \n", ConfigFormat::toml).find("line 1"), std::string::npos);
  EXPECT_NE(refusal("a = 2026-11-30\n", ConfigFormat::toml).find("dates"), std::string::npos);
}

TEST(ConfigDocument, ZeroBytesAndWhatIsNoUtf8AreNamedWithTheirPlace) {
  for (const ConfigFormat format : kFormats) {
    EXPECT_NE(refusal(std::string_view("{\0}", 3), format).find("byte 1 is zero"),
              std::string::npos);
    for (const std::string_view bytes : {"{\xff}", "{\xc0\x80}", "{\xed\xa0\x80}",
                                         "{\xf5\x80\x80\x80}", "{\xe2\x82", "{\xf4\x90\x80\x80}"}) {
      EXPECT_NE(refusal(bytes, format).find("byte 1 is no UTF-8"), std::string::npos);
    }
  }
  for (const ConfigFormat format : kFormats) {
    for (const char* text : {"a\x04", "a\x1b", "a\x7f", "a\v"}) {
      EXPECT_NE(refusal(text, format).find("byte 1 is a control character"), std::string::npos);
    }
  }
  EXPECT_EQ(parsed("{\"a\": \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}", ConfigFormat::json),
            "{a='\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80'}");
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

// Deep and wide documents end in an answer, not in a stack that is too small.
TEST(ConfigDocument, DepthAndCountAreBounded) {
  const auto bounded = [](const std::string& text, ConfigFormat format, std::string_view part) {
    const std::string message = refusal(text, format);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  constexpr std::size_t kMany = 100'000;
  bounded(repeated("{\"a\":", kMany), ConfigFormat::json, "nested");
  bounded(repeated("[", kMany), ConfigFormat::json, "nested");
  bounded(repeated("[", kMany), ConfigFormat::yaml, "YAML");
  bounded(repeated("{a: ", 40) + "1" + repeated("}", 40), ConfigFormat::yaml, "nested");
  bounded("a = " + repeated("[", kMany), ConfigFormat::toml, "TOML");
  bounded("a = " + repeated("[", 40) + repeated("]", 40), ConfigFormat::toml, "nested");
  bounded(repeated("a.", kMany) + "a = 1", ConfigFormat::toml, "dots");
  bounded(repeated("a.", 1900) + "a = 1", ConfigFormat::toml, "nested");
  bounded("{\"a\": [" + repeated("1,", kMany) + "1]}", ConfigFormat::json, "values");
  bounded("a: [" + repeated("1,", kMany) + "1]", ConfigFormat::yaml, "values");
  bounded("a = [" + repeated("1,", kMany) + "1]", ConfigFormat::toml, "values");
  for (const ConfigFormat format : kFormats) {
    bounded(std::string(kConfigBytesMax + 1, ' '), format, "more than");
  }
}

TEST(ConfigFile, TheEndingSaysTheFormat) {
  EXPECT_EQ(config_format_of("/a/b.json").value_or(ConfigFormat::yaml), ConfigFormat::json);
  EXPECT_EQ(config_format_of("b.TOML").value_or(ConfigFormat::yaml), ConfigFormat::toml);
  EXPECT_EQ(config_format_of("b.c.yaml").value_or(ConfigFormat::json), ConfigFormat::yaml);
  EXPECT_EQ(config_format_of("b.yml").value_or(ConfigFormat::json), ConfigFormat::yaml);
  for (const char* bad : {"b", "b.", "b.ini", "a.json/b", "", "/dir.yaml/"}) {
    const Status status = config_format_of(bad).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << bad;
    EXPECT_NE(status.message().find(".toml"), std::string::npos);
  }
}

TEST(ConfigFile, OnlyRegularFilesOfBoundedSizeAreRead) {
  const TempDirectory directory;
  const auto write = [&](const char* name, const std::string& content) {
    std::ofstream(directory / name, std::ios::binary) << content;
    return std::string(directory / name);
  };
  EXPECT_EQ(read_config_file(write("a", "text")).value_or(""), "text");
  EXPECT_EQ(read_config_file(write("e", "")).value_or("x"), "");
  EXPECT_EQ(read_config_file(write("b", std::string(kConfigBytesMax, 'x'))).value_or("").size(),
            kConfigBytesMax);
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  const auto refused = [](const std::string& path, std::string_view why) {
    const Status status = read_config_file(path).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << path;
    EXPECT_NE(status.message().find(path), std::string::npos);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.to_string();
  };
  refused(write("c", std::string(kConfigBytesMax + 1, 'x')), "more than");
  refused(directory / "none", "No such file");
  refused(directory / ".", "directory");
  refused(directory / "fifo", "regular");
  refused("/dev/zero", "regular");
  refused("", "no path");
}

// What a parser makes of any bytes is a table or a refusal, in bounded time.
TEST(ConfigDocument, AnyBytesAreAnswered) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  Random random(seed);
  const std::string_view seeds[] = {
      R"({"master_server_address": "127.0.0.1:50051", "global_segment_size": "4gb", "a": [1, {}]})",
      "master_server_address = '127.0.0.1:50051'\nglobal_segment_size = '4gb'\n[a.b]\nc = [1, 2]\n",
      "master_server_address: 127.0.0.1:50051\ncheck_server: no\na: {b: [1, 2], c: |\n  x\n}\n",
      "[]{}:,&*!|>'\"%@`#-?~<=\n\t \\"};
  constexpr std::string_view kSpecial = "[]{}:,&*!|>'\"%@`#-?~<=\n\t \\.0eE\xc3\xa9\r";
  for (int round = 0; round < 6000; ++round) {
    std::string text(seeds[random.below(std::size(seeds))]);
    for (std::uint64_t edits = random.below(12); edits > 0; --edits) {
      const std::size_t at = random.below(text.size() + 1);
      const char c = random.chance(0.7) ? kSpecial[random.below(kSpecial.size())]
                                        : static_cast<char>(random.below(256));
      if (random.chance(0.5) || at == text.size()) {
        text.insert(text.begin() + static_cast<std::ptrdiff_t>(at), c);
      } else if (random.chance(0.5)) {
        text[at] = c;
      } else {
        text.erase(at, 1 + random.below(4));
      }
    }
    for (const ConfigFormat format : kFormats) {
      const Result<ConfigValue> value = parse_config(text, format);
      if (value.ok()) {
        EXPECT_EQ(value->kind, Kind::table);
        EXPECT_EQ(value->keys.size(), value->items.size());
      } else {
        EXPECT_EQ(value.status().code(), StatusCode::invalid_argument);
        EXPECT_FALSE(value.status().message().empty());
      }
    }
    if (HasFailure()) FAIL() << text;
  }
}

}  // namespace
}  // namespace hitide
