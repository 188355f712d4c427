#include "engine/llama/text_stream.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace hitide {
namespace {

TEST(Utf8, FindsIncompleteTails) {
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
  EXPECT_EQ(incomplete_utf8_tail("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xc3"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xc3\xa9"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xe2\x82"), 2u);
  EXPECT_EQ(incomplete_utf8_tail("\xf0\x9f\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("\xf0\x9f\x98\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\x80\x80\x80"), 0u);  // nothing begins here
  EXPECT_EQ(incomplete_utf8_tail("\xff"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xe0\x80"), 0u);  // overlong: can never be completed
}

TEST(Utf8, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(valid_utf8("na\xc3\xafve"), "na\xc3\xafve");
  EXPECT_EQ(valid_utf8("a\xff\xfe"
                       "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\xef\xbf\xbd");        // a surrogate
  EXPECT_EQ(valid_utf8("\xf5\x80\x80\x80x"), "\xef\xbf\xbdx");  // above U+10FFFF
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xe2\x82"
                       "a"),
            "\xef\xbf\xbd"
            "a");
}

TEST(TextStream, SendsWholeCharactersOnly) {
  TextStream stream({});
  EXPECT_EQ(stream.push("caf\xc3"), "caf");
  EXPECT_EQ(stream.push("\xa9 \xf0\x9f"), "\xc3\xa9 ");
  EXPECT_EQ(stream.push("\x98\x80"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.push("\xe2"), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, StopsBeforeAStopStringThatComesInPieces) {
  TextStream stream({"END"});
  EXPECT_EQ(stream.push("one E"), "one ");
  EXPECT_EQ(stream.push("N"), "");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.push("D two"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.push("more"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, LetsGoOfABeginningThatIsNone) {
  TextStream stream({"END", "\n\n"});
  EXPECT_EQ(stream.push("E"), "");
  EXPECT_EQ(stream.push("N"), "");
  EXPECT_EQ(stream.push("S"), "ENS");
  EXPECT_EQ(stream.push("x\n"), "x");
  EXPECT_EQ(stream.finish(), "\n");
}

TEST(TextStream, TheEarliestStopStringWins) {
  TextStream stream({"cd", "b"});
  EXPECT_EQ(stream.push("abcd"), "a");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, HoldsTheLongestBeginning) {
  TextStream stream({"ab", "aab!"});
  EXPECT_EQ(stream.push("xaa"), "x");
  EXPECT_EQ(stream.push("b"), "a");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, EmptyStopStringsAreIgnored) {
  TextStream stream({"", "z"});
  EXPECT_EQ(stream.push("ab"), "ab");
  EXPECT_FALSE(stream.stopped());
}

// However a text is cut into tokens, what comes out is the text before the first stop string.
TEST(TextStream, CutsDoNotMatter) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(seed);
  Random random(seed);
  const std::string letters[] = {"a", "b", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint64_t i = random.below(14); i > 0; --i) text += letters[random.below(5)];
    std::string stop;
    for (std::uint64_t i = 1 + random.below(3); i > 0; --i) stop += letters[random.below(5)];
    TextStream stream({stop});
    std::string out;
    for (std::size_t at = 0; at < text.size() && !stream.stopped();) {
      const std::size_t n = 1 + random.below(4);
      const std::string sent = stream.push(text.substr(at, n));
      ASSERT_EQ(incomplete_utf8_tail(sent), 0u);
      out += sent;
      at += n;
    }
    out += stream.finish();
    ASSERT_EQ(out, text.substr(0, text.find(stop))) << text << " | " << stop;
  }
}

TEST(TextStream, AStopStringThatIsKeptComesOutAndNothingBehindIt) {
  TextStream stream({"lo w", "zzz"}, true);
  std::string out = stream.push("Hel");
  out += stream.push("lo ");
  EXPECT_FALSE(stream.stopped());
  out += stream.push("world");
  EXPECT_TRUE(stream.stopped());
  out += stream.push("more") + stream.finish();
  EXPECT_EQ(out, "Hello w");
}

}  // namespace
}  // namespace hitide
