#include "server/setup.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace hitide {
namespace {

namespace fs = std::filesystem;

class SetupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("hitide_setup_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

TEST_F(SetupTest, ModelFilesAreLookedAtFirst) {
  EXPECT_TRUE(check_model_file(file("m.gguf", "GGUF and more")).ok());
  const auto refused = [&](const std::string& path, std::string_view why) {
    const Status status = check_model_file(path);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << path;
    EXPECT_NE(status.message().find(path), std::string::npos);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.to_string();
  };
  refused((folder_ / "none.gguf").string(), "No such file");
  refused(folder_.string(), "directory");
  refused(file("empty.gguf", ""), "no GGUF");
  refused(file("text.gguf", "hello, this is text"), "no GGUF");
  refused("/dev/null", "no regular file");
}

TEST(StartLines, SayWhatIsServed) {
  EngineInfo info;
  info.model_name = "smol";
  info.context_length = 2048;
  info.page_size = 32;
  info.kv_cache_dtype = "q8_0";
  info.exact = true;
  info.cache_on = true;
  CacheStats stats;
  stats.device.pages_total = 10;
  stats.host.pages_total = 100;
  stats.storage_status = StorageStatus::on;
  stats.storage_backend = "file";
  stats.storage_detail = "/var/store";
  stats.storage.bytes_limit = 64'000'000'000;
  const ServeOptions options;
  const std::string text = start_lines(info, stats, options, "0.1.0");
  for (const char* part : {"hitide 0.1.0", "smol", "2048", "q8_0, exact", "320 tokens",
                           "3200 tokens", "/var/store", "64.00 GB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  info.exact = false;
  stats.storage_status = StorageStatus::off;
  stats.storage_backend = "none";
  stats.storage_detail = "locked by process 7";
  const std::string without = start_lines(info, stats, options, "0.1.0");
  EXPECT_NE(without.find("not exact"), std::string::npos);
  EXPECT_NE(without.find("no storage: locked by process 7"), std::string::npos);
  info.cache_on = false;
  info.cache_detail = "--disable-radix-cache";
  EXPECT_NE(start_lines(info, stats, options, "0.1.0").find("cache: off: --disable-radix-cache"),
            std::string::npos);
}

TEST(StartLines, SayWhichPoolsAreWorseOffAndWhy) {
  EngineInfo info;
  info.cache_on = true;
  CacheStats stats;
  stats.storage_status = StorageStatus::waiting;
  stats.storage_backend = "mooncake";
  stats.storage_detail = "no answer from 10.0.0.1:50051";
  PoolRegistration row;
  row.pool = "kv";
  row.client = ClientKind::standalone;
  row.verdict = RegistrationVerdict::client_down;
  row.advice = "start the store";
  stats.registration = {row};
  const std::string text = start_lines(info, stats, ServeOptions(), "0.1.0");
  for (const char* part : {"mooncake, not there yet", "no answer from 10.0.0.1:50051",
                           "L3 is off; L1 and L2 go on", "client_down", "start the store"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  stats.registration[0].client = ClientKind::local;
  stats.registration[0].verdict = RegistrationVerdict::ok;
  stats.registration[0].path = RegistrationPath::zero_copy;
  EXPECT_EQ(start_lines(info, stats, ServeOptions(), "0.1.0").find("zero_copy"), std::string::npos);
}

}  // namespace
}  // namespace hitide
