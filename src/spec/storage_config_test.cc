#include "spec/storage_config.h"

#include <filesystem>
#include <fstream>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/random.h"
#include "spec/option_table.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kFlag = "--hicache-storage-backend-extra-config";
constexpr const char* kFile = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH";

// One reading, from sources that are given or not.
struct Sources {
  std::string extra = {};
  Environment environment = {};
  std::string backend = "mooncake";
  bool strict = false;

  Result<StorageConfigReport> read(ServeOptions& options) const {
    options.cache.storage.backend = backend;
    options.storage_extra_config = extra;
    options.strict_config = strict;
    return apply_storage_config(environment, options);
  }
};

class StorageConfig : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / name, std::ios::binary) << content;
    return directory_ / name;
  }
  MooncakeOptions read(const Sources& sources) {
    ServeOptions options;
    auto report = sources.read(options);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    report_ = report.ok() ? *report : StorageConfigReport();
    return options.cache.storage.mooncake;
  }
  static std::string refusal(const Sources& sources) {
    ServeOptions options;
    const Status status = sources.read(options).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << sources.extra;
    return std::string(status.message());
  }

  const TempDirectory directory_;
  StorageConfigReport report_;
};

// A key of hicache's Mooncake configuration with a value that is not its default.
struct Key {
  std::string_view name;
  std::string_view variable;
  std::string_view json;  // how a document says it
  std::string_view text;  // how a variable says it
  std::string_view value;
  std::string_view otherwise;  // where it is not given
};
constexpr Key kKeys[] = {
    {"local_hostname", "MOONCAKE_LOCAL_HOSTNAME", R"("node-1")", "node-1", "node-1", "localhost"},
    {"metadata_server", "MOONCAKE_TE_META_DATA_SERVER", R"("etcd://h:1")", "etcd://h:1",
     "etcd://h:1", "P2PHANDSHAKE"},
    {"global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE", R"("16gb")", "16gb", "16 GiB", "4 GiB"},
    {"protocol", "MOONCAKE_PROTOCOL", R"("tcp")", "tcp", "tcp", "rdma"},
    {"device_name", "MOONCAKE_DEVICE", R"("mlx5_0,mlx5_1")", "mlx5_0,mlx5_1", "mlx5_0,mlx5_1", ""},
    {"master_server_address", "MOONCAKE_MASTER", R"("m:2")", "m:2", "m:2", "m:1"},
    {"client_server_address", "MOONCAKE_CLIENT", R"("c:3")", "c:3", "c:3", ""},
    {"master_metrics_port", "MOONCAKE_MASTER_METRICS_PORT", "9103", "9103", "9103", "9003"},
    {"check_server", "MOONCAKE_CHECK_SERVER", "true", "1", "true", "false"},
    {"standalone_storage", "MOONCAKE_STANDALONE_STORAGE", "true", "yes", "true", "false"},
    {"enable_ssd_offload", "MOONCAKE_ENABLE_SSD_OFFLOAD", "true", "Y", "true", "false"},
    {"ssd_offload_path", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", R"("/ssd")", "/ssd", "/ssd", ""},
    {"tenant_id", "MOONCAKE_TENANT_ID", R"("blue")", "blue", "blue", "default"},
};

std::string shown(const MooncakeOptions& mooncake, std::string_view key) {
  ServeOptions options;
  options.cache.storage.mooncake = mooncake;
  return find_option(storage_config_table(), key)->get(options);
}

// A document or an environment with one key, and with what it needs beside it.
std::string document_of(const Key& key) {
  std::string text = fmt::format("{{\"{}\": {}", key.name, key.json);
  if (key.name != "master_server_address") text += R"(, "master_server_address": "m:1")";
  if (key.name == "standalone_storage") text += R"(, "client_server_address": "c:1")";
  return text + "}";
}

Environment variables_of(const Key& key) {
  Environment environment = {{"MOONCAKE_MASTER", "m:1"}};
  if (key.name == "standalone_storage") environment["MOONCAKE_CLIENT"] = "c:1";
  environment[std::string(key.variable)] = key.text;
  return environment;
}

void expect_only(const MooncakeOptions& mooncake, const Key& key) {
  for (const Key& other : kKeys) {
    if (key.name == "standalone_storage" && other.name == "client_server_address") continue;
    EXPECT_EQ(shown(mooncake, other.name), &other == &key ? key.value : other.otherwise)
        << key.name << " -> " << other.name;
  }
}

TEST_F(StorageConfig, EveryKeyFromEverySourceLeavesTheOthersAtTheirDefaults) {
  for (const Key& key : kKeys) {
    expect_only(read({.extra = document_of(key)}), key);
    EXPECT_EQ(report_.mooncake_source, kFlag);
    const std::string path = file("mooncake.json", document_of(key));
    expect_only(read({.environment = {{kFile, path}}}), key);
    EXPECT_THAT(report_.mooncake_source, HasSubstr(path));
    expect_only(read({.environment = variables_of(key)}), key);
    EXPECT_THAT(report_.mooncake_source, HasSubstr("MOONCAKE_"));
    EXPECT_THAT(report_.warnings, IsEmpty());
  }
}

TEST_F(StorageConfig, TheTableOfVariablesIsSglangs) {
  std::vector<std::string_view> variables;
  for (const OptionRow& row : storage_config_table()) {
    if (!row.variable.empty()) variables.push_back(row.variable);
  }
  EXPECT_EQ(variables.size(), std::size(kKeys));
  for (const Key& key : kKeys) {
    EXPECT_EQ(find_option(storage_config_table(), key.name)->variable, key.variable);
  }
}

// Extra configuration before file before environment, and nothing of one comes into another.
TEST_F(StorageConfig, OneSourceWinsAndTheyDoNotMerge) {
  const std::string extra = R"({"master_server_address": "extra:1"})";
  const std::string path = file("f.json", R"({"master_server_address": "file:1",
                                             "protocol": "tcp", "tenant_id": "file"})");
  const Environment environment = {{"MOONCAKE_MASTER", "env:1"},
                                   {"MOONCAKE_TENANT_ID", "env"},
                                   {"MOONCAKE_GLOBAL_SEGMENT_SIZE", "0"},
                                   {"LOCAL_HOSTNAME", "env-host"}};
  Environment with_file = environment;
  with_file[kFile] = path;

  const MooncakeOptions first = read({.extra = extra, .environment = with_file});
  EXPECT_EQ(first.master_server_address, "extra:1");
  EXPECT_EQ(first.protocol, "rdma");
  EXPECT_EQ(first.tenant_id, "default");
  EXPECT_EQ(first.global_segment_size, 4ull << 30);
  EXPECT_EQ(first.local_hostname, "localhost");

  const MooncakeOptions over_environment = read({.extra = extra, .environment = environment});
  EXPECT_EQ(over_environment.tenant_id, "default");

  const MooncakeOptions second = read({.environment = with_file});
  EXPECT_EQ(second.master_server_address, "file:1");
  EXPECT_EQ(second.tenant_id, "file");
  EXPECT_EQ(second.global_segment_size, 4ull << 30);
  EXPECT_EQ(second.local_hostname, "localhost");

  const MooncakeOptions third = read({.environment = environment});
  EXPECT_EQ(third.master_server_address, "env:1");
  EXPECT_EQ(third.tenant_id, "env");
  EXPECT_EQ(third.global_segment_size, 0u);
  EXPECT_EQ(third.local_hostname, "env-host");
}

