#include "prefix/page_hasher.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>

#include "base/check.h"

namespace hitide {
namespace {

// Ids turned into bytes at a time where memory cannot be hashed as it lies.
constexpr std::size_t kChunkIds = 128;

constexpr std::uint32_t little_endian(std::uint32_t id) {
  if constexpr (std::endian::native == std::endian::little) return id;
  return (id >> 24) | ((id >> 8) & 0xff00u) | ((id << 8) & 0xff0000u) | (id << 24);
}

// invalid_argument for the first id that does not fit into 32 bits.
Result<std::vector<std::uint32_t>> narrow(std::span<const std::int64_t> tokens) {
  std::vector<std::uint32_t> ids(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > std::numeric_limits<std::uint32_t>::max()) {
      return Status(StatusCode::invalid_argument, "token id " + std::to_string(tokens[i]) +
                                                      " at position " + std::to_string(i) +
                                                      " is outside [0, 4294967295]");
    }
    ids[i] = static_cast<std::uint32_t>(tokens[i]);
  }
  return ids;
}

void feed_field(Sha256& sha, std::optional<std::string_view> field) {
  if (!field) {
    sha.update(std::string_view("\0", 1));
    return;
  }
  std::array<std::uint8_t, 9> head{1};
  for (std::size_t i = 0; i < 8; ++i) {
    head[i + 1] = static_cast<std::uint8_t>(std::uint64_t{field->size()} >> (8 * i));
  }
  sha.update(head.data(), head.size());
  sha.update(*field);
}

}  // namespace

PageHasher::PageHasher(std::uint32_t page_size) : page_size_(page_size) {
  HITIDE_CHECK(page_size >= 1, "a page has at least one token");
}

void PageHasher::extend(const PageKey* parent, std::span<const TokenId> tokens,
                        std::vector<PageKey>& out) {
  extend(parent, as_ids(tokens), out);
}

void PageHasher::extend(const PageKey* parent, std::span<const std::uint32_t> ids,
                        std::vector<PageKey>& out) {
  PageKey key = parent != nullptr ? *parent : PageKey{};
  bool chained = parent != nullptr;
  if (out.empty()) out.reserve(ids.size() / page_size_);  // else leave the growth to the vector
  for (std::size_t at = 0; at + page_size_ <= ids.size(); at += page_size_) {
    sha_.reset();
    if (chained) sha_.update(key.bytes.data(), key.bytes.size());
    feed(ids.subspan(at, page_size_));
    sha_.finish(key.bytes);
    out.push_back(key);
    chained = true;
  }
}

void PageHasher::extend_bigram(const PageKey* parent, std::span<const TokenId> tokens,
                               std::vector<PageKey>& out) {
  extend_bigram(parent, as_ids(tokens), out);
}

void PageHasher::extend_bigram(const PageKey* parent, std::span<const std::uint32_t> ids,
                               std::vector<PageKey>& out) {
  PageKey key = parent != nullptr ? *parent : PageKey{};
  bool chained = parent != nullptr;
  const std::size_t places = ids.empty() ? 0 : ids.size() - 1;
  if (out.empty()) out.reserve(places / page_size_);  // else leave the growth to the vector
  for (std::size_t at = 0; at + page_size_ <= places; at += page_size_) {
    sha_.reset();
    if (chained) sha_.update(key.bytes.data(), key.bytes.size());
    feed_pairs(ids.subspan(at, std::size_t{page_size_} + 1));
    sha_.finish(key.bytes);
    out.push_back(key);
    chained = true;
  }
}

std::span<const std::uint32_t> PageHasher::as_ids(std::span<const TokenId> tokens) {
  return {reinterpret_cast<const std::uint32_t*>(tokens.data()), tokens.size()};
}

void PageHasher::feed(std::span<const std::uint32_t> ids) {
  if constexpr (std::endian::native == std::endian::little) {
    sha_.update(ids.data(), ids.size_bytes());
    return;
  }
  std::array<std::uint32_t, kChunkIds> chunk;
  while (!ids.empty()) {
    const std::size_t count = std::min(ids.size(), chunk.size());
    for (std::size_t i = 0; i < count; ++i) chunk[i] = little_endian(ids[i]);
    sha_.update(chunk.data(), count * sizeof chunk[0]);
    ids = ids.subspan(count);
  }
}

// [n + 1] ids as n pairs.
void PageHasher::feed_pairs(std::span<const std::uint32_t> ids) {
  std::array<std::uint32_t, 2 * kChunkIds> chunk;
  while (ids.size() > 1) {
    const std::size_t count = std::min(ids.size() - 1, kChunkIds);
    for (std::size_t i = 0; i < count; ++i) {
      chunk[2 * i] = little_endian(ids[i]);
      chunk[2 * i + 1] = little_endian(ids[i + 1]);
    }
    sha_.update(chunk.data(), 2 * count * sizeof chunk[0]);
    ids = ids.subspan(count);
  }
}

Result<std::vector<PageKey>> page_hashes(std::span<const std::int64_t> tokens,
                                         const PageHashOptions& options) {
  if (options.page_size == 0) {
    return Status(StatusCode::invalid_argument, "page_size is 0; at least 1 token is needed");
  }
  if (options.parent && (options.extra_key || options.cache_salt)) {
    return Status(StatusCode::invalid_argument,
                  "a parent key already carries the namespace: give it without extra_key and "
                  "cache_salt");
  }
  HITIDE_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> ids, narrow(tokens));
  std::optional<PageKey> first = options.parent;
  if (!first) first = namespace_seed(options.extra_key, options.cache_salt);
  PageHasher hasher(options.page_size);
  std::vector<PageKey> keys;
  const PageKey* parent = first ? &*first : nullptr;
  if (options.bigram) {
    hasher.extend_bigram(parent, std::span(ids), keys);
  } else {
    hasher.extend(parent, std::span(ids), keys);
  }
  return keys;
}

Result<PageKey> whole_run_hash(std::span<const std::int64_t> tokens) {
  HITIDE_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> ids, narrow(tokens));
  if (ids.empty()) {
    PageKey key;
    Sha256 sha;
    sha.finish(key.bytes);
    return key;
  }
  if (ids.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Status(StatusCode::invalid_argument,
                  std::to_string(ids.size()) + " tokens; at most 4294967295 are hashed at once");
  }
  PageHasher hasher(static_cast<std::uint32_t>(ids.size()));
  std::vector<PageKey> keys;
  hasher.extend(nullptr, std::span(ids), keys);
  return keys.front();
}

std::optional<PageKey> namespace_seed(std::optional<std::string_view> extra_key,
                                      std::optional<std::string_view> cache_salt) {
  if (cache_salt && cache_salt->empty()) cache_salt.reset();
  if (!extra_key && !cache_salt) return std::nullopt;
  return namespace_digest(extra_key, cache_salt);
}

PageKey namespace_digest(std::optional<std::string_view> extra_key,
                         std::optional<std::string_view> cache_salt) {
  Sha256 sha;
  sha.update(std::string_view("sglang-cache-namespace-v1"));
  feed_field(sha, extra_key);
  feed_field(sha, cache_salt);
  PageKey digest;
  sha.finish(digest.bytes);
  return digest;
}

std::int64_t event_id(const PageKey& key) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value = (value << 8) | key.bytes[i];
  return static_cast<std::int64_t>(value);
}

}  // namespace hitide
