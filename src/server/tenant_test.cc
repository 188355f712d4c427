#include "server/tenant.h"

#include <gtest/gtest.h>

namespace hitide {
namespace {

TEST(Tenant, HeadersFillInWhatTheBodyDoesNotSay) {
  RequestBody body;
  GenerationRequest request;
  EXPECT_FALSE(take_tenant(body, request));
  EXPECT_FALSE(request.cache_salt.has_value());
  EXPECT_FALSE(request.extra_key.has_value()) << "no header is no adapter";
  body.cache_salt = "tenant";
  body.extra_key = "adapter";
  EXPECT_FALSE(take_tenant(body, request));
  EXPECT_EQ(request.cache_salt, "tenant");
  EXPECT_EQ(request.extra_key, "adapter");
  EXPECT_FALSE(take_tenant(body, request)) << "said twice, and the same";
}

// A client does not get at another tenant's pages past a proxy that names its own.
TEST(Tenant, ABodyThatSaysSomethingElseIsRefused) {
  RequestBody body;
  body.cache_salt = "mine";
  for (const std::string other : {"theirs", ""}) {
    GenerationRequest request;
    request.cache_salt = other;
    const auto error = take_tenant(body, request);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, "cache_salt");
    EXPECT_NE(error->message.find("x-hitide-cache-salt"), std::string::npos);
  }
  body = {};
  body.extra_key = "mine";
  GenerationRequest request;
  request.extra_key = "theirs";
  const auto error = take_tenant(body, request);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->param, "extra_key");
}

}  // namespace
}  // namespace hitide