TEST_F(StorageConfig, TheExtraConfigurationIsTheSourceWhereItNamesAServer) {
  const Environment environment = {{"MOONCAKE_MASTER", "env:1"}};
  EXPECT_EQ(read({.extra = "{}", .environment = environment}).master_server_address, "env:1");
  EXPECT_EQ(read({.extra = R"({"master_server_address": null})", .environment = environment})
                .master_server_address,
            "env:1");
  const MooncakeOptions client =
      read({.extra = R"({"client_server_address": "c:1", "standalone_storage": true})",
            .environment = environment});
  EXPECT_EQ(client.client_server_address, "c:1");
  EXPECT_EQ(client.master_server_address, "");
  EXPECT_THAT(refusal({.extra = R"({"master_server_address": ""})", .environment = environment}),
              AllOf(HasSubstr(std::string(kFlag)), HasSubstr("master_server_address")));
}

TEST_F(StorageConfig, KeysOfTheExtraConfigurationThatAreNotUsedAreOneWarning) {
  const Sources sources = {.extra = R"({"protocol": "tcp", "tenant_id": "x", "threads": 8})",
                           .environment = {{"MOONCAKE_MASTER", "env:1"}}};
  EXPECT_EQ(read(sources).protocol, "rdma");
  ASSERT_EQ(report_.warnings.size(), 1u);
  EXPECT_THAT(report_.warnings[0],
              AllOf(HasSubstr("not used: protocol, tenant_id"), HasSubstr("elsewhere")));
  Sources strict = sources;
  strict.strict = true;
  EXPECT_THAT(refusal(strict), AllOf(HasSubstr("protocol"), HasSubstr("--strict-config")));
}

