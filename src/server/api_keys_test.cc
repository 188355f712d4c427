#include "server/api_keys.h"

#include <gtest/gtest.h>

namespace hitide {
namespace {

int status_of(const ApiKeys& keys, Access access, std::string_view authorization) {
  const auto refusal = keys.refusal(access, authorization);
  return refusal ? refusal->status : 200;
}

TEST(ApiKeysTest, ProbesAreOpenWhateverTheKeys) {
  for (const bool loopback : {false, true}) {
    EXPECT_EQ(status_of(ApiKeys("k", "a", loopback), Access::anyone, ""), 200);
    EXPECT_EQ(status_of(ApiKeys("", "", loopback), Access::anyone, ""), 200);
  }
}

TEST(ApiKeysTest, WithoutKeysUsersAreLetInAndAdministrationIsForThisMachineOnly) {
  EXPECT_EQ(status_of(ApiKeys("", "", false), Access::user, ""), 200);
  EXPECT_EQ(status_of(ApiKeys("", "", true), Access::admin, ""), 200);
  EXPECT_EQ(status_of(ApiKeys("", "", false), Access::admin, ""), 403);
  EXPECT_EQ(status_of(ApiKeys("", "", false), Access::admin, "Bearer "), 403);
  EXPECT_EQ(status_of(ApiKeys("", "", false), Access::admin, "Bearer anything"), 403);
}

TEST(ApiKeysTest, OneKeyOpensBoth) {
  const ApiKeys keys("secret", "", false);
  for (const Access access : {Access::user, Access::admin}) {
    EXPECT_EQ(status_of(keys, access, "Bearer secret"), 200);
    EXPECT_EQ(status_of(keys, access, "bearer secret"), 200);
    for (const char* wrong : {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets",
                              "Bearer secretsecret", "Bearer Secret", "Basic secret",
                              "Bearer  secret", "Bearersecret"}) {
      EXPECT_EQ(status_of(keys, access, wrong), 401) << "'" << wrong << "'";
    }
  }
}

TEST(ApiKeysTest, TheAdminKeyTakesAdministrationFromUsersAndServesAsTheirs) {
  const ApiKeys keys("user", "admin", true);
  EXPECT_EQ(status_of(keys, Access::admin, "Bearer admin"), 200);
  EXPECT_EQ(status_of(keys, Access::admin, "Bearer user"), 401);
  EXPECT_EQ(status_of(keys, Access::admin, ""), 401);
  EXPECT_EQ(status_of(keys, Access::user, "Bearer user"), 200);
  EXPECT_EQ(status_of(keys, Access::user, "Bearer admin"), 200);
  EXPECT_EQ(status_of(keys, Access::user, "Bearer other"), 401);
}

TEST(ApiKeysTest, AnAdminKeyAloneLeavesUsersFree) {
  const ApiKeys keys("", "admin", false);
  EXPECT_EQ(status_of(keys, Access::user, ""), 200);
  EXPECT_EQ(status_of(keys, Access::admin, ""), 401);
  EXPECT_EQ(status_of(keys, Access::admin, "Bearer admin"), 200);
}

TEST(ApiKeysTest, NoKeyIsNamedInARefusal) {
  const auto refusal =
      ApiKeys("the-user-key", "the-admin-key", true).refusal(Access::admin, "Bearer the-user-key");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->message.find("the-"), std::string::npos) << refusal->message;
  EXPECT_EQ(refusal->code, "invalid_api_key");
}

}  // namespace
}  // namespace hitide
