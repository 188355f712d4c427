#include "spec/option_table.h"

#include <set>

#include <gtest/gtest.h>

#include "base/file.h"
#include "spec/parse_value.h"

namespace hitide {
namespace {

// A value that every row must accept and that is not its default; rows with one choice have none.
struct Sample {
  std::string_view name;
  std::string_view value;
  std::string_view read_back;
};
constexpr Sample kSamples[] = {
    {"--config", "serve.toml", "serve.toml"},
    {"--model-path", "m.gguf", "m.gguf"},
    {"--context-length", "2048", "2048"},
    {"--kv-cache-dtype", "f16", "f16"},
    {"--threads", "3", "3"},
    {"--n-gpu-layers", "99", "99"},
    {"--max-running-requests", "7", "7"},
    {"--prefill-chunk", "256", "256"},
    {"--micro-batch", "64", "64"},
    {"--tensor-parallel-size", "4", "4"},
    {"--host", "0.0.0.0", "0.0.0.0"},
    {"--port", "8000", "8000"},
    {"--served-model-name", "smol", "smol"},
    {"--api-key", "secret", "secret"},
    {"--admin-api-key", "root", "root"},
    {"--enable-metrics", "", "on"},
    {"--enable-cache-report", "", "on"},
    {"--max-queued-requests", "0", "0"},
    {"--max-body-bytes", "2MiB", "2 MiB"},
    {"--max-header-bytes", "8192", "8192"},
    {"--max-connections", "10", "10"},
    {"--log-level", "debug", "debug"},
    {"--enable-hierarchical-cache", "", "on"},
    {"--disable-radix-cache", "", "on"},
    {"--page-size", "64", "64"},
    {"--device-tokens", "4096", "4096"},
    {"--device-idle-tokens", "all", "all"},
    {"--device-sequences", "32", "32"},
    {"--hicache-size", "1.5", "1.5 GB"},
    {"--hicache-ratio", "2.5", "2.5"},
    {"--hicache-mem-layout", "page_head", "page_head"},
    {"--hicache-io-backend", "kernel", "kernel"},
    {"--hicache-host-memory-mode", "cache", "cache"},
    {"--host-allocator", "draft=mmap", "shm draft=mmap"},
    {"--host-prefault", "", "on"},
    {"--host-huge-pages", "off", "off"},
    {"--host-numa", "3", "3"},
    {"--hicache-storage-backend", "mooncake", "mooncake"},
    {"--hicache-storage-backend-extra-config", "{}", "{}"},
    {"--strict-config", "", "on"},
    {"--no-staging", "", "on"},
    {"--no-cost-model", "", "on"},
    {"--hicache-write-policy", "write_through_selective", "write_through_selective"},
    {"--hicache-storage-prefetch-retry-max-attempts", "8", "8"},
    {"--hicache-storage-prefetch-retry-poll-interval", "8", "8"},
    {"--radix-eviction-policy", "priority", "priority"},
    {"--hicache-storage-prefetch-policy", "wait_complete", "wait_complete"},
    {"--explanations-kept", "5", "5"},
    {"--prefill-speed", "150", "150"},
};
constexpr Sample kStorageSamples[] = {
    {"path", "/d", "/d"},
    {"max_size", "2GiB", "2 GiB"},
    {"segment_size", "4MiB", "4 MiB"},
    {"sync_interval_ms", "10", "10"},
    {"sync_puts", "true", "true"},
    {"threads", "8", "8"},
    {"prefetch_threshold", "64", "64"},
    {"prefetch_timeout_base", "0.5", "0.5"},
    {"prefetch_timeout_per_ki_token", "0.125", "0.125"},
    {"prefetch_timeout_max", "3", "3"},
    {"prefetch_retry_interval", "0.5", "0.5"},
    {"prefetch_retries", "2", "2"},
    {"prefetch_occupancy_max", "0.25", "0.25"},
    {"load_back_threshold", "0", "0"},
    {"batch_pages", "16", "16"},
    {"breaker_failures", "5", "5"},
    {"breaker_pause", "0.25", "0.25"},
    {"breaker_pause_max", "60", "60"},
    {"breaker_hang_limit", "2.5", "2.5"},
    {"failed_keys_max", "0", "0"},
    {"failed_key_pause", "5", "5"},
    {"backup_queue_max", "64", "64"},
    {"second_touch", "true", "true"},
    {"hicache_storage_pass_prefix_keys", "true", "false"},
    {"tp_lcm_size", "4", "1"},
    {"master_server_address", "h:1", "h:1"},
    {"client_server_address", "[::1]:2", "[::1]:2"},
    {"standalone_storage", "True", "true"},
    {"local_hostname", "node-1", "node-1"},
    {"metadata_server", "etcd://h:1", "etcd://h:1"},
    {"global_segment_size", "2gb", "2 GiB"},
    {"protocol", "tcp", "tcp"},
    {"device_name", " mlx5_0, mlx5_1 ", "mlx5_0,mlx5_1"},
    {"master_metrics_port", "0", "0"},
    {"check_server", "YES", "true"},
    {"tenant_id", " blue ", "blue"},
    {"enable_ssd_offload", "1", "true"},
    {"ssd_offload_path", "/ssd", "/ssd"},
    {"extra_backend_tag", "tag", "tag"},
    {"enable_group_semantics", "no", "false"},
    {"python", "/opt/python3", "/opt/python3"},
    {"package_path", "/opt/hitide", "/opt/hitide"},
    {"agent_environment", "MC_LOG_LEVEL=INFO", "MC_LOG_LEVEL=INFO"},
    {"call_limit", "0.5", "0.5"},
    {"call_limit_per_64mib", "0", "0"},
    {"start_limit", "20", "20"},
    {"adopt_limit_per_gib", "60", "60"},
    {"query_lanes", "1", "1"},
    {"read_lanes", "16", "16"},
    {"write_lanes", "4", "4"},
    {"object_bytes_max", "1MiB", "1 MiB"},
    {"bounce_bytes", "128MiB", "128 MiB"},
};

void check_round_trip(std::span<const OptionRow> table, std::span<const Sample> samples) {
  ASSERT_EQ(table.size(), samples.size()) << "each row has one sample";
  for (const Sample& sample : samples) {
    ServeOptions options;
    const Status status = set_option(table, sample.name, sample.value, options);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(find_option(table, sample.name)->get(options), sample.read_back) << sample.name;
  }
}

// K16 B213: huge pages are the system's own or none; a size that nobody asks the system for is
// refused and not taken for some other.
TEST(OptionTable, K16_B213_SizesOfHugePagesAreNoChoice) {
  for (const char* size : {"2MB", "512MB", "1GB", "3MB", "2097152", "0", "on", ""}) {
    ServeOptions options;
    const Status status = set_option(option_table(), "--host-huge-pages", size, options);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << size;
    EXPECT_NE(status.message().find("--host-huge-pages"), std::string::npos);
    EXPECT_EQ(options.cache.host.huge_pages, ServeOptions().cache.host.huge_pages);
  }
}

// K15 B205: whatever an option is given is what its owner has.
TEST(OptionTable, K15_B205_EveryOptionIsSetAndReadBack) {
  check_round_trip(option_table(), kSamples);
  check_round_trip(storage_config_table(), kStorageSamples);
}

TEST(OptionTable, EveryPolicyIsSetByItsName) {
  const std::pair<std::string_view, std::vector<std::string_view>> policies[] = {
      {"--hicache-write-policy", {"write_through", "write_through_selective", "write_back"}},
      {"--hicache-storage-prefetch-policy", {"timeout", "best_effort", "wait_complete"}},
      {"--radix-eviction-policy", {"lru", "lfu", "slru", "fifo", "mru", "filo", "priority"}},
  };
  for (const auto& [option, names] : policies) {
    for (const std::string_view name : names) {
      ServeOptions options;
      ASSERT_TRUE(set_option(option_table(), option, name, options).ok()) << option << name;
      EXPECT_EQ(find_option(option_table(), option)->get(options), name);
    }
  }
}

TEST(OptionTable, NamesAndAliasesAreUnique) {
  for (const auto table : {option_table(), storage_config_table()}) {
    std::set<std::string_view> seen;
    for (const OptionRow& row : table) {
      EXPECT_TRUE(seen.insert(row.name).second) << row.name;
      for (const std::string_view alias : aliases_of(row)) {
        EXPECT_TRUE(seen.insert(alias).second) << alias;
        EXPECT_EQ(find_option(table, alias), find_option(table, row.name)) << alias;
      }
      EXPECT_TRUE(row.variable.empty() || seen.insert(row.variable).second) << row.variable;
      EXPECT_FALSE(row.text.empty()) << row.name;
      EXPECT_EQ(row.value.empty(), row.kind == OptionKind::toggle) << row.name;
    }
  }
}

TEST(OptionTable, EveryValueIsCheckedAndTheMessageNamesOptionValueAndLimit) {
  const auto expect_refused = [](std::span<const OptionRow> table, std::string_view name,
                                 std::string_view value, std::string_view part) {
    ServeOptions options;
    const Status status = set_option(table, name, value, options);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name << " " << value;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  };
  for (const OptionRow& row : option_table()) {
    if (row.kind == OptionKind::number || row.kind == OptionKind::bytes) {
      for (const std::string_view bad : {"-1", "abc", "", "1 2", "nan"}) {
        expect_refused(option_table(), row.name, bad, bad);
      }
    } else if (row.kind == OptionKind::text) {
      expect_refused(option_table(), row.name, "", "");
    }
  }
  expect_refused(option_table(), "--page-size", "0", "1..1024");
  expect_refused(option_table(), "--page-size", "1025", "1..1024");
  expect_refused(option_table(), "--port", "65536", "0..65535");
  expect_refused(option_table(), "--hicache-write-policy", "write_never", "write_through");
  expect_refused(option_table(), "--hicache-storage-prefetch-policy", "patient", "timeout");
  expect_refused(option_table(), "--radix-eviction-policy", "oldest", "lru");
  expect_refused(option_table(), "--hicache-mem-layout", "page_last", "page_first");
  expect_refused(option_table(), "--hicache-io-backend", "dma", "kernel");
  expect_refused(option_table(), "--hicache-host-memory-mode", "buffer_only", "cache");
  expect_refused(option_table(), "--hicache-storage-backend", "hf3fs", "mooncake");
  expect_refused(option_table(), "--host-allocator", "heap", "store");
  expect_refused(option_table(), "--host-huge-pages", "1GB", "off");
  expect_refused(option_table(), "--host-numa", "near", "auto");
  expect_refused(option_table(), "--host-numa", "5000", "auto");
  expect_refused(option_table(), "--host-numa", "", "auto");
  expect_refused(option_table(), "--host-allocator", "draft=", "store");
  expect_refused(option_table(), "--host-allocator", "=shm", "name");
  expect_refused(option_table(), "--host-allocator", "Draft=shm", "name");
  expect_refused(option_table(), "--max-running-requests", "192", "1..191");
  expect_refused(option_table(), "--tensor-parallel-size", "0", "1..1024");
  expect_refused(option_table(), "--kv-cache-dtype", "q4_0", "q8_0");
  expect_refused(option_table(), "--page-sise", "32", "did you mean --page-size?");
  expect_refused(option_table(), "--lora-paths", "x", "no such option here");
  expect_refused(storage_config_table(), "max-size", "1", "not a known key");
  expect_refused(storage_config_table(), "segment_size", "1", "1 MiB");
}

TEST(OptionTable, SettleNamesBothOptionsOfAConflict) {
  ServeOptions options;
  options.engine.model_path = "m";
  options.cache.enabled = false;
  for (const std::string other :
       {"--enable-hierarchical-cache", "--hicache-size", "--hicache-storage-backend"}) {
    const std::string given[] = {"--disable-radix-cache", other};
    const Status status = settle_options(options, given);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(other), std::string::npos);
    EXPECT_NE(status.message().find("--disable-radix-cache"), std::string::npos);
  }
  options.cache.storage.backend = "none";
  const std::string given[] = {"--disable-radix-cache", "--hicache-storage-backend"};
  EXPECT_TRUE(settle_options(options, given).ok());
  EXPECT_FALSE(options.cache.enabled);
}

TEST(OptionTable, PoolsHaveAllocatorsOfTheirOwnAndTheLastOneCounts) {
  ServeOptions options;
  for (const char* value : {"draft=mmap", "mmap", "kv=shm", "draft=store"}) {
    EXPECT_TRUE(set_option(option_table(), "--host-allocator", value, options).ok());
  }
  EXPECT_EQ(options.cache.host.allocator, "mmap");
  ASSERT_EQ(options.cache.host.pool_allocators.size(), 2u);
  EXPECT_EQ(options.cache.host.pool_allocators[0].pool, "kv");
  EXPECT_EQ(options.cache.host.pool_allocators[1].pool, "draft");
  EXPECT_EQ(options.cache.host.pool_allocators[1].kind, "store");
}

TEST(OptionTable, MemoryOfTheStoreNeedsAStoreThatHasIt) {
  ServeOptions options;
  options.engine.model_path = "m";
  options.cache.host.pool_allocators = {{.pool = "kv", .kind = "store"}};
  const Status status = settle_options(options, {});
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("--host-allocator"), std::string::npos);
  EXPECT_NE(status.message().find("mooncake"), std::string::npos);
  options.cache.storage.backend = "mooncake";
  options.cache.storage.mooncake.master_server_address = "127.0.0.1:1";
  EXPECT_TRUE(settle_options(options, {}).ok());
}