TEST_F(StorageConfig, OurKeysHoldWhateverMooncakesComeFrom) {
  const std::string ours = R"("extra_backend_tag": 7, "enable_group_semantics": false,
      "python": "/p", "package_path": "/q", "agent_environment": {"MC_A": "x", "MC_B": 5},
      "call_limit": 0.5, "call_limit_per_64mib": 2, "start_limit": 11, "adopt_limit_per_gib": 12,
      "query_lanes": 3, "read_lanes": 4, "write_lanes": 5, "object_bytes_max": "2MiB",
      "bounce_bytes": 4194304, "prefetch_threshold": 64, "prefetch_timeout_base": 0.5,
      "hicache_storage_pass_prefix_keys": false)";
  const std::string path = file("f.json", R"({"master_server_address": "file:1"})");
  const Sources each[] = {
      {.extra = "{" + ours + R"(, "master_server_address": "extra:1"})"},
      {.extra = "{" + ours + "}", .environment = {{kFile, path}}},
      {.extra = "{" + ours + "}", .environment = {{"MOONCAKE_MASTER", "env:1"}}},
  };
  for (const Sources& sources : each) {
    ServeOptions options;
    const auto report = sources.read(options);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_THAT(report->warnings, IsEmpty());
    const MooncakeOptions& mooncake = options.cache.storage.mooncake;
    EXPECT_EQ(mooncake.extra_backend_tag, "7");
    EXPECT_FALSE(mooncake.group_semantics);
    EXPECT_EQ(mooncake.python, "/p");
    EXPECT_EQ(mooncake.package_path, "/q");
    const std::vector<std::pair<std::string, std::string>> expected = {{"MC_A", "x"},
                                                                       {"MC_B", "5"}};
    EXPECT_EQ(mooncake.agent_environment, expected);
    EXPECT_EQ(mooncake.call_limit, std::chrono::milliseconds(500));
    EXPECT_EQ(mooncake.call_limit_per_64mib, std::chrono::seconds(2));
    EXPECT_EQ(mooncake.start_limit, std::chrono::seconds(11));
    EXPECT_EQ(mooncake.adopt_limit_per_gib, std::chrono::seconds(12));
    EXPECT_EQ(mooncake.query_lanes, 3u);
    EXPECT_EQ(mooncake.read_lanes, 4u);
    EXPECT_EQ(mooncake.write_lanes, 5u);
    EXPECT_EQ(mooncake.object_bytes_max, 2u << 20);
    EXPECT_EQ(mooncake.bounce_bytes, 4u << 20);
    EXPECT_EQ(options.cache.policy.prefetch_threshold_tokens, 64u);
    EXPECT_EQ(options.cache.policy.prefetch_timeout_base_s, 0.5);
  }
}

TEST_F(StorageConfig, GroupIdsAreOnUnlessTheyAreTurnedOff) {
  EXPECT_TRUE(read({.extra = R"({"master_server_address": "m:1"})"}).group_semantics);
}

