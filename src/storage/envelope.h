// Envelope: the fixed 128-byte header in front of every stored page. Format, byte for byte:
// docs/formats/envelope.md. Pure functions, safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <hitide/types.h>

#include "spec/layout.h"
#include "storage/key_schema.h"

namespace hitide {

inline constexpr std::uint16_t kEnvelopeVersion = 1;

// Why an object is not the page it should be. X(name, meaning); in the order of checking.
#define HITIDE_ENVELOPE_FAULTS(X)                                                   \
  X(length, "the object is not as long as a page of this pool")                     \
  X(bad_magic, "the object does not start with an envelope")                        \
  X(header_checksum, "the envelope's own checksum does not match")                  \
  X(newer_version, "the envelope was written by a newer version of HiTide")         \
  X(other_identity, "the page belongs to another model, numerics or stored format") \
  X(other_key, "the page belongs to another prefix")                                \
  X(other_pool, "the page belongs to another pool")                                 \
  X(other_part, "the page belongs to another rank's part of the model")             \
  X(payload_checksum, "the payload's checksum does not match")                      \
  X(damaged_record, "the store itself reports the object as damaged")

enum class EnvelopeFault : std::uint8_t {
#define HITIDE_X(name, meaning) name,
  HITIDE_ENVELOPE_FAULTS(HITIDE_X)
#undef HITIDE_X
};
inline constexpr std::size_t kEnvelopeFaultCount = 0
#define HITIDE_X(name, meaning) +1
    HITIDE_ENVELOPE_FAULTS(HITIDE_X)
#undef HITIDE_X
    ;
std::string_view to_string(EnvelopeFault fault);
std::string_view meaning(EnvelopeFault fault);

// What an object must be. The views must outlive the use.
struct EnvelopeExpectation {
  const Digest& identity;
  const PageKey& key;
  std::string_view pool;  // at most 15 characters
  PartId part;
  std::uint64_t payload_bytes = 0;
};

// Fills the first kEnvelopeBytes of `object` from what lies behind them. object: exactly header and
// payload. Cost: one pass over the payload.
void seal_envelope(const EnvelopeExpectation& page, std::uint64_t backup_id,
                   std::span<std::byte> object);

struct EnvelopeVerdict {
  bool ok = false;
  EnvelopeFault fault = EnvelopeFault::length;  // where not ok
  std::uint64_t backup_id = 0;                  // where ok
};

// Checks everything, the payload's checksum last. Never reads outside `object`, whatever is in it.
EnvelopeVerdict verify_envelope(const EnvelopeExpectation& page, std::span<const std::byte> object);

}  // namespace hitide
