#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>
#ifdef HITIDE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // after xxhash.h: its names now mean the dispatching functions
#endif

#include "base/check.h"

namespace hitide {

struct Sha256::State {
  EVP_MD* digest = nullptr;
  EVP_MD_CTX* context = nullptr;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  // Fetched once: the one-shot call looks the algorithm up each time and costs twice as much.
  state_->digest = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  state_->context = EVP_MD_CTX_new();
  HITIDE_CHECK(state_->digest != nullptr && state_->context != nullptr,
               "OpenSSL has no SHA256 or no memory");
  reset();
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(state_->context);
  EVP_MD_free(state_->digest);
}

void Sha256::reset() {
  HITIDE_CHECK(EVP_DigestInit_ex2(state_->context, state_->digest, nullptr) == 1,
               "EVP_DigestInit_ex2 failed");
}

void Sha256::update(const void* data, std::size_t bytes) {
  HITIDE_CHECK(EVP_DigestUpdate(state_->context, data, bytes) == 1, "EVP_DigestUpdate failed");
}

void Sha256::finish(std::array<std::uint8_t, 32>& out) {
  unsigned length = 0;
  HITIDE_CHECK(EVP_DigestFinal_ex(state_->context, out.data(), &length) == 1 && length == 32,
               "EVP_DigestFinal_ex failed");
}

std::uint64_t checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct Checksum64::State {
  XXH3_state_t* state = nullptr;
};

Checksum64::Checksum64() : state_(std::make_unique<State>()) {
  state_->state = XXH3_createState();
  HITIDE_CHECK(state_->state != nullptr && XXH3_64bits_reset(state_->state) == XXH_OK,
               "XXH3 has no memory");
}

Checksum64::~Checksum64() { XXH3_freeState(state_->state); }

void Checksum64::update(std::span<const std::byte> bytes) {
  HITIDE_CHECK(XXH3_64bits_update(state_->state, bytes.data(), bytes.size()) == XXH_OK,
               "XXH3 update failed");
}

std::uint64_t Checksum64::finish() const { return XXH3_64bits_digest(state_->state); }

std::string to_hex(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

bool from_hex(std::string_view text, std::span<std::uint8_t> out) {
  if (text.size() != out.size() * 2) return false;
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

std::string PageKey::to_hex() const { return hitide::to_hex(bytes); }
std::string Digest::to_hex() const { return hitide::to_hex(bytes); }

}  // namespace hitide