TEST_F(StorageConfig, SegmentSizesAreBytesOrWholeGb) {
  const auto size = [&](const std::string& value) {
    return read({.extra =
                     R"({"master_server_address": "m:1", "global_segment_size": )" + value + "}"})
        .global_segment_size;
  };
  EXPECT_EQ(size("0"), 0u);
  EXPECT_EQ(size("1073741824"), 1u << 30);
  EXPECT_EQ(size("\"1073741824\""), 1u << 30);
  EXPECT_EQ(size("\"4gb\""), 4ull << 30);
  EXPECT_EQ(size("\" 4 GB \""), 4ull << 30);
  EXPECT_EQ(size("4e9"), 4'000'000'000u);
  EXPECT_EQ(size("null"), 4ull << 30);
  for (const char* bad : {"\"gb\"", "\"4gib\"", "\"512mb\"", "\"1.5gb\"", "-1", "\"-1gb\"", "1.5",
                          "true", "\"\"", "\"99999999999gb\"", "[4]", "1e300"}) {
    EXPECT_THAT(refusal({.extra = fmt::format(R"({{"master_server_address": "m:1",
                                              "global_segment_size": {}}})",
                                              bad)}),
                AllOf(HasSubstr(std::string(kFlag)), HasSubstr("global_segment_size")))
        << bad;
  }
}

TEST_F(StorageConfig, DevicesMayBeATableByRank) {
  const auto devices = [&](const std::string& value) {
    return read({.extra = R"({"master_server_address": "m:1", "device_name": )" + value + "}"})
        .device_name;
  };
  EXPECT_EQ(devices(R"("mlx5_0, mlx5_1")"), "mlx5_0,mlx5_1");
  EXPECT_EQ(devices(R"({"0": "mlx5_2, mlx5_3", "1": "mlx5_4"})"), "mlx5_2,mlx5_3");
  EXPECT_EQ(devices(R"("{\"0\": \"mlx5_5\", \"1\": \"mlx5_6\"}")"), "mlx5_5");
  EXPECT_EQ(devices(R"({"1": "mlx5_4"})"), "");
  EXPECT_EQ(devices(R"("")"), "");
  EXPECT_EQ(read({.environment = {{"MOONCAKE_MASTER", "m:1"},
                                  {"MOONCAKE_DEVICE", R"( {"0": "mlx5_7"})"}}})
                .device_name,
            "mlx5_7");
  EXPECT_THAT(refusal({.environment = {{"MOONCAKE_MASTER", "m:1"}, {"MOONCAKE_DEVICE", "{0: x"}}}),
              AllOf(HasSubstr("MOONCAKE_DEVICE: device_name"), HasSubstr("{0: x")));
  EXPECT_THAT(refusal({.extra = R"({"master_server_address": "m:1", "device_name": {"0": 5}})"}),
              HasSubstr("device_name"));
}

TEST_F(StorageConfig, BooleansAreWordsInEverySource) {
  const auto checked = [&](const std::string& json) {
    return read({.extra = R"({"master_server_address": "m:1", "check_server": )" + json + "}"})
        .check_server;
  };
  for (const char* yes : {"true", "1", "\"true\"", "\"True\"", "\"1\"", "\"yes\"", "\"Y\""}) {
    EXPECT_TRUE(checked(yes)) << yes;
  }
  for (const char* no : {"false", "0", "\"FALSE\"", "\"0\"", "\"no\"", "\"n\"", "null"}) {
    EXPECT_FALSE(checked(no)) << no;
  }
  for (const char* bad : {"2", "\"on\"", "\"\"", "[]", "{}", "\"truely\"", "\"trueorfalse\""}) {
    EXPECT_THAT(refusal({.extra = fmt::format(R"({{"master_server_address": "m:1",
                                              "check_server": {}}})",
                                              bad)}),
                HasSubstr("check_server"));
  }
  EXPECT_THAT(
      refusal({.environment = {{"MOONCAKE_MASTER", "m:1"}, {"MOONCAKE_CHECK_SERVER", "maybe"}}}),
      AllOf(HasSubstr("MOONCAKE_CHECK_SERVER"), HasSubstr("check_server"), HasSubstr("'maybe'")));
}

