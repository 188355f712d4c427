// PageHeader: the fields that every stored record of a page begins with (envelope and marker).
//
//   0 magic | 4 version | 6 bytes | 8 identity | 40 page key | 72 pool | 88 part | 96 ...
//
// Threading: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "storage/envelope.h"
#include "storage/stored_bytes.h"

namespace hitide {

// What tells one kind of record from another.
struct PageHeaderForm {
  std::array<char, 4> magic;
  std::uint16_t version = 0;
  std::uint16_t bytes = 0;      // of the record's header
  std::size_t checksum_at = 0;  // XXH3 over everything before it
};

inline constexpr std::size_t kPageHeaderBytes = 96;  // the common fields

// header: at least kPageHeaderBytes long, all zero.
void put_page_header(const PageHeaderForm& form, const EnvelopeExpectation& page,
                     std::span<std::byte> header);

std::uint64_t page_header_checksum(const PageHeaderForm& form, std::span<const std::byte> header);

// The first thing that does not hold: magic, checksum, version, then the fields in their order.
// header: form.bytes long.
std::optional<EnvelopeFault> page_header_fault(const PageHeaderForm& form,
                                               const EnvelopeExpectation& page,
                                               std::span<const std::byte> header);

}  // namespace hitide
