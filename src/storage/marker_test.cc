#include "storage/marker.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/random.h"

namespace hitide {
namespace {

struct Page {
  Digest identity;
  PageKey key;
  std::string pool = "kv";
  PartId part{.tp_rank = 1, .pp_rank = 2, .cp_rank = 3};

  Page() {
    for (std::size_t i = 0; i < 32; ++i) {
      identity.bytes[i] = static_cast<std::uint8_t>(i);
      key.bytes[i] = static_cast<std::uint8_t>(0x40 + i);
    }
  }
  EnvelopeExpectation expectation() const {
    return {.identity = identity, .key = key, .pool = pool, .part = part};
  }
  std::vector<std::byte> marker() const {
    std::vector<std::byte> record(kMarkerBytes);
    write_marker(expectation(), record);
    return record;
  }
};

EnvelopeFault fault_of(const Page& page, std::span<const std::byte> record) {
  const EnvelopeVerdict verdict = verify_marker(page.expectation(), record);
  EXPECT_FALSE(verdict.ok);
  return verdict.fault;
}

// tests/golden/marker/marker.hex: the marker of `Page` above, in hex, lines of 16 bytes. It must
// never change as long as the version is 1.
TEST(Marker, BytesAreTheGoldenOnes) {
  const auto record = Page().marker();
  std::string text;
  for (std::size_t at = 0; at < kMarkerBytes; at += 16) {
    const std::size_t count = std::min<std::size_t>(16, kMarkerBytes - at);
    text += to_hex(std::span(reinterpret_cast<const std::uint8_t*>(record.data()) + at, count));
    text += '\n';
  }
  std::ifstream file(HITIDE_SOURCE_DIR "/tests/golden/marker/marker.hex");
  const std::string golden((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, golden);
}

TEST(Marker, NamesWhatIsWrong) {
  const Page page;
  const auto record = page.marker();
  EXPECT_TRUE(verify_marker(page.expectation(), record).ok);
  EXPECT_EQ(fault_of(page, std::span(record).first(kMarkerBytes - 1)), EnvelopeFault::length);
  EXPECT_EQ(fault_of(page, {}), EnvelopeFault::length);
  Page other;
  other.key.bytes[31] ^= 1;
  EXPECT_EQ(fault_of(other, record), EnvelopeFault::other_key);
  other = Page();
  other.identity.bytes[0] ^= 1;
  EXPECT_EQ(fault_of(other, record), EnvelopeFault::other_identity);
  other = Page();
  other.pool = "kv2";
  EXPECT_EQ(fault_of(other, record), EnvelopeFault::other_pool);
  other = Page();
  other.part.pp_rank = 0;
  EXPECT_EQ(fault_of(other, record), EnvelopeFault::other_part);
  auto newer = record;
  newer[4] = std::byte{2};
  const std::uint64_t checksum = checksum64(std::span(newer).first(96));
  std::memcpy(newer.data() + 96, &checksum, sizeof checksum);
  EXPECT_EQ(fault_of(page, newer), EnvelopeFault::newer_version);
  std::vector<std::byte> one(1, std::byte{'1'});  // what another schema puts
  EXPECT_EQ(fault_of(page, one), EnvelopeFault::length);
}

TEST(Marker, EveryFlippedBitIsSeen) {
  const Page page;
  auto record = page.marker();
  for (std::size_t bit = 0; bit < kMarkerBytes * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    record[bit / 8] ^= mask;
    EXPECT_FALSE(verify_marker(page.expectation(), record).ok) << bit;
    record[bit / 8] ^= mask;
  }
}

TEST(Marker, AnyBytesAreRefusedOrRead) {
  const std::uint64_t seed = 77;
  SCOPED_TRACE(seed);
  Random random(seed);
  const Page page;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random.next() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    EXPECT_FALSE(verify_marker(page.expectation(), bytes).ok);
  }
}

}  // namespace
}  // namespace hitide