TEST_F(StorageConfig, HostNamesFallBackInTheEnvironmentAlone) {
  EXPECT_EQ(
      read({.environment = {{"MOONCAKE_MASTER", "m:1"}, {"LOCAL_HOSTNAME", "old"}}}).local_hostname,
      "old");
  EXPECT_EQ(read({.environment = {{"MOONCAKE_MASTER", "m:1"},
                                  {"LOCAL_HOSTNAME", "old"},
                                  {"MOONCAKE_LOCAL_HOSTNAME", "new"}}})
                .local_hostname,
            "new");
  EXPECT_EQ(read({.extra = R"({"master_server_address": "m:1"})",
                  .environment = {{"LOCAL_HOSTNAME", "old"}}})
                .local_hostname,
            "localhost");
}

// Of every key a value that cannot be, from every source: the message names all three.
TEST_F(StorageConfig, ABadValueIsNamedWithItsKeyAndItsSource) {
  struct Bad {
    std::string_view key;
    std::string_view variable;
    std::string_view value;
  };
  constexpr Bad kBad[] = {
      {"protocol", "MOONCAKE_PROTOCOL", "ftp"},
      {"master_server_address", "MOONCAKE_MASTER", "nowhere"},
      {"master_server_address", "MOONCAKE_MASTER", "host:99999"},
      {"master_server_address", "MOONCAKE_MASTER", "::1:5"},
      {"client_server_address", "MOONCAKE_CLIENT", "host:"},
      {"master_metrics_port", "MOONCAKE_MASTER_METRICS_PORT", "65536"},
      {"master_metrics_port", "MOONCAKE_MASTER_METRICS_PORT", "many"},
      {"global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE", "4tb"},
      {"check_server", "MOONCAKE_CHECK_SERVER", "on"},
      {"standalone_storage", "MOONCAKE_STANDALONE_STORAGE", "tru"},
      {"enable_ssd_offload", "MOONCAKE_ENABLE_SSD_OFFLOAD", "-"},
      {"local_hostname", "MOONCAKE_LOCAL_HOSTNAME", "a\nb"},
  };
  for (const Bad& bad : kBad) {
    Environment environment = {{"MOONCAKE_MASTER", "m:1"}};
    environment[std::string(bad.variable)] = bad.value;
    const std::string of_variable = refusal({.environment = environment});
    EXPECT_THAT(of_variable, HasSubstr(std::string(bad.key)));
    EXPECT_THAT(of_variable, HasSubstr(std::string(bad.variable)));
    const bool shown = bad.value != "a\nb";  // messages are one line
    EXPECT_THAT(of_variable, HasSubstr(shown ? std::string(bad.value) : "control character"));
    const std::string value(bad.value == "a\nb" ? "a\\nb" : bad.value);
    std::string document = fmt::format(R"({{"{}": "{}")", bad.key, value);
    if (bad.key != "master_server_address") document += R"(, "master_server_address": "m:1")";
    document += "}";
    EXPECT_THAT(refusal({.extra = document}),
                AllOf(HasSubstr(std::string(kFlag)), HasSubstr(std::string(bad.key))));
    const std::string path = file("bad.json", document);
    EXPECT_THAT(refusal({.environment = {{kFile, path}}}),
                AllOf(HasSubstr(path), HasSubstr(std::string(bad.key))));
    const std::string at_file = refusal({.extra = "@" + path});
    EXPECT_THAT(at_file, AllOf(HasSubstr(std::string(kFlag)), HasSubstr(path)));
  }
}

TEST_F(StorageConfig, AMissingAddressSaysWhereItCanBeGiven) {
  EXPECT_THAT(refusal({}),
              AllOf(HasSubstr("MOONCAKE_MASTER"), HasSubstr(kFile),
                    HasSubstr("master_server_address"), HasSubstr(std::string(kFlag))));
  const std::string path = file("none.json", R"({"protocol": "tcp"})");
  EXPECT_THAT(refusal({.environment = {{kFile, path}, {"MOONCAKE_MASTER", "env:1"}}}),
              HasSubstr(path));
  EXPECT_THAT(refusal({.environment = {{"MOONCAKE_CLIENT", "c:1"}}}),
              AllOf(HasSubstr("c:1"), HasSubstr("standalone_storage")));
  EXPECT_THAT(
      refusal({.environment = {{"MOONCAKE_MASTER", "m:1"}, {"MOONCAKE_STANDALONE_STORAGE", "1"}}}),
      HasSubstr("client_server_address"));
}

