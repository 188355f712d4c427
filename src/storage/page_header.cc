#include "storage/page_header.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace hitide {
namespace {

// Offsets of docs/formats/envelope.md and docs/formats/marker.md.
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kBytesAt = 6;
constexpr std::size_t kIdentityAt = 8;
constexpr std::size_t kPageKeyAt = 40;
constexpr std::size_t kPoolAt = 72;
constexpr std::size_t kPoolBytes = 16;
constexpr std::size_t kPartAt = 88;  // tp, pp, cp as u16, then two zero bytes
constexpr std::size_t kPartBytes = 8;
static_assert(kPartAt + kPartBytes == kPageHeaderBytes);

}  // namespace

void put_page_header(const PageHeaderForm& form, const EnvelopeExpectation& page,
                     std::span<std::byte> header) {
  put(header, 0, form.magic);
  put(header, kVersionAt, form.version);
  put(header, kBytesAt, form.bytes);
  put(header, kIdentityAt, page.identity.bytes);
  put(header, kPageKeyAt, page.key.bytes);
  std::memcpy(header.data() + kPoolAt, page.pool.data(),
              std::min(page.pool.size(), kPoolBytes - 1));
  put(header, kPartAt, static_cast<std::uint16_t>(page.part.tp_rank));
  put(header, kPartAt + 2, static_cast<std::uint16_t>(page.part.pp_rank));
  put(header, kPartAt + 4, static_cast<std::uint16_t>(page.part.cp_rank));
}

std::uint64_t page_header_checksum(const PageHeaderForm& form, std::span<const std::byte> header) {
  return checksum64(header.first(form.checksum_at));
}

std::optional<EnvelopeFault> page_header_fault(const PageHeaderForm& form,
                                               const EnvelopeExpectation& page,
                                               std::span<const std::byte> header) {
  std::array<std::byte, kPageHeaderBytes> expected{};
  put_page_header(form, page, expected);
  const auto differs = [&](std::size_t at, std::size_t bytes) {
    return std::memcmp(header.data() + at, expected.data() + at, bytes) != 0;
  };
  if (differs(0, form.magic.size())) return EnvelopeFault::bad_magic;
  if (take<std::uint64_t>(header, form.checksum_at) != page_header_checksum(form, header)) {
    return EnvelopeFault::header_checksum;
  }
  if (take<std::uint16_t>(header, kVersionAt) > form.version) return EnvelopeFault::newer_version;
  if (differs(0, kIdentityAt)) return EnvelopeFault::bad_magic;
  if (differs(kIdentityAt, 32)) return EnvelopeFault::other_identity;
  if (differs(kPageKeyAt, 32)) return EnvelopeFault::other_key;
  if (differs(kPoolAt, kPoolBytes)) return EnvelopeFault::other_pool;
  if (differs(kPartAt, kPartBytes)) return EnvelopeFault::other_part;
  return std::nullopt;
}

}  // namespace hitide
