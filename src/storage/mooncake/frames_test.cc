#include "storage/mooncake/frames.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/random.h"
#include "storage/mooncake/codes.h"

namespace hitide {
namespace {

// tests/golden/agent/frames.txt: one frame a line, its name and its bytes in hex. The agent's own
// tests read the same file.
std::map<std::string, std::string> golden_frames() {
  std::map<std::string, std::string> frames;
  std::ifstream file(std::string(HITIDE_SOURCE_DIR) + "/tests/golden/agent/frames.txt");
  std::string name;
  std::string hex;
  while (file >> name >> hex) frames.emplace(name, hex);
  return frames;
}

std::string frame_hex(AgentCall call, std::uint64_t request, const FrameBytes& body) {
  const FrameHeaderBytes header =
      encode_header({.type = static_cast<std::uint16_t>(call),
                     .request = request,
                     .status = 0,
                     .body_bytes = static_cast<std::uint32_t>(body.size())});
  FrameBytes whole(header.begin(), header.end());
  whole.insert(whole.end(), body.begin(), body.end());
  return to_hex({reinterpret_cast<const std::uint8_t*>(whole.data()), whole.size()});
}

FrameBytes bytes_of_hex(const std::string& hex) {
  FrameBytes bytes(hex.size() / 2);
  EXPECT_TRUE(from_hex(hex, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()}));
  return bytes;
}

struct GoldenReply {
  FrameHeader header;
  FrameBytes body;
};

GoldenReply golden_reply(const std::string& name) {
  const FrameBytes bytes = bytes_of_hex(golden_frames().at(name));
  GoldenReply reply;
  const auto header =
      decode_header(std::span<const std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
  EXPECT_TRUE(header.ok()) << name;
  reply.header = header.value();
  reply.body.assign(bytes.begin() + kFrameHeaderBytes, bytes.end());
  EXPECT_EQ(reply.header.body_bytes, reply.body.size());
  return reply;
}

TEST(FramesTest, RequestsAreTheGoldenOnes) {
  const auto golden = golden_frames();
  const std::vector<std::string_view> keys = {"a", "key/2", std::string_view("z\0\xff", 3)};
  const std::vector<FrameItem> items = {
      {.key = "a", .group = "g1", .region = 0, .offset = 0, .bytes = 1},
      {.key = "key/2", .group = "", .region = 7, .offset = 1ull << 33, .bytes = 262144}};
  EXPECT_EQ(frame_hex(AgentCall::hello, 1, {}), golden.at("hello"));
  EXPECT_EQ(
      frame_hex(AgentCall::setup, 2, encode_pairs({{"protocol", "tcp"}, {"device_name", ""}})),
      golden.at("setup"));
  EXPECT_EQ(frame_hex(AgentCall::add_lane, 3, {}), golden.at("add_lane"));
  EXPECT_EQ(frame_hex(AgentCall::add_memory, 4, encode_memory(7, 4096, 1ull << 30)),
            golden.at("add_memory"));
  EXPECT_EQ(frame_hex(AgentCall::remove_memory, 5, encode_region(7)), golden.at("remove_memory"));
  EXPECT_EQ(frame_hex(AgentCall::exists, 6, encode_keys(keys)), golden.at("exists"));
  EXPECT_EQ(frame_hex(AgentCall::get, 7, encode_items(items)), golden.at("get"));
  EXPECT_EQ(frame_hex(AgentCall::put, 8, encode_items(items)), golden.at("put"));
  EXPECT_EQ(frame_hex(AgentCall::remove, 9, encode_keys(keys)), golden.at("remove"));
  EXPECT_EQ(frame_hex(AgentCall::stats, 10, {}), golden.at("stats"));
  EXPECT_EQ(frame_hex(AgentCall::shutdown, 11, {}), golden.at("shutdown"));
  EXPECT_EQ(frame_hex(AgentCall::allocate_memory, 12, encode_segment(9, 1ull << 30)),
            golden.at("allocate_memory"));
  EXPECT_EQ(frame_hex(AgentCall::put_absent, 14, encode_items(items)), golden.at("put_absent"));
  const std::string_view prefix = "a.b/";
  EXPECT_EQ(frame_hex(AgentCall::remove_prefix, 15, encode_keys({&prefix, 1})),
            golden.at("remove_prefix"));
  EXPECT_EQ(frame_hex(AgentCall::free_memory, 13, encode_region(9)), golden.at("free_memory"));
}

TEST(FramesTest, GoldenRepliesAreRead) {
  const GoldenReply results = golden_reply("reply_get");
  EXPECT_EQ(results.header.type, static_cast<std::uint16_t>(AgentCall::get) | kFrameReply);
  EXPECT_EQ(results.header.request, 7u);
  const auto codes = decode_results(results.body, 2);
  ASSERT_TRUE(codes.ok());
  EXPECT_EQ(*codes, (std::vector<std::int64_t>{1, -704}));
  EXPECT_FALSE(decode_results(results.body, 1).ok());
  EXPECT_FALSE(decode_results(results.body, 3).ok());

  const GoldenReply allocated = golden_reply("reply_allocate_memory");
  EXPECT_EQ(allocated.header.type,
            static_cast<std::uint16_t>(AgentCall::allocate_memory) | kFrameReply);
  const auto none = decode_results(allocated.body, 1);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(status_of_code((*none)[0]), StatusCode::resource_exhausted);

  const auto pairs = decode_pairs(golden_reply("reply_stats").body);
  ASSERT_TRUE(pairs.ok());
  EXPECT_EQ(*pairs,
            (std::map<std::string, std::string>{{"objects", "12"}, {"bytes_used", "3456"}}));

  const GoldenReply error = golden_reply("reply_error");
  EXPECT_EQ(error.header.status, static_cast<std::uint32_t>(AgentStatus::bad_request));
}

TEST(FramesTest, HeadersOfOthersAreRefused) {
  const FrameHeaderBytes good = encode_header({.type = 1, .request = 9});
  for (const std::size_t at : {0u, 3u, 4u, 5u}) {
    FrameHeaderBytes bad = good;
    bad[at] ^= std::byte{1};
    EXPECT_EQ(decode_header(bad).status().code(), StatusCode::data_loss) << at;
  }
  EXPECT_TRUE(decode_header(encode_header({.body_bytes = kFrameBodyBytesMax})).ok());
  EXPECT_FALSE(decode_header(encode_header({.body_bytes = kFrameBodyBytesMax + 1})).ok());
}

// Whatever arrives: an answer or a refusal, and never a read outside of the body
// (AddressSanitizer).
TEST(FramesTest, DamagedRepliesAreRefusedOrRead) {
  for (const char* name : {"reply_get", "reply_stats"}) {
    const FrameBytes body = golden_reply(name).body;
    for (std::size_t length = 0; length < body.size(); ++length) {
      const FrameBytes cut(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(length));
      const bool read = std::string_view(name) == "reply_get" ? decode_results(cut, 2).ok()
                                                              : decode_pairs(cut).ok();
      EXPECT_FALSE(read) << name << " cut to " << length;
    }
    for (std::size_t bit = 0; bit < body.size() * 8; ++bit) {
      FrameBytes damaged = body;
      damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      const auto pairs = decode_pairs(damaged);
      if (pairs.ok()) {
        EXPECT_LE(pairs->size(), 2u);
      }
      const auto codes = decode_results(damaged, 2);
      if (codes.ok()) {
        EXPECT_EQ(codes->size(), 2u);
      }
    }
  }
}

TEST(FramesTest, NoiseIsRefusedOrRead) {
  constexpr std::uint64_t kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 20'000; ++round) {
    FrameBytes body(random.below(64));
    for (std::byte& byte : body) byte = static_cast<std::byte>(random.below(round % 2 ? 256 : 4));
    const auto pairs = decode_pairs(body);
    if (pairs.ok()) {
      std::size_t bytes = 4;
      for (const auto& [name, value] : *pairs) bytes += name.size() + value.size();
      EXPECT_LE(bytes, body.size());
    }
    decode_results(body, random.below(8)).status().ignore();
  }
}

}  // namespace
}  // namespace hitide