TEST_F(StorageConfig, WhatDoesNotFitTogetherIsNamedWithItsSource) {
  EXPECT_THAT(refusal({.extra = R"({"master_server_address": "m:1", "object_bytes_max": "64MiB",
                                    "bounce_bytes": "32MiB"})"}),
              AllOf(HasSubstr(std::string(kFlag)), HasSubstr("object_bytes_max"),
                    HasSubstr("bounce_bytes")));
}

TEST_F(StorageConfig, AnUnknownKeyIsAWarningWithTheNearestName) {
  const Sources extra = {.extra = R"({"master_server_address": "m:1", "protocl": "tcp",
                                      "nothing_like_it_at_all": {"deep": [1]}})"};
  EXPECT_EQ(read(extra).protocol, "rdma");
  ASSERT_EQ(report_.warnings.size(), 2u);
  EXPECT_THAT(report_.warnings[0], AllOf(HasSubstr(std::string(kFlag)), HasSubstr("'protocl'"),
                                         HasSubstr("did you mean protocol?")));
  EXPECT_EQ(report_.warnings[1].find("did you mean"), std::string::npos);
  EXPECT_THAT(refusal({.extra = extra.extra, .strict = true}), HasSubstr("'protocl'"));

  const std::string path = file("f.json", R"({"master_server_address": "m:1", "device": "x",
                                             "device_nam": "y", "extra_backend_tag": "z"})");
  EXPECT_EQ(read({.environment = {{kFile, path}}}).extra_backend_tag, "");
  EXPECT_THAT(report_.warnings,
              ElementsAre(AllOf(HasSubstr(path), HasSubstr("'device'")),
                          AllOf(HasSubstr(path), HasSubstr("did you mean device_name?")),
                          AllOf(HasSubstr("extra_backend_tag"), HasSubstr("extra configuration"))));
  EXPECT_THAT(refusal({.environment = {{kFile, path}}, .strict = true}), HasSubstr("'device'"));

  const Environment slip = {{"MOONCAKE_MASTER", "m:1"},
                            {"MOONCAKE_PROTOCL", "tcp"},
                            {"MOONCAKE_CLIENT_METRICS_PORT_BASE", "1"}};
  EXPECT_EQ(read({.environment = slip}).protocol, "rdma");
  EXPECT_THAT(report_.warnings, ElementsAre(HasSubstr("did you mean MOONCAKE_PROTOCOL?")));

  ServeOptions file_store;
  EXPECT_TRUE(Sources({.extra = R"({"pathh": "x"})", .backend = "file"}).read(file_store).ok());
}

TEST_F(StorageConfig, TheExtraConfigurationIsTextOrAFileOfItsFormat) {
  EXPECT_EQ(read({.extra = "@" + file("c.json", R"({"master_server_address": "json:1"})")})
                .master_server_address,
            "json:1");
  EXPECT_EQ(read({.extra = "@" + file("c.toml",
                                      "master_server_address = 'toml:1'\ncheck_server = true\n"
                                      "[agent_environment]\nMC_A = 'x'\n")})
                .agent_environment.size(),
            1u);
  const MooncakeOptions yaml =
      read({.extra = "@" + file("c.yaml",
                                "master_server_address: 10.0.0.1:50051\ncheck_server: no\n"
                                "tenant_id: no\ndevice_name:\n  0: mlx5_0\n  1: mlx5_1\n"
                                "global_segment_size: 8gb\n")});
  EXPECT_EQ(yaml.master_server_address, "10.0.0.1:50051");
  EXPECT_FALSE(yaml.check_server);
  EXPECT_EQ(yaml.tenant_id, "no") << "text stays text";
  EXPECT_EQ(yaml.device_name, "mlx5_0");
  EXPECT_EQ(yaml.global_segment_size, 8ull << 30);
  EXPECT_THAT(report_.mooncake_source, HasSubstr("c.yaml"));
  EXPECT_EQ(read({.environment = {{kFile, file("m.yml", "master_server_address: yml:1\n")}}})
                .master_server_address,
            "yml:1");
  EXPECT_EQ(read({.environment = {{kFile, file("conf", R"({"master_server_address": "j:1"})")}}})
                .master_server_address,
            "j:1")
      << "without an ending it is JSON";
}