TEST(OptionTable, SequencesFollowTheRunningRequestsUnlessTheyAreGiven) {
  const auto sequences = [](std::uint32_t running, bool given) {
    ServeOptions options;
    options.engine.model_path = "m";
    options.engine.running_requests_max = running;
    const std::string names[] = {"--device-sequences"};
    const Status status = settle_options(options, std::span(names, given ? 1 : 0));
    return status.ok() ? options.engine.sequences_max : 0;
  };
  EXPECT_EQ(sequences(4, false), 64u);
  EXPECT_EQ(sequences(32, false), 64u);
  EXPECT_EQ(sequences(100, false), 132u);
  EXPECT_EQ(sequences(191, false), 192u);
  EXPECT_EQ(sequences(63, true), 64u);
  EXPECT_EQ(sequences(64, true), 0u) << "one sequence more than requests";
}

TEST(OptionTable, FewTokensStayIdleWhereTheCpuComputes) {
  const auto idle = [](std::uint32_t gpu_layers, bool given) {
    ServeOptions options;
    options.engine.model_path = "m";
    options.engine.gpu_layers = gpu_layers;
    options.cache.policy.device_idle_tokens = 5000;
    const std::string names[] = {"--device-idle-tokens"};
    EXPECT_TRUE(settle_options(options, std::span(names, given ? 1 : 0)).ok());
    return options.cache.policy.device_idle_tokens;
  };
  EXPECT_EQ(idle(0, false), 2048u);
  EXPECT_EQ(idle(0, true), 5000u);
  EXPECT_EQ(idle(99, false), 5000u);
  EXPECT_EQ(PolicyOptions().device_idle_tokens, kAllTokens) << "other engines keep what fits";
}

