// What operators say to the storage backend, and what they are told.
#include "server/admin_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/fake_engine.h"

namespace hitide {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class StorageAdminTest : public ::testing::Test {
 protected:
  static StorageSettings settings() {
    StorageSettings settings;
    settings.launched.cache.storage.backend = "memory";
    settings.default_file_path = "/var/cache/somewhere";
    return settings;
  }
  Reply attach(const Json& body) { return admin_.attach(body.dump()); }
  std::string refusal(const Reply& reply) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    return Json::parse(reply.body)["error"]["message"].get<std::string>();
  }
  Json show() { return Json::parse(admin_.show().body); }

  ::hitide::testing::FakeEngine engine_;
  StorageAdmin admin_{engine_, settings()};
};

TEST_F(StorageAdminTest, ShowsTheFourSettingsAndHowItIs) {
  EXPECT_EQ(show(), Json({{"hicache_storage_backend", "memory"},
                          {"hicache_storage_backend_extra_config", nullptr},
                          {"hicache_storage_prefetch_policy", "timeout"},
                          {"hicache_write_policy", "write_through"},
                          {"status", "on"},
                          {"detail", ""}}));
  ASSERT_EQ(admin_.detach().status, 200);
  EXPECT_EQ(show()["hicache_storage_backend"], nullptr);
  EXPECT_EQ(show()["status"], "none");
}

TEST_F(StorageAdminTest, AttachesWithAConfigurationAndPolicies) {
  ASSERT_EQ(admin_.detach().status, 200);
  const std::string extra = R"({"path": "/tmp/x", "max_size": "2GiB", "prefetch_threshold": 64})";
  const Reply reply = attach({{"hicache_storage_backend", "file"},
                              {"hicache_storage_backend_extra_config_json", extra},
                              {"hicache_storage_prefetch_policy", "wait_complete"},
                              {"hicache_write_policy", "write_through_selective"}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["success"], true);
  EXPECT_EQ(engine_.storage().backend, "file");
  EXPECT_EQ(engine_.storage().path, "/tmp/x");
  EXPECT_EQ(engine_.storage().bytes_max, 2ull << 30);
  EXPECT_EQ(engine_.policy().prefetch_threshold_tokens, 64u);
  EXPECT_EQ(engine_.policy().prefetch_policy, PrefetchPolicy::wait_complete);
  EXPECT_EQ(engine_.policy().write_policy, WritePolicy::write_through_selective);
  EXPECT_EQ(show()["hicache_storage_backend_extra_config"], extra);
  EXPECT_EQ(show()["hicache_storage_prefetch_policy"], "wait_complete");
}

TEST_F(StorageAdminTest, TheSameBackendAgainChangesPoliciesAlone) {
  const StorageOptions before = engine_.storage();
  const Reply reply = attach(
      {{"hicache_storage_backend", "memory"}, {"hicache_storage_prefetch_policy", "best_effort"}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(Json::parse(reply.body)["message"], HasSubstr("already"));
  EXPECT_EQ(engine_.policy().prefetch_policy, PrefetchPolicy::best_effort);
  EXPECT_EQ(engine_.storage(), before);
  const Reply other = attach({{"hicache_storage_backend", "null"}});
  EXPECT_THAT(refusal(other), HasSubstr("detach it first"));
  EXPECT_EQ(show()["hicache_storage_backend"], "memory");
}

TEST_F(StorageAdminTest, AFileStoreWithoutAPathGetsTheDefaultOne) {
  ASSERT_EQ(admin_.detach().status, 200);
  ASSERT_EQ(attach({{"hicache_storage_backend", "file"}}).status, 200);
  EXPECT_EQ(engine_.storage().path, "/var/cache/somewhere");
}

// Everything is checked before anything is changed, and what is wrong is named.
TEST_F(StorageAdminTest, WhatIsWrongIsNamedAndChangesNothing) {
  ASSERT_EQ(admin_.detach().status, 200);
  const auto refused = [this](const Json& body) { return refusal(attach(body)); };
  EXPECT_THAT(refusal(admin_.attach("")), HasSubstr("JSON object"));
  EXPECT_THAT(refusal(admin_.attach("[1]")), HasSubstr("JSON object"));
  EXPECT_THAT(refusal(admin_.attach("{\"a\"")), HasSubstr("JSON object"));
  EXPECT_THAT(refused(Json::object()), HasSubstr("hicache_storage_backend: must be given"));
  EXPECT_THAT(refused({{"hicache_storage_backend", 7}}), HasSubstr("must be text"));
  EXPECT_THAT(refused({{"hicache_storage_backend", "tape"}}), HasSubstr("tape"));
  EXPECT_THAT(refused({{"hicache_storage_backend", "none"}}), HasSubstr("DELETE"));
  EXPECT_THAT(refused({{"hicache_storage_backend", "file"}, {"path", "/x"}}),
              HasSubstr("path: no such field"));
  EXPECT_THAT(refused({{"hicache_storage_backend", "file"}, {"hicache_write_policy", "never"}}),
              HasSubstr("hicache_write_policy: "));
  const auto with = [&](const char* extra) {
    return refused({{"hicache_storage_backend", "file"},
                    {"hicache_storage_backend_extra_config_json", extra}});
  };
  EXPECT_THAT(with("@/etc/passwd"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(with("{"), HasSubstr("extra-config"));
  EXPECT_THAT(with(R"({"max_size": "many"})"), HasSubstr("max_size"));
  EXPECT_EQ(show()["status"], "none");
  EXPECT_EQ(show()["hicache_write_policy"], "write_through");
}

TEST_F(StorageAdminTest, AFailureOfTheStoreIsPassedOn) {
  ASSERT_EQ(admin_.detach().status, 200);
  EXPECT_THAT(refusal(admin_.detach()), HasSubstr("no storage is attached"));
  EXPECT_THAT(refusal(admin_.clear()), HasSubstr("no storage is attached"));
  engine_.set_storage_result(Status(StatusCode::unavailable, "the directory is locked"));
  EXPECT_THAT(refusal(attach({{"hicache_storage_backend", "memory"}})), HasSubstr("is locked"));
}

TEST_F(StorageAdminTest, ADetachThatHadToCancelIsADetachAllTheSame) {
  engine_.set_storage_result(Status(StatusCode::deadline_exceeded, "write lane: 1 run"));
  const Reply reply = admin_.detach();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(Json::parse(reply.body)["message"], HasSubstr("write lane: 1 run"));
}

TEST_F(StorageAdminTest, AClearSaysHowManyObjectsWent) {
  const Reply reply = admin_.clear();
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["success"], true);
  EXPECT_EQ(Json::parse(reply.body)["removed_objects"], 12);
  engine_.set_storage_result(Status(StatusCode::unimplemented, "this store cannot"));
  EXPECT_THAT(refusal(admin_.clear()), HasSubstr("this store cannot"));
}

}  // namespace
}  // namespace hitide