// K15 B207: a file that is named and cannot be used ends the start; what it does not say is not
// taken from elsewhere.
TEST_F(StorageConfig, K15_B207_FilesThatCannotBeReadAreNamed) {
  ASSERT_EQ(::mkfifo((directory_ / "fifo.json").c_str(), 0600), 0);
  struct Case {
    std::string path;
    std::string_view part;
  };
  const Case cases[] = {
      {directory_ / "none.json", "No such file"},
      {directory_ / ".", "directory"},
      {directory_ / "fifo.json", "regular"},
      {file("zero.json", std::string("{}\0", 3)), "zero"},
      {file("half.json", R"({"master_server_address": )"), "not JSON"},
      {file("empty.json", ""), "not JSON"},
      {file("comma.json", R"({"master_server_address": "m:1",})"), "not JSON"},
      {file("comment.json", "// mine\n{}"), "not JSON"},
      {file("list.json", "[1]"), "table"},
      {file("large.json", std::string(2u << 20, ' ')), "more than"},
      {file("twice.json", R"({"protocol": "tcp", "protocol": "rdma"})"), "twice"},
      {file("deep.json", std::string(100'000, '[')), "nested"},
  };
  for (const auto& [path, part] : cases) {
    EXPECT_THAT(
        refusal({.extra = "@" + path}),
        AllOf(HasSubstr(std::string(kFlag)), HasSubstr(path), HasSubstr(std::string(part))));
    EXPECT_THAT(refusal({.environment = {{kFile, path}}}),
                AllOf(HasSubstr(kFile), HasSubstr(path), HasSubstr(std::string(part))));
  }
  // A mark of the byte order in front changes nothing of what is read.
  const std::string marked =
      file("marked.json", "\xef\xbb\xbf{\"master_server_address\": \"m:7\"}");
  EXPECT_EQ(read({.environment = {{kFile, marked}}}).master_server_address, "m:7");
  EXPECT_THAT(report_.mooncake_source, HasSubstr("marked.json"));
  const std::string secret = file("secret.json", "{}");
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  if (::access(secret.c_str(), R_OK) != 0) {  // nothing is hidden from root
    EXPECT_THAT(refusal({.environment = {{kFile, secret}}}), HasSubstr(secret));
  }
  EXPECT_THAT(refusal({.extra = "@" + file("c.ini", "{}")}),
              AllOf(HasSubstr("c.ini"), HasSubstr(".toml")));
  EXPECT_THAT(refusal({.extra = "@"}), HasSubstr("no path"));
}

TEST_F(StorageConfig, KeysGoWithTheirBackend) {
  ServeOptions options;
  EXPECT_TRUE(
      Sources({.extra = R"({"path": "/a b", "max_size": "2GiB", "threads": 8})", .backend = "file"})
          .read(options)
          .ok());
  EXPECT_EQ(options.cache.storage.path, "/a b");
  EXPECT_EQ(options.cache.storage.bytes_max, 2ull << 30);
  EXPECT_THAT(refusal({.extra = R"({"path": "x"})", .backend = "memory"}),
              AllOf(HasSubstr("path"), HasSubstr("file"), HasSubstr("memory")));
  EXPECT_THAT(refusal({.extra = R"({"master_server_address": "m:1"})", .backend = "file"}),
              AllOf(HasSubstr("master_server_address"), HasSubstr("mooncake")));
  EXPECT_THAT(refusal({.extra = R"({"max_size": 5, "master_server_address": "m:1"})"}),
              HasSubstr("max_size"));
  // Variables of another backend are nobody's business.
  ServeOptions other;
  EXPECT_TRUE(
      Sources({.environment = {{"MOONCAKE_PROTOCOL", "ftp"}, {kFile, "/none"}}, .backend = "file"})
          .read(other)
          .ok());
}

TEST_F(StorageConfig, TypesOfTheOtherKeys) {
  const auto refused = [](std::string_view json, std::string_view part) {
    EXPECT_THAT(refusal({.extra = std::string(json), .backend = "file"}),
                AllOf(HasSubstr(std::string(kFlag)), HasSubstr(std::string(part))));
  };
  refused(R"({"path": 5})", "path: must be a string");
  refused(R"({"path": null})", "path: must be a string");
  refused(R"({"path": "a\u0000b"})", "path");
  refused(R"({"prefetch_threshold": "256"})", "prefetch_threshold: must be a number");
  refused(R"({"prefetch_threshold": true})", "prefetch_threshold: must be a number");
  refused(R"({"prefetch_threshold": 1.5})", "prefetch_threshold");
  refused(R"({"prefetch_threshold": -1})", "prefetch_threshold");
  refused(R"({"max_size": "much"})", "max_size");
  refused(R"({"max_size": [1]})", "max_size: must be a number or a string");
  refused(R"({"threads": 65})", "1..64");
  refused(R"({"hicache_storage_pass_prefix_keys": "on"})", "hicache_storage_pass_prefix_keys");
  refused(R"({"tp_lcm_size": 0})", "tp_lcm_size");
}

TEST_F(StorageConfig, OnlyTheVariablesThatCountAreAskedFor) {
  for (const char* name : {"MOONCAKE_MASTER", "MOONCAKE_ANYTHING", "LOCAL_HOSTNAME", kFile}) {
    EXPECT_TRUE(is_storage_variable(name)) << name;
  }
  for (const char* name : {"SGLANG_ENABLE_UNIFIED_RADIX_TREE", "HOME", "", "mooncake_master"}) {
    EXPECT_FALSE(is_storage_variable(name)) << name;
  }
}

TEST_F(StorageConfig, TheLogSaysTheSourceAndEachWarning) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  log_storage_config({});
  log_storage_config({.mooncake_source = "here", .warnings = {"first", "second"}});
  set_log_sink({});
  EXPECT_THAT(lines, ElementsAre(HasSubstr("here"), HasSubstr("first"), HasSubstr("second")));
}

// Documents with known keys and any values are read or refused, never worse.
TEST_F(StorageConfig, AnyValuesAreAnswered) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  Random random(seed);
  const std::string_view values[] = {"0",           "-1",
                                     "1.5",         "1e400",
                                     "true",        "null",
                                     "\"\"",        "\"tcp\"",
                                     "[]",          "{}",
                                     "\"h:1\"",     "\"4gb\"",
                                     "65536",       "{\"0\": 1}",
                                     "\"\\u0000\"", "\"{\"",
                                     "1e19",        "\"0\"",
                                     "\"0x10\"",    "[[1]]",
                                     "\"=\"",       "{\"a=b\": \"c\"}"};
  for (int round = 0; round < 4000; ++round) {
    std::string document = "{";
    for (std::uint64_t keys = random.below(5); keys > 0; --keys) {
      const auto table = storage_config_table();
      document += fmt::format("{}\"{}\": {}", document.size() == 1 ? "" : ", ",
                              table[random.below(table.size())].name,
                              values[random.below(std::size(values))]);
    }
    document += "}";
    ServeOptions options;
    const Sources sources = {.extra = document,
                             .environment = {{"MOONCAKE_MASTER", "m:1"}},
                             .backend = random.chance(0.8) ? "mooncake" : "file",
                             .strict = random.chance(0.2)};
    const auto report = sources.read(options);
    if (!report.ok()) {
      EXPECT_EQ(report.status().code(), StatusCode::invalid_argument) << document;
      EXPECT_FALSE(report.status().message().empty()) << document;
    } else if (sources.backend == "mooncake") {
      EXPECT_TRUE(validate(options.cache).ok()) << document;
    }
  }
}

TEST(StorePath, SglangsVariableThenXdgThenHome) {
  EXPECT_EQ(default_store_path("/s", "/x", "/h"), "/s");
  EXPECT_EQ(default_store_path("", "/x", "/h"), "/x/hitide/store");
  EXPECT_EQ(default_store_path("", "", "/h"), "/h/.cache/hitide/store");
  EXPECT_EQ(default_store_path("", "relative", "/h"), "/h/.cache/hitide/store");
  EXPECT_EQ(default_store_path("", "", ""), "");
}

}  // namespace
}  // namespace hitide