TEST(OptionTable, ChunkFollowsThePageSizeUnlessItIsGiven) {
  ServeOptions options;
  options.engine.model_path = "m";
  options.engine.page_size = 48;
  EXPECT_TRUE(settle_options(options, {}).ok());
  EXPECT_EQ(options.engine.prefill_chunk_tokens, 144u);
  options.engine.prefill_chunk_tokens = 100;
  const std::string given[] = {"--prefill-chunk"};
  const Status status = settle_options(options, given);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("--page-size 48"), std::string::npos) << status.to_string();
}

TEST(ServeOptions, ValidationNamesWhatDoesNotFitTogether) {
  ServeOptions good;
  EXPECT_NE(validate(good).message().find("--model-path"), std::string::npos);
  good.engine.model_path = "m";
  EXPECT_TRUE(validate(good).ok());
  const auto message = [&](auto change) {
    ServeOptions options = good;
    change(options);
    return std::string(validate(options).message());
  };
  EXPECT_NE(message([](ServeOptions& o) { o.engine.context_length = 10; }).find("--context-length"),
            std::string::npos);
  EXPECT_NE(message([](ServeOptions& o) {
              o.engine.context_length = 4096;
              o.engine.device_tokens = 1024;
            }).find("--device-tokens"),
            std::string::npos);
  EXPECT_NE(message([](ServeOptions& o) {
              o.engine.sequences_max = 4;
              o.engine.running_requests_max = 4;
            }).find("--device-sequences"),
            std::string::npos);
}

