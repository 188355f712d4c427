#include "storage/envelope.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "storage/key_schema.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

constexpr std::size_t kPayload = 300;

struct Page {
  Digest identity;
  PageKey key;
  std::string pool = "kv";
  PartId part{.tp_rank = 1, .pp_rank = 2, .cp_rank = 3};
  std::uint64_t payload_bytes = kPayload;

  Page() {
    for (std::size_t i = 0; i < 32; ++i) {
      identity.bytes[i] = static_cast<std::uint8_t>(i);
      key.bytes[i] = static_cast<std::uint8_t>(0x40 + i);
    }
  }
  EnvelopeExpectation expectation() const {
    return {.identity = identity,
            .key = key,
            .pool = pool,
            .part = part,
            .payload_bytes = payload_bytes};
  }
  std::vector<std::byte> sealed(std::uint64_t backup_id = 77) const {
    std::vector<std::byte> object(kEnvelopeBytes);
    const auto payload = bytes_of("payload", payload_bytes);
    object.insert(object.end(), payload.begin(), payload.end());
    seal_envelope(expectation(), backup_id, object);
    return object;
  }
};

EnvelopeFault fault_of(const Page& page, std::span<const std::byte> object) {
  const EnvelopeVerdict verdict = verify_envelope(page.expectation(), object);
  EXPECT_FALSE(verdict.ok);
  return verdict.fault;
}

TEST(Envelope, SealedPagesVerify) {
  const Page page;
  const EnvelopeVerdict verdict = verify_envelope(page.expectation(), page.sealed(1234));
  EXPECT_TRUE(verdict.ok);
  EXPECT_EQ(verdict.backup_id, 1234u);
}

