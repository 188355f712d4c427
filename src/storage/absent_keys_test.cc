#include "storage/absent_keys.h"

#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"

namespace hitide {
namespace {

TEST(AbsentKeysTest, AreKnownUntilTheyAreErasedOrOld) {
  ManualClock clock;
  AbsentKeys keys;
  keys.insert("a", clock.now());
  keys.insert("b", clock.now());
  EXPECT_TRUE(keys.contains("a", clock.now()));
  EXPECT_FALSE(keys.contains("c", clock.now()));
  keys.erase("a");
  EXPECT_FALSE(keys.contains("a", clock.now()));
  clock.advance(AbsentKeys::kKeptFor - std::chrono::milliseconds(1));
  EXPECT_TRUE(keys.contains("b", clock.now()));
  clock.advance(AbsentKeys::kKeptFor);
  keys.insert("d", clock.now());
  EXPECT_TRUE(keys.contains("d", clock.now()));
  clock.advance(2 * AbsentKeys::kKeptFor);
  for (const char* key : {"b", "d"}) EXPECT_FALSE(keys.contains(key, clock.now())) << key;
}

TEST(AbsentKeysTest, ErasesWhatIsInTheOlderGeneration) {
  ManualClock clock;
  AbsentKeys keys;
  keys.insert("x", clock.now());  // the first generation begins here
  clock.advance(AbsentKeys::kKeptFor);
  keys.insert("y", clock.now());
  ASSERT_TRUE(keys.contains("x", clock.now()));
  keys.erase("x");
  EXPECT_FALSE(keys.contains("x", clock.now()));
  EXPECT_TRUE(keys.contains("y", clock.now()));
}

TEST(AbsentKeysTest, TheNewestAreKeptWhenThereAreTooMany) {
  ManualClock clock;
  AbsentKeys keys;
  const std::size_t count = 5 * AbsentKeys::kKeysMax;
  for (std::size_t i = 0; i < count; ++i) keys.insert(std::to_string(i), clock.now());
  EXPECT_FALSE(keys.contains("0", clock.now()));
  for (std::size_t i = count - AbsentKeys::kKeysMax; i < count; ++i) {
    ASSERT_TRUE(keys.contains(std::to_string(i), clock.now())) << i;
  }
}

}  // namespace
}  // namespace hitide