// K15 B203: one parser, for every option that is a size; what it does not take is refused by name.
TEST(ParseBytes, K15_B203_OneTableOfSpellings) {
  const auto bytes = [](std::string_view text) {
    return parse_bytes(text, 1).value_or(UINT64_MAX);
  };
  EXPECT_EQ(bytes("4gb"), 4'000'000'000u);
  EXPECT_EQ(bytes("4GB"), 4'000'000'000u);
  EXPECT_EQ(bytes(" 4 GB "), 4'000'000'000u);
  EXPECT_EQ(bytes("4g"), 4'000'000'000u);
  EXPECT_EQ(bytes("4gib"), 4ull << 30);
  EXPECT_EQ(bytes("512mb"), 512'000'000u);
  EXPECT_EQ(bytes("1024kb"), 1'024'000u);
  EXPECT_EQ(bytes("1tb"), 1'000'000'000'000u);
  EXPECT_EQ(bytes("1.5"), 2u) << "rounded";
  EXPECT_EQ(bytes("1e9"), 1'000'000'000u);
  EXPECT_EQ(bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("1.5", 1'000'000'000).value_or(0), 1'500'000'000u);
  for (const std::string_view bad : {"", "-5", "50%", "abc", "18446744073709551616", "4 g b", "gb",
                                     "inf", "nan", "1e30", "0x10"}) {
    EXPECT_EQ(parse_bytes(bad, 1).status().code(), StatusCode::invalid_argument) << bad;
    for (const auto table : {option_table(), storage_config_table()}) {
      for (const OptionRow& row : table) {
        if (row.kind != OptionKind::bytes) continue;
        ServeOptions options;
        const Status status = set_option(table, row.name, bad, options);
        EXPECT_EQ(status.code(), StatusCode::invalid_argument) << row.name << " " << bad;
        EXPECT_NE(status.message().find(row.name), std::string::npos) << status.to_string();
      }
    }
  }
}

TEST(OptionTable, TheDocumentIsTheTable) {
  const auto page = read_file(HITIDE_SOURCE_DIR "/docs/options.md", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  EXPECT_EQ(*page, options_markdown()) << "write it again: hitide options > docs/options.md";
}

TEST(OptionTable, DefaultsNameEveryOption) {
  const std::string text = defaults_text();
  for (const OptionRow& row : option_table()) {
    EXPECT_NE(text.find(std::string(row.name) + " "), std::string::npos) << row.name;
  }
}

}  // namespace
}  // namespace hitide
