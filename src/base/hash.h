// Digests and checksums. SHA-256 (OpenSSL, SHA-NI where the CPU has it) names content; XXH3 finds
// damage.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <hitide/types.h>

namespace hitide {

// One reusable SHA-256 computation. Not for two threads at once. reset() is cheap; construction
// allocates.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void reset();
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  // Finishes; reset() before the next use.
  void finish(std::array<std::uint8_t, 32>& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3, 64 bits, seed 0.
std::uint64_t checksum64(std::span<const std::byte> bytes);

// Over several pieces, as if they were one.
class Checksum64 {
 public:
  Checksum64();
  ~Checksum64();
  Checksum64(const Checksum64&) = delete;
  Checksum64& operator=(const Checksum64&) = delete;
  void update(std::span<const std::byte> bytes);
  std::uint64_t finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string to_hex(std::span<const std::uint8_t> bytes);
// False unless `text` is exactly 2 * out.size() lower- or upper-case hex digits.
bool from_hex(std::string_view text, std::span<std::uint8_t> out);

}  // namespace hitide