// tests/golden/envelope/page.hex: the header of `Page` above with backup id 77, in hex, lines of 16
// bytes. It must never change as long as the version is 1.
TEST(Envelope, BytesAreTheGoldenOnes) {
  const auto object = Page().sealed();
  std::string text;
  for (std::size_t at = 0; at < kEnvelopeBytes; at += 16) {
    text += to_hex(std::span(reinterpret_cast<const std::uint8_t*>(object.data()) + at, 16));
    text += '\n';
  }
  std::ifstream file(HITIDE_SOURCE_DIR "/tests/golden/envelope/page.hex");
  const std::string golden((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, golden);
}

TEST(Envelope, FaultsAreTold) {
  const Page page;
  const auto object = page.sealed();
  Page other = page;
  other.identity.bytes[31] ^= 1;
  EXPECT_EQ(fault_of(other, object), EnvelopeFault::other_identity);
  other = page;
  other.key.bytes[0] ^= 1;
  EXPECT_EQ(fault_of(other, object), EnvelopeFault::other_key);
  other = page;
  other.pool = "kv2";
  EXPECT_EQ(fault_of(other, object), EnvelopeFault::other_pool);
  other = page;
  other.part.cp_rank = 0;
  EXPECT_EQ(fault_of(other, object), EnvelopeFault::other_part);
  EXPECT_EQ(fault_of(page, std::span(object).first(object.size() - 1)), EnvelopeFault::length);
  EXPECT_EQ(fault_of(page, {}), EnvelopeFault::length);
  EXPECT_EQ(fault_of(page, std::vector<std::byte>(object.size())), EnvelopeFault::bad_magic);

  auto damaged = object;
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(fault_of(page, damaged), EnvelopeFault::payload_checksum);
  damaged = object;
  damaged[112] ^= std::byte{1};  // the backup id
  EXPECT_EQ(fault_of(page, damaged), EnvelopeFault::header_checksum);
  damaged = object;
  damaged[4] = std::byte{2};  // a version, but the checksum does not vouch for it
  EXPECT_EQ(fault_of(page, damaged), EnvelopeFault::header_checksum);
  const std::uint64_t checksum = checksum64(std::span(damaged).first(120));
  std::memcpy(damaged.data() + 120, &checksum, sizeof checksum);
  EXPECT_EQ(fault_of(page, damaged), EnvelopeFault::newer_version);

  std::set<std::string_view> texts;
  for (std::size_t i = 0; i < kEnvelopeFaultCount; ++i) {
    texts.insert(to_string(static_cast<EnvelopeFault>(i)));
    texts.insert(meaning(static_cast<EnvelopeFault>(i)));
  }
  EXPECT_EQ(texts.size(), 2 * kEnvelopeFaultCount);
}

// A header that names another length is not believed, even with a correct checksum of its own.
TEST(Envelope, TheLengthInsideMustAgreeToo) {
  Page longer;
  longer.payload_bytes = kPayload + 1;
  auto object = longer.sealed();
  object.pop_back();
  EXPECT_EQ(fault_of(Page(), object), EnvelopeFault::length);
}

TEST(Envelope, EveryFlippedBitIsSeen) {
  const Page page;
  const auto object = page.sealed();
  for (std::size_t bit = 0; bit < object.size() * 8; ++bit) {
    auto damaged = object;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(verify_envelope(page.expectation(), damaged).ok) << "bit " << bit;
  }
}

TEST(Envelope, EveryTruncationIsSeen) {
  const Page page;
  const auto object = page.sealed();
  for (std::size_t size = 0; size < object.size(); ++size) {
    EXPECT_FALSE(verify_envelope(page.expectation(), std::span(object).first(size)).ok) << size;
  }
}

// ---- key schema ---------------------------------------------------------------------------------

TEST(KeySchema, KeysAreTheGoldenOnes) {
  const Page page;
  const KeySchema schema(page.identity, page.part);
  const std::string ns = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
  const std::string key = "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f";
  EXPECT_EQ(schema.prefix(), ns + "/");
  EXPECT_EQ(schema.object_key(page.key, "kv"), ns + "/" + key + "/kv.t1-p2-c3");
  EXPECT_EQ(schema.group(page.key), ns + "/" + key + ".t1-p2-c3");
}

TEST(KeySchema, WhatDiffersInContentDiffersInName) {
  std::set<std::string> keys;
  std::size_t made = 0;
  for (std::uint8_t identity = 0; identity < 2; ++identity) {
    for (std::uint8_t page = 0; page < 2; ++page) {
      for (const char* pool : {"k", "kv", "kv_1"}) {
        for (std::uint32_t rank = 0; rank < 12; ++rank) {
          for (int axis = 0; axis < 3; ++axis) {
            PartId part;
            (axis == 0 ? part.tp_rank : axis == 1 ? part.pp_rank : part.cp_rank) = rank + 1;
            Digest digest;
            digest.bytes[31] = identity;
            PageKey key;
            key.bytes[31] = page;
            keys.insert(KeySchema(digest, part).object_key(key, pool));
            ++made;
          }
        }
      }
    }
  }
  EXPECT_EQ(keys.size(), made);
}

TEST(KeySchema, KeysAreBounded) {
  const PartId part{.tp_rank = UINT32_MAX, .pp_rank = UINT32_MAX, .cp_rank = UINT32_MAX};
  const std::string key = KeySchema(Digest{}, part).object_key(PageKey{}, "fifteen_letters");
  EXPECT_EQ(key.size(), kObjectKeyBytesMax);
  EXPECT_LE(key.size(), 255u);
}

// Replicas share objects; slices do not.
TEST(KeySchema, DataParallelReplicasHaveOnePart) {
  RankGeometry ranks{.tp_rank = 1, .tp_size = 2, .dp_rank = 0, .dp_size = 2};
  const PartId first = part_of(ranks);
  ranks.dp_rank = 1;
  EXPECT_EQ(part_of(ranks), first);
  ranks.tp_rank = 0;
  EXPECT_NE(part_of(ranks), first);
}

}  // namespace
}  // namespace hitide
