// docs/reasons.md lists exactly the reasons of the enum, in its order.

#include <gtest/gtest.h>

#include <hitide/explanation.h>

#include "base/file.h"

namespace hitide {
namespace {

TEST(ReasonsPage, IsTheEnum) {
  const auto page = read_file(HITIDE_SOURCE_DIR "/docs/reasons.md", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  std::string rows = "|---|---|\n";
  for (int i = 0; i < kMissReasonCount; ++i) {
    const auto reason = static_cast<MissReason>(i);
    rows += "| `" + std::string(to_string(reason)) + "` | " + std::string(meaning(reason)) + " |\n";
  }
  const std::size_t at = page->find("|---|---|\n");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(page->substr(at), rows);
}

}  // namespace
}  // namespace hitide
