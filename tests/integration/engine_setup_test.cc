// The identity of a model: what changes a stored bit changes the namespace, and nothing else does.
#include "engine/llama/engine_setup.h"

#include <filesystem>
#include <fstream>

#include "tests/integration/engine_harness.h"

namespace hitide {
namespace {

std::string identity_of(const EngineOptions& engine) {
  auto setup = set_up_engine(engine, test::TestOptions().cache);
  EXPECT_TRUE(setup.ok()) << setup.status().to_string();
  return setup.ok() ? identity_digest(setup.value().spec).to_hex() : "";
}

TEST(EngineSetup, IdentityFollowsTheNumericsOnly) {
  const EngineOptions base = test::TestOptions().engine;
  const std::string identity = identity_of(base);
  EngineOptions same = base;
  same.threads = 2;
  same.device_tokens = 2048;
  same.context_length = 1024;
  same.running_requests_max = 2;
  same.sequences_max = 16;
  same.prefill_chunk_tokens = 128;
  same.micro_batch = 64;
  EXPECT_EQ(identity_of(same), identity);
  EngineOptions other = base;
  other.page_size = 32;
  EXPECT_NE(identity_of(other), identity);
  other = base;
  other.kv_cache_dtype = "f16";
  const std::string f16 = identity_of(other);
  EXPECT_NE(f16, identity);
  other.micro_batch = 64;  // another class
  EXPECT_NE(identity_of(other), f16);
}

TEST(EngineSetup, AByteOfTheFileChangesTheIdentity) {
  const TempDirectory folder;
  EngineOptions engine = test::TestOptions().engine;
  const std::string identity = identity_of(engine);
  engine.model_path = folder / "copy.gguf";
  std::filesystem::copy_file(test::model_path(), engine.model_path);
  EXPECT_EQ(identity_of(engine), identity);  // the path does not count
  {
    // The last byte: a weight, or padding behind the last one.
    std::fstream file(engine.model_path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  EXPECT_NE(identity_of(engine), identity);
}

TEST(EngineSetup, SaysHowExactItIs) {
  const auto info = [](auto change) {
    test::TestOptions options;
    change(options.engine);
    return set_up_engine(options.engine, options.cache).value().info;
  };
  using E = EngineOptions;
  const EngineInfo q8 = info([](E& e) { e.threads = 2; });
  EXPECT_EQ(q8.kv_cache_dtype, "q8_0");
  EXPECT_TRUE(q8.exact);
  EXPECT_TRUE(info([](E& e) {
                e.kv_cache_dtype = "f16";
                e.threads = 0;
              }).exact);
  EXPECT_FALSE(info([](E& e) {
                 e.kv_cache_dtype = "f16";
                 e.threads = 2;
               }).exact);
  EXPECT_FALSE(info([](E& e) {
                 e.kv_cache_dtype = "f16";
                 e.micro_batch = 64;
               }).exact);
  const EngineInfo bf16 = info([](E& e) { e.kv_cache_dtype = "bf16"; });
  EXPECT_EQ(bf16.kv_cache_dtype, "bf16");
  EXPECT_TRUE(bf16.exact);
}

TEST(EngineSetup, SizesFollowTheModelAndTheOptions) {
  test::TestOptions options;
  options.engine.context_length = 0;
  options.engine.device_tokens = 0;
  options.engine.page_size = 32;
  options.engine.prefill_chunk_tokens = 128;
  const auto setup = set_up_engine(options.engine, options.cache);
  ASSERT_TRUE(setup.ok());
  EXPECT_EQ(setup.value().info.context_length, 8192u);
  EXPECT_EQ(setup.value().device.geometry.page_count, 12288u / 32);
  EXPECT_GT(setup.value().device.cells, 12288u);
  // 12,240 bytes a token, positions and the like besides.
  EXPECT_GT(setup.value().device.geometry.page_bytes, 32u * 12240);
  EXPECT_LT(setup.value().device.geometry.page_bytes, 32u * 12240 + 8192);
  EXPECT_GT(setup.value().prefill_tokens_per_s, 1.0);
  options.engine.context_length = 4000;
  options.engine.device_tokens = 4000;
  EXPECT_EQ(set_up_engine(options.engine, options.cache).value().device.geometry.page_count, 125u);
}

}  // namespace
}  // namespace hitide
