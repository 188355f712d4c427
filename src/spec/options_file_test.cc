#include "spec/options_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "spec/option_table.h"

namespace hitide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OptionsFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text, const std::string& name = "serve.toml") {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }
  ServeOptions applied(const std::string& text, const std::string& name = "serve.toml") {
    ServeOptions options;
    const auto file = apply_options_file(write(text, name), options);
    EXPECT_TRUE(file.ok()) << text << ": " << file.status().message();
    if (file.ok()) file_ = *file;
    return options;
  }
  std::string refused(const std::string& text, const std::string& name = "serve.toml") {
    ServeOptions options;
    const auto file = apply_options_file(write(text, name), options);
    EXPECT_FALSE(file.ok()) << text;
    return file.ok() ? "" : std::string(file.status().message());
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("hitide_options_{}", ::getpid());
  OptionsFile file_;
};

TEST_F(OptionsFileTest, SetsWhatFlagsSet) {
  const ServeOptions options = applied(R"(# a comment
model-path = "m.gguf"
page_size = 64
hicache-size = "1.5GB"
hicache-ratio = 2.5
enable-cache-report = true
strict-config = false
host-allocator = ["mmap", "draft=shm"]
trust-remote-code = true

[hicache-storage-backend-extra-config]
path = "/d"
threads = 3
)");
  EXPECT_EQ(options.engine.model_path, "m.gguf");
  EXPECT_EQ(options.engine.page_size, 64u);
  EXPECT_EQ(options.cache.host.bytes, 1'500'000'000u);
  EXPECT_EQ(options.cache.host.ratio, 2.5);
  EXPECT_TRUE(options.server.cache_report);
  EXPECT_FALSE(options.strict_config);
  EXPECT_EQ(options.cache.host.allocator, "mmap");
  EXPECT_THAT(options.storage_extra_config, HasSubstr(R"("path":"/d")"));
  EXPECT_THAT(options.storage_extra_config, HasSubstr(R"("threads":3)"));
  EXPECT_EQ(std::count(file_.given.begin(), file_.given.end(), "--strict-config"), 0);
  EXPECT_EQ(std::count(file_.given.begin(), file_.given.end(), "--page-size"), 1);
  EXPECT_THAT(file_.engine_flags, ElementsAre("--trust-remote-code"));
}

TEST_F(OptionsFileTest, OtherFormatsGoByTheEnding) {
  EXPECT_EQ(applied(R"({"port": 8000})", "a.json").server.port, 8000u);
  EXPECT_EQ(applied("port: 8000\n", "a.yaml").server.port, 8000u);
  EXPECT_THAT(refused("port = 1", "a.ini"), HasSubstr(".toml"));
}

TEST_F(OptionsFileTest, ErrorsNameFileLineKeyAndValue) {
  const std::string bad = refused("port = 1\n\npage-size = 0\n");
  EXPECT_THAT(bad, HasSubstr("serve.toml:3: page-size: '0' is not in 1..1024"));
  EXPECT_THAT(refused("port = 1\nhicache-rato = 2\n"), HasSubstr("serve.toml:2: hicache-rato"));
  EXPECT_THAT(refused("hicache-rato = 2\n"), HasSubstr("did you mean --hicache-ratio?"));
  EXPECT_THAT(refused("page-size = [1]\n"),
              HasSubstr("serve.toml:1: page-size: must be one value"));
  EXPECT_THAT(refused("page-size = true\n"), HasSubstr("page-size: must be a value"));
  EXPECT_THAT(refused("strict-config = 1\n"), HasSubstr("strict-config: must be true or false"));
  EXPECT_THAT(refused("port = \n"), HasSubstr("line 1"));
  EXPECT_THAT(refused("page_size = 1\npage-size = 2\n"), HasSubstr("--page-size is there twice"));
  EXPECT_THAT(refused("config = \"other.toml\"\n"), HasSubstr("config: "));
  EXPECT_THAT(refused("port: -1\n", "a.yaml"), HasSubstr("port: '-1'"));
  EXPECT_THAT(refused("ssl-keyfile = \"k\"\n"), HasSubstr("no such option here"));
  ServeOptions options;
  const auto none = apply_options_file((folder_ / "none.toml").string(), options);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("none.toml"));
}

}  // namespace
}  // namespace hitide
